"""The model API of a rehearsal or an evaluation, in the shape of the trainer's, and policies behind it.

`POST <base>/v1/responses` with `Authorization: Bearer <session id>`; the id selects the session.
Guarantees:
- an unknown session id gets 401 and learns nothing
- the calls of one session are answered one at a time
- an answer omits the fields that the trainer's API may omit, and has token counts only from an endpoint
- session ids appear in no log and no error

It does not sample, tokenize or train: the policy is the row's ground truth, a fixed sentence, or the
driver's own (endpoint).
"""

from __future__ import annotations

import json
import secrets
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from common.failure import Failure

BASE_PATH = "/agentic_api"
# NeMo Gym's agent makes at most six model calls; the last one is for the closing message.
TURNS_WITH_CALLS = 5
KNOWN_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})
# An object of the Responses API (a request, an answer, an item), and the items of a history or an output.
Body = dict[str, Any]
Items = list[Body]
Headers = dict[str, str] | None


class ModelError(Exception):
    """A model call that gets no answer: HTTP status, message, headers to pass on.

    `kind` is the fault's type in the Gateway's names for faults of endpoints; `code` stands in the answer's body.
    """

    def __init__(
        self, status: int, message: str, headers: Headers = None, kind: str = "status", code: str = "model_error"
    ):
        super().__init__(message)
        self.status, self.message, self.headers, self.kind, self.code = status, message, headers or {}, kind, code


class Session:
    """One sample as the model API sees it: its task, its secret id, and the history it was sent."""

    def __init__(self, task: Mapping[str, Any]):
        self.task, self.id = task, secrets.token_urlsafe(32)
        self.lock, self.ended, self.opened = threading.Lock(), threading.Event(), time.monotonic()
        self.turns, self.branches = 0, 0
        # Names that an endpoint behind the policy gave its model; replicas may give several.
        self.models: set[str] = set()
        self.prompt: Items | None = None
        self.history: Items = []
        self.answer: Items = []
        self.usages: list[dict[str, int]] = []
        self.incomplete: str | None = None
        self.fault: ModelError | None = None

    def take(self, items: Items) -> None:
        """Record a request's history; it starts a branch if it does not extend the earlier history."""
        if self.prompt is None:
            self.prompt = items
        elif items[: len(self.history)] != self.history:
            self.branches += 1
        self.history = items

    def give(self, response: Body) -> None:
        """Record the answer that was given."""
        self.turns += 1
        self.answer = response.get("output") or []
        self.usages.append(response.get("usage") or {})
        self.incomplete = (response.get("incomplete_details") or {}).get("reason")

    def transcript(self) -> Items:
        """The items after the prompt: the model's output and the tools' results."""
        if self.prompt is None:
            return []
        return [*self.history[len(self.prompt) :], *self.answer]

    def token_counts(self) -> tuple[int, int, int] | tuple[None, None, None]:
        """(prompt, response, total) tokens of the sample, tool outputs in the response; None if not counted."""
        first, last = (self.usages[0], self.usages[-1]) if self.usages else ({}, {})
        prompt = first.get("input_tokens")
        if prompt is None or last.get("input_tokens") is None or last.get("output_tokens") is None:
            return None, None, None
        total = last["input_tokens"] + last["output_tokens"]
        return prompt, total - prompt, total


def message(text: str) -> Body:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": _id("msg"), "role": "assistant", "status": "completed", "content": content}


def function_call(name: str, arguments: str) -> Body:
    """A tool call; `arguments` is the JSON text of an object."""
    fields = {"name": name, "arguments": arguments, "status": "completed"}
    return {"type": "function_call", "id": _id("fc"), "call_id": _id("call"), **fields}


def _id(prefix):
    return f"{prefix}_{secrets.token_hex(8)}"


def answered(items: Items) -> Body:
    """A completed answer as the trainer's API gives it: without usage details and an echo of the tools."""
    fields = {"object": "response", "created_at": int(time.time()), "model": "model"}
    return {"id": _id("resp"), **fields, "status": "completed", "output": items}


def spread(calls: list[Any], turns: int = TURNS_WITH_CALLS) -> list[list[Any]]:
    """Cut `calls` into at most `turns` parts of about equal size, in order."""
    count = min(len(calls), turns)
    edges = [round(index * len(calls) / count) for index in range(count + 1)] if count else []
    return [calls[start:end] for start, end in zip(edges, edges[1:], strict=False)]


