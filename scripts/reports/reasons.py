"""Why a sample earned what it earned, in words, with the calls and differences that show it.

Guarantees: the reward is the recorded one, and where the replay of its calls gives another, the
reason says so; a sample without a reward is never described as wrong; nothing is said of states
that were not replayed (no ground truth, or a trajectory that is not in the run).
"""

from reports import samples
from servers import replay

# The Gateway cut these short and gave 0 itself; the verifier saw none of it.
UNVERIFIED = "too_many_calls"
SHOWN_FAULTS = 3


def explain(sample):
    """{"why": text, "differences": [...], "steps": [one for each call], "replayed": whether states were compared}."""
    made = samples.calls(sample)
    if sample["reward"] is None:
        return _found(f"ended without reward: {_named(sample['error']) or sample['status']}")
    code = (sample["error"] or {}).get("code")
    if code == UNVERIFIED:
        return _found(f"{sample['status']}: {_named(sample['error'])}")
    if sample["ground_truth"] is None or sample["output"] is None:
        return _found("; ".join([*_cut(sample), "not compared: the run does not hold the row's ground truth"]))
    found = replay.explain(made, sample["ground_truth"])
    causes = _faults(made, found["steps"]) if made else ["called no tool"]
    effect = _difference(found)
    reasons = [*_cut(sample), *(causes + effect if found["differences"] else effect + causes)]
    if found["equal"] is not None and bool(sample["reward"]) != found["equal"]:
        reasons.insert(0, f"recorded reward {sample['reward']:g}, but a replay here gives {int(found['equal'])}")
    return _found("; ".join(reasons), found["differences"], found["steps"], replayed=True)


def _found(why, differences=(), steps=(), replayed=False):
    return {"why": why, "differences": list(differences), "steps": list(steps), "replayed": replayed}


def _named(error):
    """An error as `code (type): cause`."""
    error = error or {}
    kind = f" ({error['type']})" if error.get("type") else ""
    cause = f": {error['cause']}" if error.get("cause") else ""
    return f"{error.get('code') or ''}{kind}{cause}"


def _cut(sample):
    return [f"truncated: {_named(sample['error']) or 'no reason named'}"] if sample["status"] == "truncated" else []


def _difference(found):
    if found["fault"]:
        return [f"the verifier cannot compare these states: {found['fault']}"]
    if not found["differences"]:
        return ["nothing differs"]
    first, *more = found["differences"]
    return [first["words"] + (f", and {len(more)} more" if more else "")]


def _faults(made, steps):
    """Calls that could not be made, the first few by number."""
    faults = [
        f"call {number} {call['name'][:40]}: {step['fault']}"
        for number, (call, step) in enumerate(zip(made, steps, strict=True), 1)
        if step["fault"]
    ]
    more = [f"{len(faults) - SHOWN_FAULTS} more calls failed"] if len(faults) > SHOWN_FAULTS else []
    return faults[:SHOWN_FAULTS] + more
