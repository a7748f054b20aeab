"""A Gateway whose answers a test lists by route: they are given in order, the last one for ever.

An answer is a status, a tuple (status, body, headers), DROP (close without a word) or Hold(seconds, answer). The
Gateway keeps every request, and can go away and come back on its port.
"""

import threading
import time
from typing import NamedTuple

from support import http_server

DROP = None


class Hold(NamedTuple):
    seconds: float
    answer: object


class Request(http_server.Request):
    @property
    def route(self):
        """create, get, renew or abort."""
        last = self.path.rpartition("/")[2]
        return "get" if self.method == "GET" else "create" if last == "trials" else last


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


class ScriptedGateway(http_server.HttpServer):
    """`script` maps create, get, renew and abort to lists of answers."""

    def __init__(self, **script):
        super().__init__()
        self.script = {route: list(script.get(route, answers)) for route, answers in DEFAULTS.items()}
        self.requests = []
        self._lock = threading.Lock()

    def come(self):
        self.start()

    def go(self):
        self.stop()

    def answer(self, request):
        request = Request(*request)
        with self._lock:
            self.requests.append(request)
            answers = self.script[request.route]
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Hold):
            time.sleep(answer.seconds)
            return answer.answer
        return answer

    def seen(self, route):
        return [request for request in self.requests if request.route == route]

    def wait_for(self, route, count=1, seconds=10):
        """Block until `route` was asked `count` times."""
        end = time.monotonic() + seconds
        while len(self.seen(route)) < count:
            assert time.monotonic() < end, f"{route} was asked {len(self.seen(route))} times, not {count}"
            time.sleep(0.01)
