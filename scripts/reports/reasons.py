"""Why a sample earned its reward, in words, with the calls and differences that show it.

Guarantees:
- The reward is the recorded reward; where a replay of the calls gives another, the reason says so.
- A sample without a reward is never described as wrong.
- Nothing is said of states that were not replayed: without a ground truth, or with a trajectory that is not in the run.
"""

from typing import Any

from reports import samples
from reports.samples import Sample
from servers import replay

# The Gateway cut these short and gave 0 itself; the verifier saw none of it.
UNVERIFIED = "too_many_calls"
SHOWN_FAULTS = 3


def explain(sample: Sample) -> dict[str, Any]:
    """{"why": text, "differences": [...], "steps": [per call], "replayed": whether states were compared}."""
    calls = samples.calls(sample)
    if sample["reward"] is None:
        return _reason(f"ended without reward: {_named(sample['error']) or sample['status']}")
    code = (sample["error"] or {}).get("code")
    if code == UNVERIFIED:
        return _reason(f"{sample['status']}: {_named(sample['error'])}")
    cut = [f"truncated: {_named(sample['error']) or 'no reason named'}"] if sample["status"] == "truncated" else []
    if sample["ground_truth"] is None or sample["output"] is None:
        return _reason("; ".join([*cut, "not compared: the run does not hold the row's ground truth"]))
    replayed = replay.explain(calls, sample["ground_truth"])
    causes = _faults(calls, replayed["steps"]) if calls else ["called no tool"]
    effect = [_difference(replayed)]
    reasons = [*cut, *(causes + effect if replayed["differences"] else effect + causes)]
    if replayed["equal"] is not None and bool(sample["reward"]) != replayed["equal"]:
        reasons.insert(0, f"recorded reward {sample['reward']:g}, but a replay here gives {int(replayed['equal'])}")
    return _reason("; ".join(reasons), replayed["differences"], replayed["steps"], replayed=True)


def _reason(why: str, differences: Any = (), steps: Any = (), replayed: bool = False) -> dict[str, Any]:
    return {"why": why, "differences": list(differences), "steps": list(steps), "replayed": replayed}


def _named(error: dict[str, Any] | None) -> str:
    """An error as `code (type): cause`."""
    error = error or {}
    kind = f" ({error['type']})" if error.get("type") else ""
    cause = f": {error['cause']}" if error.get("cause") else ""
    return f"{error.get('code') or ''}{kind}{cause}"


def _difference(replayed: replay.Explanation) -> str:
    if replayed["fault"]:
        return f"the verifier cannot compare these states: {replayed['fault']}"
    if not replayed["differences"]:
        return "nothing differs"
    first, *more = replayed["differences"]
    return first["words"] + (f", and {len(more)} more" if more else "")


def _faults(calls: list[dict[str, Any]], steps: list[replay.Step]) -> list[str]:
    """Calls that could not be made, the first few by number."""
    faults = [
        f"call {number} {call['name'][:40]}: {step['fault']}"
        for number, (call, step) in enumerate(zip(calls, steps, strict=True), 1)
        if step["fault"]
    ]
    more = [f"{len(faults) - SHOWN_FAULTS} more calls failed"] if len(faults) > SHOWN_FAULTS else []
    return faults[:SHOWN_FAULTS] + more
