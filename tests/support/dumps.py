"""Samples of a rollout dump with the trainer's fields, and a dump that grows."""

import json

TEXT = '<tool_call>\n{"name": "t", "arguments": {}}\n</tool_call>\n<tool_response>\nok\n</tool_response>\nDone.'


def sample(**changes):
    fields = {"rollout_id": 0, "sample_index": 0, "status": "completed", "reward": 1.0, "agent_turns": 2}
    tokens = {"prompt_token_count": 5, "response_token_count": 5, "total_token_count": 10}
    return fields | tokens | {"response": TEXT} | changes


def append(path, *items, end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(item) + "\n" for item in items)[: None if end else -1])
