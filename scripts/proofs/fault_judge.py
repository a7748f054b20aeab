"""What must hold for every trial whatever was done to the graph, and what the user saw: pure, from the evidence.

A trial that met a fault ends once, inside its deadline and the time its clean-up may take; it has
the reward that its policy earned, or none and a code that says why, never 0; it was run once at
most; its client says the same as the Gateway. The policy of these trials plays the ground truth, so
that every reward other than 1 is a fault that somebody else is made to pay for.
"""

from collections import Counter

from proofs.rig import ENDED

# The janitor's tick, the agent's last breath and the store's, on a busy machine.
OVERHEAD_S = 5


def broken_rules(trial, deadline_s, cleanup_s):
    """Sentences for what does not hold for a trial, none if all does."""
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


def _reward(trial, snapshot):
    if snapshot["reward"] is None:
        code = (snapshot["error"] or {}).get("code")
        return [] if code else ["no reward and no code"]
    broken = [] if snapshot["reward"] == 1.0 else [f"rewarded {snapshot['reward']} for a fault"]
    return broken if trial.seeds in (1, None) else [*broken, f"rewarded with {trial.seeds} seeds"]


def _client(trial, snapshot):
    """What the trainer got must be what the Gateway has."""
    broken = ["its client shows a secret" for secret in trial.secrets if secret in trial.words]
    if snapshot["reward"] is not None:
        told = trial.exit == 0 and (trial.output or {}).get("reward") == snapshot["reward"]
        return broken if told else [*broken, f"rewarded, and its client ended with {trial.exit}"]
    lines = trial.words.splitlines()
    if trial.exit == 0 or trial.output is not None:
        broken.append("no reward, and its client wrote one")
    if len(lines) != 1 or snapshot["error"]["code"] not in lines[0]:
        broken.append(f"its client did not name the code in one line: {trial.words[:200]!r}")
    return broken


def label(trial):
    """How a trial ended, for a count: `rewarded`, or its code and type."""
    snapshot = trial.snapshot or {}
    if snapshot.get("reward") is not None:
        return "rewarded"
    error = snapshot.get("error") or {}
    return " ".join(error[key] for key in ("code", "type") if error.get(key)) or "unknown"


def counted(trials):
    """{label: how many}, most first."""
    return dict(Counter(map(label, trials)).most_common())


def last_words(trials):
    """One line of a client for each kind of end without a reward: {label: text}."""
    found = {}
    for trial in trials:
        if trial.words:
            found.setdefault(label(trial), trial.words.strip().replace(trial.request_id, "relax-…")[:300])
    return found
