"""One HTTP server for tests: what it answers is a table, or the `answer` of a subclass.

Guarantees:
- It listens on loopback alone, on a port of its own or the one it is given, and comes back there after a stop.
- Each connection has a thread, so that an answer may sleep or wait; connections are kept alive.
- A stop cuts the connections that are open.
"""

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit


class Request(NamedTuple):
    """One request; `path` is as it was sent, with its query."""

    method: str
    path: str
    headers: dict
    body: bytes
    time: float
    connection: socket.socket

    @property
    def bare_path(self):
        return urlsplit(self.path).path

    @property
    def query(self):
        return parse_qs(urlsplit(self.path).query)

    def json(self):
        return json.loads(self.body) if self.body else None


class Answer(NamedTuple):
    """A plain tuple, cut short at any field, does as well.

    The body is bytes, text, what JSON can hold, or an iterator of bytes that are sent as they come. The connection
    ends after an iterator, and where the headers promise another Content-Length than the body has.
    """

    status: int = 200
    body: object = b""
    headers: dict = {}


class HttpServer:
    """Context manager. `pages` is {path: body or tuple}; a test may change it at any time."""

    def __init__(self, pages=None, port=0):
        self.pages, self.port = pages or {}, port

    def answer(self, request):
        """An Answer, a tuple like one, a status alone, or None: hang up without a word."""
        # In the words that Docker's client takes for an image that is not there.
        page = self.pages.get(request.bare_path, (404, {"message": "No such image, container or page"}))
        return page if isinstance(page, tuple) else (200, page)

    def start(self):
        self.connections = set()
        self.server = _Server(("127.0.0.1", self.port), type("Handler", (_Handler,), {"scripted": self}))
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections.copy():
            with suppress(OSError):  # closed by now
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()


def nobody():
    """URL at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


class _Server(ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, request, client_address):
        """A client that leaves early is what some tests are about."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def setup(self):
        super().setup()
        self.scripted.connections.add(self.connection)

    def finish(self):
        self.scripted.connections.discard(self.connection)
        super().finish()

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.scripted.answer(
            Request(self.command, self.path, self.headers, body, time.monotonic(), self.connection)
        )
        if answer is None:
            self.close_connection = True
        else:
            self.write(*((answer,) if isinstance(answer, int) else answer))

    do_HEAD = do_POST = do_GET

    def write(self, status, body=b"", headers=None):
        streamed = isinstance(body, Iterator)
        parts = body if streamed else [encoded(body)]
        length = None if streamed else len(parts[0])
        kind = "text/html" if isinstance(body, str) else "application/json"
        fields = {"Date": self.date_time_string(), "Content-Type": kind, "Content-Length": length} | (headers or {})
        self.close_connection |= streamed or fields["Content-Length"] != length
        self.send_response_only(status)
        for name, value in fields.items():
            if value is not None:
                self.send_header(name, str(value))
        self.end_headers()
        for part in parts if self.command != "HEAD" else ():
            self.wfile.write(part)

    def log_message(self, *_):
        """Keep the test's output clean."""


def encoded(body):
    if isinstance(body, bytes):
        return body
    return (body if isinstance(body, str) else json.dumps(body)).encode()
