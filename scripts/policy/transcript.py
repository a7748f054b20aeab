"""A rollout's items as the text of its transcript, and the items of such a text, ours or the trainer's.

`<think>`, `<tool_call>` and `<tool_response>` blocks become reasoning, function_call and
function_call_output items, the text between them messages; marks of the chat template are left out.
Guarantees:
- any text gives items, and no word of it is lost
- a tool call that is not JSON keeps its text as arguments
- a tool's answer cannot pass for a call: a block ends only at its own mark at a line's end or start,
  and tools answer with JSON on one line
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

MARKS = re.compile(r"<\|im_start\|>(?:user|assistant|tool)?\n?|<\|im_end\|>\n?|<\|endoftext\|>\n?")
BLOCK = re.compile(
    r"<(think|tool_call|tool_response)>\n?(.*?)(?:(?<=\n)</\1>|</\1>(?=\s*(?:<\||$|\n))|\Z)\n?", re.DOTALL
)


def items(text: str) -> list[dict[str, Any]]:
    """The Responses items of a transcript, in order."""
    parsed, at = [], 0
    for block in BLOCK.finditer(text):
        parsed += _message(text[at : block.start()])
        parsed.append(KINDS[block[1]](block[2].strip("\n")))
        at = block.end()
    return parsed + _message(text[at:])


def _message(text):
    text = MARKS.sub("", text).strip("\n")
    content = [{"type": "output_text", "text": text}]
    return [{"type": "message", "role": "assistant", "content": content}] if text.strip() else []


def _call(text):
    try:
        call = json.loads(text)
        name, arguments = call["name"], call.get("arguments")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # The model wrote something else than a call.
        return {"type": "function_call", "name": "", "arguments": text}
    # Arguments that are a text, not an object, stay as the model wrote them.
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"type": "function_call", "name": str(name), "arguments": arguments}


KINDS = {
    "think": lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]},
    "tool_call": _call,
    "tool_response": lambda text: {"type": "function_call_output", "output": text},
}


def paired(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items, with call ids set so that the n-th result answers the n-th call."""
    counts = {"function_call": 0, "function_call_output": 0}
    for item in items:
        if item["type"] in counts:
            counts[item["type"]] += 1
            item["call_id"] = f"call_{counts[item['type']]}"
    return items


def transcript(items: list[dict[str, Any]]) -> str:
    """The text of history items as a Qwen model writes and reads them."""
    return "\n".join(filter(None, map(_item_text, items)))


def _item_text(item):
    kind = item.get("type", "message")
    if kind == "function_call":
        return f"<tool_call>\n{_call_text(item)}\n</tool_call>"
    if kind == "function_call_output":
        return f"<tool_response>\n{_plain(item.get('output'))}\n</tool_response>"
    if kind == "reasoning":
        return f"<think>\n{_plain(item.get('content') or item.get('summary'))}\n</think>"
    return _plain(item.get("content"))


def _call_text(item):
    arguments = item.get("arguments")
    # Arguments that are not JSON stay as the model wrote them.
    with suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(arguments)
    return json.dumps({"name": item.get("name"), "arguments": arguments}, ensure_ascii=False)


def _plain(content):
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in content)
    return "" if content is None else str(content)
