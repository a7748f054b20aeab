"""A model API for tests: one server, and behind each URL handed out a behaviour of its own.

A behaviour is called with a Call and returns items (a list: the output of a good answer), a dict
(the whole answer with status 200), or an Answer. The server keeps every call it was sent.
"""

import json
import secrets
import socket
import threading
from dataclasses import dataclass

from policy.model_api import answered, function_call, message
from support.http_server import Answer, HttpServer


@dataclass
class Call:
    """One model call: which of its URL's it is (from 0), when it came, its headers and body."""

    turn: int
    body: dict
    headers: dict
    time: float
    connection: socket.socket

    @property
    def outputs(self):
        """Texts of the tool outputs in the history."""
        return [item["output"] for item in self.body["input"] if item.get("type") == "function_call_output"]


class Policy:
    """One behaviour and the base URL under which it answers."""

    def __init__(self, base_url, behaviour):
        self.base_url, self.behaviour, self.calls = base_url, behaviour, []


class ScriptedModel(HttpServer):
    def __init__(self):
        super().__init__()
        self.policies, self.released = {}, threading.Event()

    def stop(self):
        self.released.set()
        super().stop()

    def answer(self, request):
        policy = self.policies.get(request.path.split("/")[1])
        if policy is None or not request.path.endswith("/v1/responses"):
            return 404
        call = Call(len(policy.calls), request.json(), request.headers, request.time, request.connection)
        policy.calls.append(call)
        answer = policy.behaviour(call)
        answer = answered(answer) if isinstance(answer, list) else answer
        return answer if isinstance(answer, Answer) else (200, answer)

    def policy(self, behaviour):
        """Serve a behaviour under a URL of its own."""
        key = secrets.token_hex(6)
        self.policies[key] = Policy(f"{self.url}/{key}", behaviour)
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


def call(name, /, **arguments):
    """Items with one tool call."""
    return [function_call(name, json.dumps(arguments))]


def reasoning():
    """Items with a thought and nothing else."""
    return [{"type": "reasoning", "id": "rs_1", "content": [{"type": "reasoning_text", "text": "Hm."}]}]


DONE = [message("Done.")]
