"""What an endpoint's reply is: a checked answer of the policy, a fault of the policy, or a fault of the endpoint.

The Gateway's model calls and the evaluation read replies here, so that the same event means the same in both.
README.md of this room lists what each thing that an endpoint can do becomes.

Guarantees:
- A checked answer holds what NeMo Gym's agent reads (items, status, usage) and nothing that was merely echoed.
- What could change the policy's actions is never guessed: a reply that is cut, contradicts itself, or lost a call
  is an EndpointFault.
- An EndpointFault carries the endpoint's own words, made printable, without the secrets that `redact` knows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from policy.replies import EndpointFault, Json, Reply, fault_of, name_of, nesting, object_in, words_of

MAX_TOKENS = 2**40
# Why a chat answer may end. Any other reason is not the policy's: the answer is no answer.
ENDINGS = {
    None: None, "stop": None, "eos": None, "eos_token": None, "tool_calls": None, "function_call": None,
    "length": "max_output_tokens", "content_filter": "content_filter",
}  # fmt: skip
# The kind of fault of an answer that speaks of calls and holds none: its server's parser dropped them.
NO_CALLS = "no_calls"
ENDINGS_WITH_CALLS = ("tool_calls", "function_call")
UNFINISHED = ("queued", "in_progress")
BROKEN = ("failed", "cancelled")
FINISHED = ("completed", None)
# Items that a server adds of its own accord; they carry no action of the policy.
DECORATIVE = frozenset({
    "compaction", "mcp_list_tools", "web_search_call", "file_search_call", "code_interpreter_call",
    "image_generation_call",
})  # fmt: skip


def read_responses(reply: Reply, first_call: bool, redact: Callable[[str], str] = str) -> Json:
    """The answer in a reply on the Responses wire.

    `first_call`: whether the policy has done nothing yet, so that a full context is not its doing.
    Raises EndpointFault, PolicyFault.
    """
    with nesting(reply, redact):
        raw = object_in(reply, first_call, redact)
        return _checked(raw, lambda kind, text: fault_of(reply, kind, text, redact))


def read_chat(
    reply: Reply, first_call: bool, to_items: Callable[[Json], list[Json]], redact: Callable[[str], str] = str
) -> Json:
    """The Responses answer to a reply on the chat wire; `to_items` turns a clean assistant message into items.

    Raises EndpointFault, PolicyFault.
    """

    def fault(kind: str, text: str) -> EndpointFault:
        return fault_of(reply, kind, text, redact)

    with nesting(reply, redact):
        raw = object_in(reply, first_call, redact)
        message, reason = _chat_message(raw, fault)
        answer = {"output": to_items(message)} | {name: raw.get(name) for name in ("usage", "model", "id")}
        if reason:
            answer |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
        return _checked(answer, fault)


def closing() -> Json:
    """An answer on which NeMo Gym's agent ends its loop, for a policy that cannot go on."""
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    return {"id": f"resp_{uuid4().hex}", "created_at": time.time(), "model": "", "object": "response", "output": [],
            "tools": [], "tool_choice": "auto", "parallel_tool_calls": False} | cut  # fmt: skip


# --- a chat answer -------------------------------------------------------------------------


def _chat_message(raw: Json, fault: Callable[[str, str], EndpointFault]) -> tuple[Json, str | None]:
    """(the assistant's message in a clean form, why it was cut short or None). Raises EndpointFault."""
    choices = raw.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        wrong = "; is that the Responses wire? (WIRE=responses)" if "output" in raw else ""
        raise fault("schema", f"gave no chat completion: choices is {name_of(choices)}{wrong}")
    choice = choices[0]
    reason, error = choice.get("finish_reason"), choice.get("error")
    if error:
        raise fault("ended_early", f"broke off its answer (finish_reason {reason!r}): {words_of(error)}")
    if not (reason is None or isinstance(reason, str)) or reason not in ENDINGS:
        raise fault("ended_early", f"ended its answer for a reason that is not the policy's: finish_reason {reason!r}")
    message = choice.get("message")
    if not isinstance(message, dict):
        raise fault("schema", f"gave no chat completion: choices[0].message is {name_of(message)}")
    if message.get("role") not in (None, "assistant"):
        raise fault("schema", f"gave a message of the role {message['role']!r}")
    calls = _chat_calls(message, fault)
    if reason in ENDINGS_WITH_CALLS and not calls:
        raise fault(NO_CALLS, f"says finish_reason {reason!r}, and its message holds no call")
    text, thoughts, refusal = _chat_text(message.get("content"))
    said = [message.get(name) for name in ("reasoning_content", "reasoning")]
    thoughts = next((_plain(thought) for thought in said if _plain(thought)), thoughts)
    refusal = _plain(message.get("refusal")) or refusal
    clean: Json = {"role": "assistant", "content": text or refusal}
    if thoughts:
        clean["reasoning_content"] = thoughts
    if calls:
        clean["tool_calls"] = calls
    return clean, ENDINGS[reason]