def oracle(session: Session, body: Body) -> Body:
    """Play the row's ground truth, then close with a message."""
    parts = spread(session.task["metadata"]["ground_truth"])
    if session.turns < len(parts):
        return answered([function_call(call["name"], call["arguments"]) for call in parts[session.turns]])
    return answered([message("Done.")])


def noop(session: Session, body: Body) -> Body:
    """Do nothing: a message, and no tool call."""
    return answered([message("There is nothing to do.")])


def own_address(gateway_url: str | None) -> str:
    """This machine's address as the Gateway sees it: the source address of the route there. Raises Failure."""
    parts = urlsplit(gateway_url or "http://127.0.0.1")
    try:
        family, kind, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return probe.getsockname()[0]
    except OSError as error:
        raise Failure(f"NEMO_GYM_URL={gateway_url}: {error.strerror or error}") from None


Policy = Callable[[Session, Body], Body]


class ModelAPI(ThreadingHTTPServer):
    """The server: the driver opens and closes sessions, `policy(session, body)` answers each turn."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str, policy: Policy, port: int = 0):
        """Listen on `host` and `port` (0: a free one). Raises OSError."""
        self.policy = policy
        self.sessions: dict[str, Session] = {}
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)
        shown = f"[{host}]" if ":" in host else host
        self.base_url = f"http://{shown}:{self.server_address[1]}{BASE_PATH}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def server_bind(self):
        # HTTPServer would look up its own name, which can take seconds and serves nothing here.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "model-api", self.server_address[1]

    def open(self, task: Mapping[str, Any]) -> Session:
        session = Session(task)
        self.sessions[session.id] = session
        return session

    def close(self, session: Session) -> None:
        self.sessions.pop(session.id, None)
        session.ended.set()

    def handle_error(self, request, client_address):
        """Ignore a Gateway that hung up, since its trial has ended; anything else is a fault of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def stop(self) -> None:
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection; every answer is JSON, errors as {"error": {"code", "message"}}."""

    protocol_version = "HTTP/1.1"
    server: ModelAPI
    # Buffer the headers until the body is there, so that an answer is one segment.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self):
        try:
            body = self._body()
            self._send(200, self._answer(self._session(), body))
        except ModelError as error:
            self._send(error.status, {"error": {"code": error.code, "message": error.message}}, error.headers)

    def do_GET(self):
        self._send(404, {"error": {"code": "not_found", "message": f"POST {BASE_PATH}/v1/responses is all there is"}})

    def _body(self):
        try:
            length = int(self.headers.get("Content-Length", ""))
            body = json.loads(self.rfile.read(max(length, 0)))
        except (ValueError, RecursionError):
            self.close_connection = True
            raise ModelError(400, "the body is not JSON with a Content-Length") from None
        if self.path != f"{BASE_PATH}/v1/responses":
            raise ModelError(404, f"POST {BASE_PATH}/v1/responses is all there is")
        return body

    def _session(self):
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        session = self.server.sessions.get(token) if scheme == "Bearer" else None
        if session is None:
            raise ModelError(401, "the bearer token is no open session's id")
        return session

    def _answer(self, session, body):
        items = _items(body)
        with session.lock:
            try:
                response = self.server.policy(session, body)
            except ModelError as error:
                session.fault = error
                raise
            session.take(items)
            session.give(response)
        return response

    def _send(self, status, payload, headers=None):
        data = json.dumps(payload).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Log nothing: the driver counts the calls."""


def _items(body):
    """The request's history as a list. Raises ModelError if the trainer would not understand it."""
    items = body.get("input") if isinstance(body, dict) else None
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": items}]
    if not isinstance(items, list) or not items or not all(isinstance(item, dict) for item in items):
        raise ModelError(400, "input is not a text or a list of items")
    for index, item in enumerate(items):
        kind = item.get("type", "message")
        if kind not in KNOWN_ITEMS:
            raise ModelError(400, f"input[{index}]: items of type {str(kind)[:40]!r} are not understood")
        if kind == "function_call_output" and not item.get("output"):
            raise ModelError(400, f"input[{index}]: a function_call_output without output")
    return items
