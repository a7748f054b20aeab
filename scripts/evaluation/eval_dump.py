"""A rollout dump in the shape of an evaluation: what a training or a rehearsal left, for reading and comparing.

Guarantees: every sample of the dump is there once, with its reward or as a failure; a row is told
by its id, else by its group, and where a dump has neither, each sample is a row of its own. A
dump has no configuration, no prompt and no ground truth, so those are empty; its text is taken
apart by the tags of Qwen's format.
"""

from typing import NamedTuple

from policy import transcript


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
        "output": transcript.items(str(item["response"] or "")),
    }