def _chat_calls(message: Json, fault: Callable[[str, str], EndpointFault]) -> list[Json]:
    """A message's calls, each with id, name and arguments. Raises EndpointFault for one that lost a part."""
    given = message.get("tool_calls")
    legacy = message.get("function_call")
    if given is None and legacy is not None:
        given = [{"function": legacy}]
    if given is None:
        return []
    if not isinstance(given, list):
        raise fault("schema", f"gave tool_calls as {name_of(given)}")
    calls = []
    for place, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type") not in (None, "function"):
            raise fault("schema", f"gave tool_calls[{place}] that is no call of a function")
        name, arguments = _call(function, f"tool_calls[{place}].function", fault)
        function = {"name": name, "arguments": arguments}
        calls.append({"id": _identity(call.get("id")), "type": "function", "function": function})
    _refuse_twice([(call["id"], call["function"]) for call in calls], fault)
    return calls


def _chat_text(content: Any) -> tuple[str, str, str]:
    """(text, thoughts, refusal) of a message's content: a text, or parts of several kinds."""
    if isinstance(content, str):
        return _repaired(content), "", ""
    text, thoughts, refusal = [], [], []
    for part in content if isinstance(content, list) else []:
        if isinstance(part, str):
            text.append(part)
        elif isinstance(part, dict):
            if part.get("type") in ("thinking", "reasoning"):
                thoughts.append(_plain(part.get("thinking") or part.get("reasoning") or part.get("text")))
            elif part.get("type") == "refusal":
                refusal.append(_plain(part.get("refusal")))
            else:
                text.append(_plain(part.get("text")))
    return _repaired("".join(text)), _repaired("".join(thoughts)), _repaired("".join(refusal))


def _plain(value: Any) -> str:
    """The text in what may be a text, or parts of one."""
    if isinstance(value, str):
        return _repaired(value)
    if isinstance(value, list):
        return "".join(_plain(part.get("text") if isinstance(part, dict) else part) for part in value)
    return ""


# --- a Responses answer --------------------------------------------------------------------


def _checked(raw: Json, fault: Callable[[str, str], EndpointFault]) -> Json:
    """A raw Responses answer as NeMo Gym's agent takes it: what was asked for, and nothing that was echoed."""
    status, output = raw.get("status"), raw.get("output")
    if isinstance(status, str) and status in BROKEN:
        raise fault("error_body", f"answered with status {status!r} and no word on why")
    if isinstance(status, str) and status in UNFINISHED:
        raise fault("not_finished", f"answered with status {status!r}: the answer is not finished")
    if not isinstance(output, list):
        wrong = "; is that the chat wire? (WIRE=chat)" if "choices" in raw else ""
        raise fault("schema", f"gave no Responses answer: output is {name_of(output)}{wrong}")
    if status not in FINISHED and status != "incomplete":
        raise fault("schema", f"answered with a status that is not known: {status!r}")
    items = [clean for place, item in enumerate(output) if (clean := _item(item, f"output[{place}]", fault))]
    _refuse_twice([(item["call_id"], item) for item in items if item["type"] == "function_call"], fault)
    answer: Json = {
        "id": _text(raw.get("id"), f"resp_{uuid4().hex}"),
        "created_at": time.time(),
        "model": _text(raw.get("model"), ""),
        "object": "response",
        "output": items,
        # Never read again by the agent, and large: the row's tools would travel with each answer.
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "status": "completed",
    }
    if reason := _cut(status, raw.get("incomplete_details")):
        answer |= {"status": "incomplete", "incomplete_details": {"reason": reason}}
    if usage := _usage(raw.get("usage")):
        answer["usage"] = usage
    return answer


def _cut(status: Any, details: Any) -> str | None:
    """Why an answer was cut short, in NeMo Gym's words; None for one that is whole."""
    reason = details.get("reason") if isinstance(details, dict) else None
    if status != "incomplete" and reason not in ("max_output_tokens", "max_tokens", "length", "content_filter"):
        return None
    return "content_filter" if reason == "content_filter" else "max_output_tokens"


