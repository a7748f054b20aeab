"""The rules that every trial must keep whatever was done to the graph, and what its user saw.

Guarantees:
- it judges from the evidence alone
- a trial ends once, within its deadline and the time of its clean-up, and ran at most once
- it has the reward that its policy earned, or none and a code that says why, never 0
- its client says the same as the Gateway

The policy of these trials plays the ground truth, so a fault must have caused any reward other than 1.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from proofs.fault_load import Evidence
from proofs.rig import ENDED

# Time for the Gateway's janitor, the agent and the store on a busy machine.
OVERHEAD_S = 5


def broken_rules(trial: Evidence, deadline_s: float, cleanup_s: float) -> list[str]:
    """A sentence for each rule that a trial broke."""
    snapshot = trial.snapshot
    if snapshot is None:
        return ["lost: the Gateway does not know it"]
    if snapshot["status"] not in ENDED:
        return [f"not ended: {snapshot['status']}"]
    broken = [] if trial.again == snapshot else ["its end changed"]
    limit = deadline_s + cleanup_s + OVERHEAD_S
    if trial.seconds is None or trial.seconds > limit:
        broken.append(f"took {trial.seconds} s of {limit}")
    if max(trial.first_calls, trial.seeds or 0) > 1:
        broken.append(f"run twice: {trial.first_calls} first calls, {trial.seeds} seeds")
    broken += _reward(trial, snapshot)
    return broken + ([] if trial.killed else _client(trial, snapshot))


def _reward(trial: Evidence, snapshot: dict[str, Any]) -> list[str]:
    if snapshot["reward"] is None:
        code = (snapshot["error"] or {}).get("code")
        return [] if code else ["no reward and no code"]
    broken = [] if snapshot["reward"] == 1.0 else [f"rewarded {snapshot['reward']} for a fault"]
    return broken if trial.seeds in (1, None) else [*broken, f"rewarded with {trial.seeds} seeds"]


def _client(trial: Evidence, snapshot: dict[str, Any]) -> list[str]:
    """The trainer must have got what the Gateway has."""
    broken = ["its client shows a secret" for secret in trial.secrets if secret in trial.words]
    if snapshot["reward"] is not None:
        handed_on = trial.exit == 0 and (trial.output or {}).get("reward") == snapshot["reward"]
        return broken if handed_on else [*broken, f"rewarded, and its client ended with {trial.exit}"]
    lines = trial.words.splitlines()
    if trial.exit == 0 or trial.output is not None:
        broken.append("no reward, and its client wrote one")
    if len(lines) != 1 or snapshot["error"]["code"] not in lines[0]:
        broken.append(f"its client did not name the code in one line: {trial.words[:200]!r}")
    return broken


def label(trial: Evidence) -> str:
    """How a trial ended: `rewarded`, or its code and type."""
    snapshot = trial.snapshot or {}
    if snapshot.get("reward") is not None:
        return "rewarded"
    error = snapshot.get("error") or {}
    return " ".join(error[key] for key in ("code", "type") if error.get(key)) or "unknown"


def counted(trials: list[Evidence]) -> dict[str, int]:
    """{label: how many}, most first."""
    return dict(Counter(map(label, trials)).most_common())


def last_words(trials: list[Evidence]) -> dict[str, str]:
    """{label: what a client said} for each kind of end without a reward."""
    words = {}
    for trial in trials:
        if trial.words:
            words.setdefault(label(trial), trial.words.strip().replace(trial.request_id, "relax-…")[:300])
    return words
