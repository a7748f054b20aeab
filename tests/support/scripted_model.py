"""A model API for tests: one server, and behind each URL handed out a behaviour of its own.

A behaviour is called with a Call and returns items (a list: the output of a good answer), a dict
(the whole answer with status 200), or an Answer. The server keeps every call it was sent.
"""

import json
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from policy.model_api import answered, function_call, message


@dataclass
class Call:
    """One model call: which of its URL's it is (from 0), when it came, its headers and body."""

    turn: int
    body: dict
    headers: dict
    time: float = field(default_factory=time.monotonic)
    connection: socket.socket = field(default=None, repr=False)

    @property
    def outputs(self):
        """Texts of the tool outputs in the history."""
        return [item["output"] for item in self.body["input"] if item.get("type") == "function_call_output"]


class Answer(NamedTuple):
    """A status and what goes with it. With `cut`, the connection ends before the declared length."""

    status: int = 200
    body: bytes | dict = b""
    headers: dict = {}
    cut: bool = False


class Policy:
    """One behaviour and the base URL under which it answers."""

    def __init__(self, base_url, behaviour):
        self.base_url, self.behaviour, self.calls = base_url, behaviour, []


class ScriptedModel:
    """The server. Context manager."""

    def __enter__(self):
        self.policies, self.released = {}, threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def policy(self, behaviour):
        """Serve a behaviour under a URL of its own."""
        key = secrets.token_hex(6)
        self.policies[key] = Policy(f"http://127.0.0.1:{self.port}/{key}", behaviour)
        return self.policies[key]

    def script(self, *answers):
        """Serve these answers in turn, the last one for ever."""
        return self.policy(lambda call: answers[min(call.turn, len(answers) - 1)])

    def hanging(self):
        """Serve no answer until the tests end."""
        return self.policy(lambda call: self.released.wait(300) and [message("late")])

    def oracle(self, row):
        """Play a row's ground truth, one call a turn, then close."""
        calls = [[function_call(call["name"], call["arguments"])] for call in row["ground_truth"]]
        return self.script(*calls, [message("Done.")])

    def _handler(model):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                policy = model.policies.get(self.path.split("/")[1])
                if policy is None or not self.path.endswith("/v1/responses"):
                    return self.write(Answer(404))
                call = Call(len(policy.calls), json.loads(text), dict(self.headers), connection=self.connection)
                policy.calls.append(call)
                answer = policy.behaviour(call)
                answer = answered(answer) if isinstance(answer, list) else answer
                self.write(answer if isinstance(answer, Answer) else Answer(200, answer))

            do_GET = do_POST

            def write(self, answer):
                data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                try:
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data) + 100 * answer.cut))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the Gateway has ended the call
                    self.close_connection = True
                self.close_connection = self.close_connection or answer.cut

            def log_message(self, *_):
                pass

        return Handler


def call(name, /, **arguments):
    """Items with one tool call."""
    return [function_call(name, json.dumps(arguments))]


def reasoning():
    """Items with a thought and nothing else."""
    return [{"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "Hm."}]}]


DONE = [message("Done.")]
