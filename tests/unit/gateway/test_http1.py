"""Connections of the Gateway, with a real server: slow heads are cut off, two lengths refused, all else served."""

import asyncio
import gc
import json
import socket
import threading
import time
import tracemalloc

import pytest
from aiohttp import web

from gateway import http1, routes
from support.served import served

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = HEAD.replace(b"GET", b"POST")
LIMIT = 1 << 20


async def show(request):
    return web.Response(status=204)


async def linger(request):
    await asyncio.sleep(0.5)
    return await show(request)


async def take(request):
    return http1.json_answer(len(await routes.read_body(request, LIMIT)))


async def fail(request):
    raise KeyError("words of a client")


@pytest.fixture
def port(monkeypatch):
    monkeypatch.setattr(http1, "HEAD_TIMEOUT_S", 0.6)
    application = routes.Application(
        ("GET", "/", show), ("GET", "/slow", linger), ("POST", "/", take), ("GET", "/fault", fail)
    )
    with served(application) as port:
        yield port


@pytest.fixture
def connection(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connected:
        yield connected


def answered(connection):
    return connection.recv(65536).startswith(b"HTTP/1.1 204")


def cut_off(connection):
    return connection.recv(1) == b""


def until_closed(connection):
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def assert_refused(text, status, code):
    head, _, body = text.partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, text
    assert json.loads(body)["error"]["code"] == code and text.count(b"HTTP/1.") == 1


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


def test_pipelined_requests_are_answered_in_turn(connection):
    connection.sendall((HEAD + b"\r\n") * 50 + HEAD + b"Connection: close\r\n\r\n")
    assert until_closed(connection).count(b"HTTP/1.1 204") == 51


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_two_lengths_are_refused_and_nothing_after_them_is_read(connection, order):
    both = [b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n"][order]
    connection.sendall(POST + b"".join(both) + b"\r\n0\r\n\r\n" + HEAD + b"\r\n")
    assert_refused(until_closed(connection), 400, "ambiguous_length")


@pytest.mark.parametrize(
    "head",
    [
        b"secret words\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        HEAD + b"X: " + b"secret" * 2000 + b"\r\n\r\n",
        HEAD + b"X: secret\r\n" * 100 + b"\r\n",
        HEAD + b"X:secret\x00\r\n\r\n",
        b"GET /" + b"secret" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=range(7),
)
def test_what_is_no_request_is_refused_in_the_one_shape_and_told_to_nobody(connection, capfd, caplog, head):
    connection.sendall(head)
    text = until_closed(connection)
    assert_refused(text, 400, "malformed_request")
    assert b"secret" not in text and capfd.readouterr() == ("", "") and caplog.text == ""


@pytest.mark.parametrize(
    "length", [b"Content-Length: 2\r\n\r\n{}", b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"]
)
def test_one_length_is_fine(connection, length):
    connection.sendall(POST + length)
    assert connection.recv(65536).endswith(b"\r\n\r\n2")


def test_nobody_is_told_what_runs_here(connection):
    connection.sendall(HEAD + b"Connection: close\r\n\r\n")
    assert b"server" not in until_closed(connection).lower()


def test_a_fault_of_a_handler_is_told_to_the_log_alone(connection, capfd):
    connection.sendall(HEAD.replace(b"/", b"/fault", 1) + b"Connection: close\r\n\r\n")
    text = until_closed(connection)
    assert_refused(text, 500, "internal_error")
    assert b"words" not in text and "KeyError" in capfd.readouterr().err


def test_a_body_too_large_is_answered_while_its_client_still_sends_it(connection):
    size = 3 * LIMIT

    def send():
        connection.sendall(POST + f"Content-Length: {size}\r\n\r\n".encode())
        connection.sendall(b"x" * size)

    sending = threading.Thread(target=send)
    sending.start()
    text = connection.recv(65536)
    sending.join(20)
    assert not sending.is_alive(), "its rest is read"
    assert_refused(text, 413, "body_too_large")


def test_a_body_without_a_length_is_refused_at_the_bound(connection):
    chunk = b"%x\r\n%s\r\n" % (LIMIT, b"x" * LIMIT)
    connection.sendall(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + chunk + b"0\r\n\r\n")
    assert_refused(connection.recv(65536), 413, "body_too_large")


def test_a_body_that_drips_is_refused(connection, monkeypatch):
    monkeypatch.setattr(routes, "BODY_TIMEOUT_S", 0.3)
    connection.sendall(POST + b"Content-Length: 9\r\n\r\n1")
    assert_refused(connection.recv(65536), 408, "body_too_slow")


@pytest.mark.parametrize("chunk", [b"secret\r\n", b"-1\r\n", b"2\r\n{}secret\r\n", b"1" * 17 + b"\r\n"])
def test_a_chunk_that_is_none_is_refused_at_once_and_nothing_after_it_is_read(connection, capfd, caplog, chunk):
    connection.sendall(POST + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n")
    assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n", "the head is read before the chunk"
    connection.sendall(chunk + HEAD + b"\r\n")
    assert_refused(until_closed(connection), 400, "body_broken")
    # asyncio may complain here of what an earlier test left.
    assert capfd.readouterr() == ("", "") and "aiohttp" not in {
        record.name.partition(".")[0] for record in caplog.records
    }


def test_a_broken_body_behind_another_request_is_answered_in_its_turn(connection):
    connection.sendall(HEAD.replace(b"/", b"/slow", 1) + b"\r\n" + POST + b"Transfer-Encoding: chunked\r\n\r\n")
    connection.sendall(b"2\r\n{}\r\n")
    time.sleep(0.1)  # until the head of the second is read
    connection.sendall(b"secret\r\n")
    first, second = until_closed(connection).split(b"HTTP/1.1 ")[1:]
    assert first.startswith(b"204")
    assert_refused(b"HTTP/1.1 " + second, 400, "body_broken")


def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(connection):
    connection.sendall(POST + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
    assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(b"{}")
    assert connection.recv(65536).endswith(b"\r\n\r\n2")


@pytest.mark.parametrize("target", ["/nowhere", "//", "/%2f", "/./", "http://x/nowhere"])
def test_a_path_that_is_no_route_is_unknown(connection, target):
    connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert_refused(until_closed(connection), 404, "route_unknown")


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_another_method_is_refused_with_those_there_are(connection, method):
    connection.sendall(HEAD.replace(b"GET", method.encode()) + b"Connection: close\r\n\r\n")
    text = until_closed(connection)
    assert_refused(text, 405, "method_not_allowed")
    assert b"Allow: GET, HEAD, POST\r\n" in text


@pytest.mark.parametrize("end", [b"no chunk\r\n", b""], ids=["malformed", "broken off"])
def test_what_came_of_a_broken_body_is_let_go_at_once(port, end):
    size, count = LIMIT // 2, 20
    sent = POST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + b"x" * size + b"\r\n" + end

    def send():
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            until_closed(connection)

    send()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        for _ in range(count):
            send()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < 4 * size, "a collection may be long in coming"
