"""The rollout dump: one JSON object a sample, its group's advantages, and what it says in sum.

Guarantees: the dump appears whole at its path or not at all; while samples come in they are
in `<dump>.partial`, one line each; a group with a failed sample has no advantages. Advantages
are GRPO's: (reward - group mean) / (group std + 1e-6), the std that of a sample (n - 1), as
the trainer's tensor library has it; 0 where all rewards are equal, and for a group of one.
"""

import json
import statistics
from collections import Counter

from common.failure import Failure
from common.files import write_whole
from policy.transcript import transcript
from rollouts import sample_fields

EPSILON = 1e-6
# What every dump has, the trainer's too.
NEEDED = {"status", "reward", "agent_turns", "response"}


def record(index, group, metadata, session, result, error):
    """One line of the dump: the trainer's fields first, then those only a rehearsal adds.

    `metadata` is the row's, `session` the model API's Session, `result` the agent's output
    ({} with an `error`).
    """
    trial = result.get("metadata")
    trial = trial.get("nemo_gym") if isinstance(trial, dict) else None
    trial = trial if isinstance(trial, dict) else {}
    prompt, response, total = session.token_counts()
    return {
        "rollout_id": 0,
        "sample_index": index,
        "status": "failed" if error else trial.get("status", "completed"),
        "reward": result.get("reward"),
        "agent_turns": session.turns,
        "prompt_token_count": prompt,
        "response_token_count": response,
        "total_token_count": total,
        "response": transcript(session.transcript()),
        "group_id": group,
        "advantage": None,
        "row_id": metadata.get("id"),
        "category": metadata.get("category"),
        "error": error,
        "truncated_by": _budget(trial, session) if trial.get("status") == "truncated" else None,
        "request_id": trial.get("request_id"),
        "history_branches": session.branches,
        "input": session.task.get("messages"),
        "ground_truth": metadata.get("ground_truth"),
    }


def _budget(trial, session):
    """Which budget cut the sample short: the trial's own code, the model's reason, or the agent's steps."""
    error = trial.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code or session.incomplete or "max_steps"


def advantages(rewards):
    """Advantages of one group's rewards, in their order."""
    mean = statistics.fmean(rewards)
    spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    return [(reward - mean) / (spread + EPSILON) if spread else 0.0 for reward in rewards]


def groups(records):
    """{group id: its records}, in the records' order."""
    found = {}
    for item in records:
        found.setdefault(item["group_id"], []).append(item)
    return found


def set_advantages(records):
    """Give each sample its advantage, by group; a group with a failed sample keeps null."""
    for members in groups(records).values():
        if not any(item["error"] for item in members):
            values = advantages([item["reward"] for item in members])
            for item, value in zip(members, values, strict=True):
                item["advantage"] = value


def summary(records):
    """What the records say in sum: counts, and the mean reward of the groups that were kept (None if none was)."""
    kept, dropped = [], 0
    for members in groups(records).values():
        failed = any(item["error"] for item in members)
        dropped += failed
        kept += [] if failed else [[item["reward"] for item in members]]
    rewards = [reward for members in kept for reward in members]
    return {
        "samples": len(records),
        "failed_samples": sum(bool(item["error"]) for item in records),
        "groups": len(kept) + dropped,
        "mixed_groups": sum(min(members) != max(members) for members in kept),
        "dropped_groups": dropped,
        "mean_reward": statistics.fmean(rewards) if rewards else None,
        "model_calls": sum(item["agent_turns"] for item in records),
        "statuses": dict(Counter(item["status"] for item in records)),
    }


class Dump:
    """A dump being written: `add` samples as they end, then `finish`."""

    def __init__(self, path):
        """Open `<path>.partial`. Raises Failure if it cannot be written or `path` exists."""
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        if path.exists():
            raise Failure(f"{path}: exists; a dump is not written over, name another")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.partial.open("w", encoding="utf-8")
        except OSError as error:
            raise Failure(f"{self.partial}: {error.strerror}") from None

    def add(self, item):
        self._file.write(json.dumps(item) + "\n")
        self._file.flush()

    def finish(self, records):
        """Put all records at the path, in order, and drop the partial file."""
        write_whole(self.path, (json.dumps(item) + "\n" for item in records))
        self.close()
        self.partial.unlink()

    def close(self):
        self._file.close()


def read_dump(path):
    """Read a dump: its records. Raises Failure with file and line."""
    records = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                item = json.loads(line)
                whole = isinstance(item, dict) and item.keys() >= NEEDED
                if not whole or not sample_fields.fit(item, sample_fields.DUMPED):
                    raise Failure(f"{path}:{number}: not a sample of a rollout dump")
                records.append(item)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; `make smoke` or `make train` writes one") from None
    except (ValueError, RecursionError):
        raise Failure(f"{path}:{len(records) + 1}: not JSON") from None
    return records
