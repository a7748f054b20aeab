"""The model API of a rehearsal or an evaluation, in the shape of the trainer's, and policies behind it.

`POST <base>/v1/responses` with `Authorization: Bearer <session id>`; the session id decides
whose turn is answered. Guarantees: an unknown session id gets 401 and learns nothing; the
calls of one session are answered one at a time; an answer leaves out the fields that the
trainer's API may leave out, and a token count is given only where an endpoint counted;
session ids appear in no log and no error. It does not sample, tokenize or train: the policy
is the row's ground truth, a fixed sentence, or what the driver brings (model_wire.py).
"""

import json
import secrets
import socket
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from common.failure import Failure

BASE_PATH = "/agentic_api"
# NeMo Gym's agent makes six model calls at most; the last one is for the closing message.
TURNS_WITH_CALLS = 5
KNOWN_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning"})


class ModelError(Exception):
    """A model call that gets no answer: HTTP status, message, headers to send along, whether another try may help.

    `kind` says what happened, as the Gateway's faults of endpoints do.
    """

    def __init__(self, status, message, headers=None, again=False, kind="status"):
        super().__init__(message)
        self.status, self.message, self.headers, self.again = status, message, headers or {}, again
        self.kind = kind


class Session:
    """One sample as the model API sees it: its task, its secret id, and the history it was sent."""

    def __init__(self, task):
        self.task, self.id = task, secrets.token_urlsafe(32)
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.turns, self.branches = 0, 0
        self.prompt, self.history, self.answer = None, [], []
        self.usages, self.incomplete, self.fault = [], None, None

    def take(self, items):
        """Note a request's history; one that does not extend the history before starts a branch."""
        if self.prompt is None:
            self.prompt = items
        elif items[: len(self.history)] != self.history:
            self.branches += 1
        self.history = items

    def give(self, response):
        """Note the answer that was given."""
        self.turns += 1
        self.answer = response.get("output") or []
        self.usages.append(response.get("usage") or {})
        self.incomplete = (response.get("incomplete_details") or {}).get("reason")

    def transcript(self):
        """The items that followed the prompt: what the model said and what the tools answered."""
        if self.prompt is None:
            return []
        return [*self.history[len(self.prompt) :], *self.answer]

    def token_counts(self):
        """(prompt, response, total) tokens of the sample, tool outputs in the response; None where not counted."""
        first, last = (self.usages[0], self.usages[-1]) if self.usages else ({}, {})
        prompt = first.get("input_tokens")
        if prompt is None or last.get("input_tokens") is None or last.get("output_tokens") is None:
            return None, None, None
        total = last["input_tokens"] + last["output_tokens"]
        return prompt, total - prompt, total


def message(text):
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": _id("msg"), "role": "assistant", "status": "completed", "content": content}


def function_call(name, arguments):
    """A tool call; `arguments` is the JSON text of an object."""
    fields = {"name": name, "arguments": arguments, "status": "completed"}
    return {"type": "function_call", "id": _id("fc"), "call_id": _id("call"), **fields}


def _id(prefix):
    return f"{prefix}_{secrets.token_hex(8)}"


def answered(items):
    """A completed answer as the trainer's API gives it: no usage details, no echo of tools and choices."""
    fields = {"object": "response", "created_at": int(time.time()), "model": "model"}
    return {"id": _id("resp"), **fields, "status": "completed", "output": items}


def spread(calls, turns=TURNS_WITH_CALLS):
    """Cut `calls` into at most `turns` parts in order, their sizes as equal as they can be."""
    count = min(len(calls), turns)
    edges = [round(index * len(calls) / count) for index in range(count + 1)] if count else []
    return [calls[start:end] for start, end in zip(edges, edges[1:], strict=False)]


def oracle(session, body):
    """Play the row's ground truth, then close with a message."""
    parts = spread(session.task["metadata"]["ground_truth"])
    if session.turns < len(parts):
        return answered([function_call(call["name"], call["arguments"]) for call in parts[session.turns]])
    return answered([message("Done.")])


def noop(session, body):
    """Do nothing: a message, and no tool call."""
    return answered([message("There is nothing to do.")])


def own_address(gateway_url):
    """This machine's address as the Gateway sees it: the one the system takes to reach it. Raises Failure."""
    parts = urlsplit(gateway_url or "http://127.0.0.1")
    try:
        family, kind, _, _, address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return probe.getsockname()[0]
    except OSError as error:
        raise Failure(f"NEMO_GYM_URL={gateway_url}: {error.strerror or error}") from None


class ModelAPI(ThreadingHTTPServer):
    """The server: sessions are opened and closed by the driver, turns are answered by `policy(session, body)`."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host, policy, port=0):
        """Listen on `host` and `port` (0: a free one). Raises OSError."""
        self.policy, self.sessions = policy, {}
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), Handler)
        shown = f"[{host}]" if ":" in host else host
        self.base_url = f"http://{shown}:{self.server_address[1]}{BASE_PATH}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def server_bind(self):
        # HTTPServer would look its own name up, which can take seconds and is used for nothing here.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "model-api", self.server_address[1]

    def open(self, task):
        session = Session(task)
        self.sessions[session.id] = session
        return session

    def close(self, session):
        self.sessions.pop(session.id, None)
        session.ended.set()

    def handle_error(self, request, client_address):
        """Say nothing of a Gateway that hung up: its trial has ended. Anything else is a fault of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """One connection; every answer is JSON, errors as {"error": {"code", "message"}}."""

    protocol_version = "HTTP/1.1"
    # One segment an answer: the headers wait in the buffer for the body.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_POST(self):
        try:
            body = self._body()
            self._send(200, self._answer(self._session(), body))
        except ModelError as error:
            self._send(error.status, {"error": {"code": "model_error", "message": error.message}}, error.headers)

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
        """Say nothing: the driver counts the calls."""


def _items(body):
    """The request's history as a list, refused where the trainer would not understand it."""
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