def _item(item: Any, place: str, fault: Callable[[str, str], EndpointFault]) -> Json | None:
    """An item as the agent takes it; None for one that carries nothing of the policy's."""
    if not isinstance(item, dict):
        raise fault("schema", f"gave {place} as {name_of(item)}")
    kind = item.get("type") or ("function_call" if "arguments" in item else "message" if "content" in item else None)
    if not isinstance(kind, str):
        raise fault("schema", f"gave {place} of a type that is {name_of(kind)}")
    if kind == "function_call":
        name, arguments = _call(item, place, fault)
        identity = _identity(item.get("call_id") or item.get("id"))
        return {"type": "function_call", "call_id": identity, "name": name, "arguments": arguments}
    if "arguments" in item or (kind not in ("message", "reasoning") and "name" in item and "input" in item):
        raise fault("schema", f"gave {place}, a call of the type {str(kind)[:60]!r}, which no tool here answers")
    if kind == "message":
        if item.get("role") not in (None, "assistant"):
            raise fault("schema", f"gave {place}, a message of the role {str(item['role'])[:60]!r}")
        if not isinstance(item.get("content"), (str, list, type(None))):
            raise fault("schema", f"gave {place}, a message whose content is {name_of(item['content'])}")
        return {
            "type": "message", "id": _text(item.get("id"), f"msg_{uuid4().hex}"), "role": "assistant",
            "status": "completed", "content": _parts(item.get("content")),
        }  # fmt: skip
    if kind == "reasoning":
        thoughts = _plain(item.get("summary")) or _plain(item.get("content"))
        summary = [{"type": "summary_text", "text": thoughts}] if thoughts else []
        return {"type": "reasoning", "id": _text(item.get("id"), f"rs_{uuid4().hex}"), "summary": summary}
    if kind in DECORATIVE:
        return None
    raise fault("schema", f"gave {place} of a type that is not known: {str(kind)[:60]!r}")


def _parts(content: Any) -> list[Json]:
    """A message's content as parts: texts and refusals."""
    if isinstance(content, list):
        refusals = [part for part in content if isinstance(part, dict) and part.get("type") == "refusal"]
        if refusals:
            return [{"type": "refusal", "refusal": "".join(_plain(part.get("refusal")) for part in refusals)}]
    return [{"type": "output_text", "text": _plain(content), "annotations": []}]


def _call(call: Json, place: str, fault: Callable[[str, str], EndpointFault]) -> tuple[str, str]:
    """(name, arguments as text) of a call. Raises EndpointFault where one is lost or of another kind."""
    name, arguments = call.get("name"), call.get("arguments")
    # An empty name is one that the policy may have written: no tool has it, and the agent says so.
    if not isinstance(name, str):
        raise fault("schema", f"gave {place} without a name: {name_of(name)}")
    if not isinstance(arguments, str):
        raise fault("schema", f"gave {place} ({name[:80]}) with arguments that are {name_of(arguments)}, not a text")
    return _repaired(name), _repaired(arguments)


def _identity(given: Any) -> str:
    """A call's id as a text, a new one where the endpoint gave none."""
    known = isinstance(given, (str, int)) and not isinstance(given, bool) and given != ""
    return _repaired(str(given)) if known else f"call_{uuid4().hex}"


def _refuse_twice(calls: list[tuple[str, Json]], fault: Callable[[str, str], EndpointFault]) -> None:
    """Refuse an answer in which the very same call stands twice, id and all: nobody knows whether it was meant."""
    keys = [(identity, call["name"], call["arguments"]) for identity, call in calls]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise fault("schema", f"gave the same call twice, with one id ({twice[0][:60]}, {twice[1][:60]})")


def _usage(usage: Any) -> Json | None:
    """Token counts as NeMo Gym has them; None where the endpoint counted nothing."""
    if not isinstance(usage, dict):
        return None
    read = _count(usage.get("input_tokens", usage.get("prompt_tokens")))
    written = _count(usage.get("output_tokens", usage.get("completion_tokens")))
    if read is None and written is None:
        return None
    cached = usage.get("input_tokens_details") or usage.get("prompt_tokens_details")
    thought = usage.get("output_tokens_details") or usage.get("completion_tokens_details")
    return {
        "input_tokens": read or 0,
        "output_tokens": written or 0,
        "total_tokens": (read or 0) + (written or 0),
        "input_tokens_details": {"cached_tokens": _inner(cached, "cached_tokens")},
        "output_tokens_details": {"reasoning_tokens": _inner(thought, "reasoning_tokens")},
    }


def _inner(details: Any, name: str) -> int:
    return (_count(details.get(name)) if isinstance(details, dict) else None) or 0


def _count(value: Any) -> int | None:
    """A token count that may come as a whole float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_TOKENS:
        return None
    return int(value) if value == int(value) else None


def _text(value: Any, otherwise: str) -> str:
    return _repaired(value)[:200] if isinstance(value, str) and value else otherwise


def _repaired(text: str) -> str:
    """Text that can be encoded: halves of surrogate pairs become U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
