"""Connections of the Gateway, with a real server: slow heads are cut off, two lengths refused, all else served."""

import socket
import threading
import time

import pytest
import uvicorn

from gateway import connections, surface

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"


async def application(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_TIMEOUT_S", 0.6)
    guarded = connections.refuse_two_lengths(application, surface.refusal)
    config = uvicorn.Config(guarded, http=connections.Connection, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def connection(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as made:
        yield made


def answered(connection):
    return connection.recv(65536).startswith(b"HTTP/1.1 204")


def cut_off(connection):
    return connection.recv(1) == b""


def test_a_client_that_says_nothing_is_cut_off(connection):
    assert cut_off(connection)


def test_a_head_that_drips_is_cut_off_though_each_byte_comes_soon(connection):
    for byte in HEAD * 10:
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.1)
    raise AssertionError("a head may take for ever")


def test_the_second_head_has_its_limit_too(connection):
    connection.sendall(HEAD + b"\r\n")
    assert answered(connection)
    connection.sendall(HEAD)
    assert cut_off(connection)


def test_requests_that_come_whole_are_served_for_longer_than_the_limit(connection):
    ends = time.monotonic() + 1.5
    while time.monotonic() < ends:
        connection.sendall(HEAD + b"\r\n")
        assert answered(connection)
        time.sleep(0.2)


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_two_lengths_are_refused_and_the_connection_closed(connection, order):
    both = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"][order]
    connection.sendall(HEAD.replace(b"GET", b"POST") + b"".join(both) + b"\r\n0\r\n\r\n" + HEAD + b"\r\n")
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    text = b"".join(parts)
    assert text.startswith(b"HTTP/1.1 400") and b"ambiguous_length" in text and text.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(
    "length", [b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
def test_one_length_is_fine(connection, length):
    connection.sendall(HEAD.replace(b"GET", b"POST") + length)
    assert answered(connection)
