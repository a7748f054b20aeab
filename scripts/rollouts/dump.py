"""The rollout dump: one JSON object a sample, with the advantages of its group, and its figures in sum.

Guarantees:
- the dump appears whole at its path or not at all; until then samples are lines of `<dump>.partial`
- a group with a failed sample has no advantages
- advantages are GRPO's: (reward - group mean) / (group std + 1e-6), with the std of a sample (n - 1), as in
  the trainer's tensor library; 0 if all rewards are equal, and in a group of one
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import terminal
from common.failure import Failure
from common.files import in_words, write_whole
from policy.model_api import Session
from policy.transcript import transcript
from rollouts.samples import DUMPED, DumpRecord, fit

EPSILON = 1e-6
# Fields of every dump, the trainer's too.
NEEDED = {"status", "reward", "agent_turns", "response"}


def record(
    index: int, group: int, session: Session, result: dict[str, Any], error: str | None, seconds: float
) -> DumpRecord:
    """A line of the dump; `result` is the agent's output, {} with an `error`."""
    trial = result.get("metadata")
    trial = trial.get("nemo_gym") if isinstance(trial, dict) else None
    trial = trial if isinstance(trial, dict) else {}
    metadata = session.task["metadata"]
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
        "seconds": seconds,
    }


def _budget(trial: dict[str, Any], session: Session) -> str:
    """The budget that cut a sample short: the trial's own code, the model's reason, or the agent's steps."""
    error = trial.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return code or session.incomplete or "max_steps"


def advantages(rewards: list[float]) -> list[float]:
    """The advantages of one group's rewards, in their order."""
    mean = statistics.fmean(rewards)
    spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
    return [(reward - mean) / (spread + EPSILON) if spread else 0.0 for reward in rewards]


def _rewards(members: list[DumpRecord]) -> list[float] | None:
    """The rewards of a group; None if a sample of it failed."""
    if any(item["error"] for item in members):
        return None
    return [item["reward"] for item in members if item["reward"] is not None]


def groups(records: Iterable[DumpRecord]) -> dict[Any, list[DumpRecord]]:
    """{group id: its records}, in the records' order."""
    members: dict[Any, list[DumpRecord]] = {}
    for item in records:
        members.setdefault(item["group_id"], []).append(item)
    return members


def set_advantages(records: list[DumpRecord]) -> None:
    """Give each sample its advantage, by group; a group with a failed sample keeps null."""
    for members in groups(records).values():
        if rewards := _rewards(members):
            for item, value in zip(members, advantages(rewards), strict=True):
                item["advantage"] = value


def summary(records: list[DumpRecord]) -> dict[str, Any]:
    """Counts over the records, and the mean reward of the groups without a failed sample (None without one)."""
    every = [_rewards(members) for members in groups(records).values()]
    kept = [rewards for rewards in every if rewards is not None]
    rewards = [reward for group in kept for reward in group]
    return {
        "samples": len(records),
        "failed_samples": sum(bool(item["error"]) for item in records),
        "groups": len(every),
        "mixed_groups": sum(min(group) != max(group) for group in kept),
        "dropped_groups": len(every) - len(kept),
        "mean_reward": statistics.fmean(rewards) if rewards else None,
        "model_calls": sum(item["agent_turns"] for item in records),
        "statuses": dict(Counter(item["status"] for item in records)),
    }


class Dump:
    """A dump being written: `add` samples as they end, then `finish`."""

    def __init__(self, path: Path):
        """Open `<path>.partial`. Raises Failure if it cannot be written or `path` exists."""
        self.path, self.partial = path, path.with_name(path.name + ".partial")
        if path.exists():
            raise Failure(f"{path}: exists; a dump is not written over, name another")
        with in_words(self.partial):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.partial.open("w", encoding="utf-8")

    def add(self, item: DumpRecord) -> None:
        self._file.write(json.dumps(item) + "\n")
        self._file.flush()

    def finish(self, records: list[DumpRecord]) -> None:
        """Write all records to the path, in order, and remove the partial file."""
        write_whole(self.path, (json.dumps(item) + "\n" for item in records))
        self.close()
        self.partial.unlink()

    def close(self) -> None:
        self._file.close()


def _is_record(item: Any) -> bool:
    return isinstance(item, dict) and item.keys() >= NEEDED and fit(item, DUMPED)


def read_dump(path: Path) -> list[DumpRecord]:
    """The records of a dump. Raises Failure with file and line; a last line that is still being written is left out."""
    records: list[DumpRecord] = []
    with in_words(path, "; `make smoke` or `make train` writes one"):
        lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            begun = line.startswith(b"{")
            if number == len(lines) and (number > 1 or begun) and not line.endswith(b"\n"):
                terminal.say(f"warning: {path}:{number}: the last line is cut off and left out")
                return records
            raise Failure(f"{path}:{number}: not JSON") from None
        if not _is_record(item):
            raise Failure(f"{path}:{number}: not a sample of a rollout dump")
        records.append(item)
    return records


def read_dumps(paths: Sequence[Path]) -> list[DumpRecord]:
    """The records of several dumps of one run; a sample that stands there twice counts once, and that is said."""
    seen: set[bytes] = set()
    records, repeated = [], 0
    for item in (item for path in paths for item in read_dump(path)):
        # Without a number of its own, a sample may be equal to another one.
        if item.get("sample_index") is not None:
            known = len(seen)
            seen.add(hashlib.sha256(json.dumps(item, sort_keys=True).encode()).digest())
            if len(seen) == known:
                repeated += 1
                continue
        records.append(item)
    if repeated:
        terminal.say(f"warning: {repeated} samples stand twice in the dumps and count once")
    return records
