"""A rollout dump in the shape of an evaluation: what a training or a rehearsal left, for reading and comparing.

Guarantees: every sample of the dump is there once, with its reward or as a failure; a row is told
by its id, else by its group, and where a dump has neither, each sample is a row of its own. A
dump has no configuration, no prompt and no ground truth, so those are empty; its text is taken
apart by the tags of Qwen's format.
"""

import json
import re
from contextlib import suppress
from typing import NamedTuple

TAGGED = re.compile(r"<(tool_call|tool_response|think)>\n?(.*?)\n?</\1>", re.DOTALL)


class Evaluation(NamedTuple):
    """What a source holds: its configuration (None for a dump), samples with a reward, and those without."""

    config: dict | None
    samples: list
    failures: list


def evaluation(records):
    """The records of a rollout dump as an Evaluation; rows are numbered as they come, and repeats within a row."""
    rows, repeats, found = {}, {}, Evaluation(None, [], [])
    for index, item in enumerate(records):
        key = next((f"{name} {item[name]}" for name in ("row_id", "group_id") if item.get(name) is not None), index)
        row = rows.setdefault(key, len(rows))
        repeats[row] = repeats.get(row, -1) + 1
        sample = _sample_of_dump(item, row, repeats[row])
        (found.failures if sample["reward"] is None else found.samples).append(sample)
    return found


def _sample_of_dump(item, row, repeat):
    prompt, response = item.get("prompt_token_count"), item.get("response_token_count")
    error, reward = item.get("error"), item["reward"]
    # The trainer's words for what has no reward are many; a number is a number.
    rewarded = isinstance(reward, (int, float)) and not isinstance(reward, bool) and not error
    return {
        "row": row,
        "row_id": item.get("row_id"),
        "category": item.get("category"),
        "repeat": repeat,
        "request_id": item.get("request_id"),
        "status": item["status"],
        "error": {"code": "no_reward", "cause": str(error)} if error else None,
        "reward": float(reward) if rewarded else None,
        "metrics": {"model_calls": item["agent_turns"]},
        "usage": None if response is None else {"input_tokens": prompt, "output_tokens": response},
        "seconds": item.get("seconds"),
        "input": [],
        "ground_truth": [],
        "output": items_of_text(str(item["response"] or "")),
    }


def items_of_text(text):
    """The items of a dump's text: calls, tool results and thoughts by their tags, messages between them."""
    items, end = [], 0
    for match in TAGGED.finditer(text):
        items += _message(text[end : match.start()])
        items.append(_TAGS[match[1]](match[2]))
        end = match.end()
    return [*items, *_message(text[end:])]


def _message(text):
    content = [{"type": "output_text", "text": text.strip()}]
    return [{"type": "message", "role": "assistant", "content": content}] if text.strip() else []


def _call(text):
    with suppress(ValueError, RecursionError):
        call = json.loads(text)
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            arguments = call.get("arguments")
            arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
            return {"type": "function_call", "name": call["name"], "arguments": arguments}
    # What the model wrote in place of a call, as it stands.
    return {"type": "function_call", "name": "", "arguments": text}


_TAGS = {
    "tool_call": _call,
    "tool_response": lambda text: {"type": "function_call_output", "output": text},
    "think": lambda text: {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]},
}
