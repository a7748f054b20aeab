"""A Gateway that says what a test tells it to: answers by route, in order, the last one for ever.

An answer is a status, a (status, body, headers) triple, DROP (close without a word), or
Hold(seconds, answer). It keeps every request. It can go away and come back on its port.
"""

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

DROP = "drop"


class Hold(NamedTuple):
    seconds: float
    answer: object


class Request(NamedTuple):
    route: str
    path: str
    headers: dict
    body: bytes
    time: float


def snapshot(status="completed", reward=1.0, error=None, **more):
    """A 200 answer with a trial's snapshot."""
    metrics = {"tool_calls": 2, "tool_outputs": 2, "assistant_messages": 1, "model_output_items": 3}
    body = {"protocol_version": "relax-nemo-gym/v1", "status": status, "reward": reward, "metrics": metrics}
    return (200, body | {"artifact_ref": None, "error": error} | more, {})


def fault(status, code, message="no", **headers):
    """An error answer of the Gateway's shape."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return (status, {"error": {"code": code, "message": message}}, named)


RUNNING = snapshot("running", None)
DEFAULTS = {"create": [(202, RUNNING[1], {})], "get": [snapshot()], "renew": [204], "abort": [(202, RUNNING[1], {})]}


class ScriptedGateway:
    """Context manager; `script` maps create, get, renew and abort to lists of answers."""

    def __init__(self, **script):
        self.script = {route: list(script.get(route, answers)) for route, answers in DEFAULTS.items()}
        self.requests = []
        self.port = 0
        self._lock = threading.Lock()

    def __enter__(self):
        self.come()
        return self

    def __exit__(self, *_):
        if self._server:
            self.go()

    def come(self):
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def go(self):
        self._server.shutdown()
        self._server.server_close()
        self._server = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def seen(self, route):
        return [request for request in self.requests if request.route == route]

    def wait_for(self, route, count=1, seconds=10):
        """Block until `route` was asked `count` times."""
        end = time.monotonic() + seconds
        while len(self.seen(route)) < count:
            assert time.monotonic() < end, f"{route} was asked {len(self.seen(route))} times, not {count}"
            time.sleep(0.01)

    def _take(self, request):
        with self._lock:
            self.requests.append(request)
            answers = self.script[request.route]
            return answers.pop(0) if len(answers) > 1 else answers[0]

    def _handler(gateway):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer("get")

            def do_POST(self):
                last = self.path.rsplit("/", 1)[-1]
                self.answer("create" if last == "trials" else last)

            def answer(self, route):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answer = gateway._take(Request(route, self.path, dict(self.headers), body, time.monotonic()))
                if isinstance(answer, Hold):
                    time.sleep(answer.seconds)
                    answer = answer.answer
                if answer != DROP:
                    self.write(*((answer, None, {}) if isinstance(answer, int) else answer))

            def write(self, status, body, headers):
                data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": len(data)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                # The client may have gone: that is what some tests are about.
                with suppress(ConnectionError):
                    self.wfile.write(data)

            def log_message(self, *_):
                pass

        return Handler
