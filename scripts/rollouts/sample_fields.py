"""What the fields of a stored sample may be: the lines of evaluations and of rollout dumps are held against this.

Guarantees: a line that passes can be sorted, counted, averaged and replayed by all who read it;
what is not there is nobody's fault here, and what a field says is not judged.
"""

import math


def number(value):
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _place(value):
    return type(value) is int and value >= 0


def _name(value):
    return value is None or isinstance(value, str) or number(value)


def _calls(value):
    return value is None or (
        isinstance(value, list)
        and all(
            isinstance(call, dict) and isinstance(call.get("name"), str) and isinstance(call.get("arguments"), str)
            for call in value
        )
    )


def _items(value):
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _optional(holds):
    return lambda value: value is None or holds(value)


def _object(value):
    return isinstance(value, dict)


def _usage(value):
    return isinstance(value, dict) and all(count is None or _place(count) for count in value.values())


def _prompt(value):
    return isinstance(value, str) or _items(value)


NAMED = dict.fromkeys(("row_id", "category", "status"), _name)
TOLD = {"seconds": _optional(number), "ground_truth": _calls, "input": _optional(_prompt)}
FAILURE = NAMED | TOLD | {"row": _place, "repeat": _place, "error": _optional(_object)}
SAMPLE = FAILURE | {"reward": number, "output": _items, "metrics": _object, "usage": _optional(_usage)}
COUNTED = dict.fromkeys(("prompt_token_count", "response_token_count", "sample_index", "rollout_id"), _optional(_place))
DUMPED = NAMED | TOLD | COUNTED | {"group_id": _name}


def fit(record, fields):
    """Whether those of the `fields` (FAILURE, SAMPLE, DUMPED) that a record has are what they may be."""
    return all(holds(record[name]) for name, holds in fields.items() if name in record)
