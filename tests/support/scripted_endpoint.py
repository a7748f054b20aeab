"""An OpenAI-compatible endpoint for tests: both wires, and a policy that knows the rows.

A behaviour is called with an Asked and returns a Reply. The endpoint keeps no history of its own. An answer follows
from the row, from the calls in the history that comes with the request, and from the endpoint's counts of requests
and conversations.
"""

import json
import re
import threading
import time
from dataclasses import dataclass, field

from policy.model_api import function_call, message, spread
from support.http_server import HttpServer

PREFLIGHT = re.compile(r"Call the tool (\S*) now, with exactly these arguments: (.*)\. Say nothing else\.", re.DOTALL)
REPORTED = "scripted-1"
TURN_TOKENS = {"input_tokens": 100, "output_tokens": 10}


@dataclass
class Asked:
    """One request: the calls wanted, those made before, the row's index, and which request and conversation it is."""

    wanted: list
    done: int
    index: int | None
    number: int
    start: int

    @property
    def preflight(self):
        return self.index is None


@dataclass
class Reply:
    calls: list = field(default_factory=list)  # [(name, arguments)]
    text: str = ""
    finish: str | None = None
    status: int | None = 200  # None: hang up without an answer
    headers: dict = field(default_factory=dict)
    body: bytes | None = None


def right(asked):
    """Play the ground truth in five turns at most, then close."""
    offset = 0
    for part in spread(asked.wanted):
        if offset == asked.done:
            return Reply([(call["name"], call["arguments"]) for call in part])
        offset += len(part)
    return Reply(text="Done.")


def idle(asked):
    """Make the calls of the preflight, and none in a row."""
    return right(asked) if asked.preflight else Reply(text="There is nothing to do.")


def where(chosen, then=right, otherwise=idle):
    """Behave as `then` where `chosen(asked)`, else as `otherwise`; the preflight is always passed."""
    return lambda asked: then(asked) if asked.preflight or chosen(asked) else otherwise(asked)


def malformed(asked):
    """The last brace of all arguments lost."""
    reply = right(asked)
    return Reply([(name, arguments.rstrip()[:-1]) for name, arguments in reply.calls], reply.text)


def as_text(asked):
    """Calls as a Qwen model writes them, left in the content."""
    calls = [json.dumps({"name": name, "arguments": json.loads(text)}) for name, text in right(asked).calls]
    return Reply(text="\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls) or "Done.", finish="stop")


def empty_list(asked):
    """finish_reason tool_calls, and no call."""
    return Reply(finish="tool_calls" if right(asked).calls else "stop")


def failing(asked):
    """Every twentieth request is answered with 503."""
    return Reply(status=503) if asked.number % 20 == 19 else right(asked)


class ScriptedEndpoint(HttpServer):
    """`requests` holds (path, headers, body) of each; `most` is how many were answered at once."""

    def __init__(self, task_rows, behaviour=right, delay_s=0):
        super().__init__()
        self.behaviour, self.delay_s, self.requests, self.starts = behaviour, delay_s, [], {}
        self.rows = {
            _user_text(row["responses_create_params"]["input"]): (index, row) for index, row in enumerate(task_rows)
        }
        self.lock, self.at_once, self.most = threading.Lock(), 0, 0

    def model_calls(self):
        return [body for path, _, body in self.requests if path != "/v1/models"]

    def answer(self, request):
        if request.method == "GET":
            self.requests.append((request.path, request.headers, None))
            return 200, {"object": "list", "data": [{"id": REPORTED, "object": "model"}]}
        if request.path not in ENCODED:
            return 404, {"error": {"message": "no such route"}}
        body = request.json()
        items = body.get("input") or body.get("messages")
        with self.lock:
            asked = self._asked(_user_text(items), items, len(self.requests))
            self.requests.append((request.path, request.headers, body))
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        time.sleep(self.delay_s)
        reply = self.behaviour(asked)
        with self.lock:
            self.at_once -= 1
        if reply.status is None:
            return None
        if reply.status != 200:
            return reply.status, {"error": {"message": "as scripted"}}, reply.headers
        return 200, reply.body or ENCODED[request.path](reply, sum(map(_is_policys, items)))

    def _asked(self, text, items, number):
        done = sum(item.get("type") == "function_call" for item in items)
        done += sum(len(item.get("tool_calls") or []) for item in items)
        if match := PREFLIGHT.fullmatch(text):
            return Asked([{"name": match[1], "arguments": match[2]}], done, None, number, 0)
        index, row = self.rows[text]
        first = not any(map(_is_policys, items))
        self.starts[index] = self.starts.get(index, -1) + first
        return Asked(row["ground_truth"], done, index, number, self.starts[index])


def as_responses(reply, turn):
    items = [function_call(name, arguments) for name, arguments in reply.calls]
    items += [message(reply.text)] if reply.text or not items else []
    return {"id": "resp_1", "object": "response", "model": REPORTED, "output": items, "usage": TURN_TOKENS}


def as_chat(reply, turn):
    calls = [
        {"id": f"call_{turn}_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(reply.calls)
    ]
    message = {"role": "assistant", "content": reply.text or None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": reply.finish or ("tool_calls" if calls else "stop")}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {"id": "chat_1", "object": "chat.completion", "model": REPORTED, "choices": [choice], "usage": usage}


ENCODED = {"/v1/responses": as_responses, "/v1/chat/completions": as_chat}


def _user_text(items):
    content = [item["content"] for item in items if item.get("role") == "user"][-1]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _is_policys(item):
    return item.get("role") == "assistant" or item.get("type") == "function_call"
