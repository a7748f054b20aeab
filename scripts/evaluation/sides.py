"""The two sides of a comparison: where each is, its samples, and whether they may be compared at all.

Guarantees: evaluations are refused unless their configurations are equal, the model apart; every field that differs
is named with both values. A side without a reward, or with one outside 0..1, is refused. Dumps do not tell how
they were drawn, so two dumps are taken as they are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from common.failure import Failure
from common.settings import ROOT, Settings, existing
from evaluation import files
from evaluation.files import Evaluation
from rollouts import dump

# What a comparison is about; all else in a configuration has to be the same.
MAY_DIFFER = frozenset({"model", "model_reported"})
SHOWN = 10


class Side:
    """One side: its path and what is there."""

    def __init__(self, path: Path, group_size: int):
        """Read the samples. Raises Failure."""
        self.path, self.evaluation = path, read(path, group_size)
        self.config = self.evaluation.config

    def source(self) -> dict[str, str | None]:
        """Where it came from: {"path", "model": as its endpoint called it, None for a dump}."""
        return {"path": str(self.path), "model": (self.config or {}).get("model_reported")}

    def refuse_unfit_samples(self) -> None:
        """Raise Failure if no sample has a reward, a reward is no share, or the configuration tells no size."""
        samples, failures = self.evaluation.samples, self.evaluation.failures
        if not samples:
            raise Failure(f"{self.path}: no sample has a reward ({len(failures)} failed); nothing can be compared")
        for sample in samples:
            reward = sample["reward"]
            if not isinstance(reward, (int, float)) or not 0 <= reward <= 1:
                raise Failure(f"{self.path}: row {sample['row']} has the reward {reward!r}, which is not in 0..1")
        if self.config and not all(isinstance(size, int) for size in sizes(self.config)):
            raise Failure(f"{self.path / files.CONFIG}: tells no rows.count or no repeats; `make eval` writes both")


def locate(settings: Settings, name: str) -> Path:
    """The path that a variable names: as it is, or below DATA_ROOT/eval. Raises Failure."""
    text, evaluations = getattr(settings, name), settings.DATA_ROOT / "eval"
    if not text:
        raise Failure(f"{name} is empty; make compare BASE=… CANDIDATE=… (below {evaluations}: {_known(evaluations)})")
    if path := existing(evaluations / text, ROOT / os.path.expanduser(text)):
        return path
    raise Failure(f"{name}={text}: neither an evaluation in {evaluations} ({_known(evaluations)}) nor a path")


def _known(folder: Path) -> str:
    return ", ".join(sorted(path.parent.name for path in folder.glob("*/config.json"))[:SHOWN]) or "none yet"


def read(path: Path, group_size: int) -> Evaluation:
    """The samples at a path: an evaluation's folder, a dump, or a folder of dumps. Raises Failure."""
    if path.is_dir() and not (path / files.CONFIG).exists() and (dumps := sorted(path.glob("*.jsonl"))):
        return _dumped(dumps, group_size)
    return files.read(path) if path.is_dir() else _dumped([path], group_size)


def _dumped(dumps: list[Path], group_size: int) -> Evaluation:
    """The samples of rollout dumps; a trainer numbers them through, those of one row one after the other."""
    records = dump.read_dumps(dumps)
    for record in records:
        index = record.get("sample_index")
        if record.get("row_id") is None and record.get("group_id") is None and isinstance(index, int):
            record["group_id"] = f"{record.get('rollout_id')}-{index // group_size}"
    return files.of_records(records)


def refuse_other_conditions(base: Side, candidate: Side) -> None:
    """Raise Failure with every field that is not the same, and both values."""
    if (base.config is None) != (candidate.config is None):
        kinds = [f"{side.path} is {'a dump' if side.config is None else 'an evaluation'}" for side in (base, candidate)]
        raise Failure(f"{' and '.join(kinds)}: nothing tells that they were drawn alike; compare two of a kind")
    if base.config is None or candidate.config is None:
        return
    differences = [
        f"{field} is {json.dumps(old)[:200]} and {json.dumps(new)[:200]}"
        for field, old, new in files.differences(base.config, candidate.config)
        if field.split(".")[0] not in MAY_DIFFER
    ]
    if differences:
        raise Failure(
            f"{base.path} and {candidate.path} do not match: {'; '.join(differences)}; "
            "evaluate one of them anew like the other"
        )


def sizes(config: dict[str, Any]) -> tuple[Any, Any]:
    """(rows, repeats) of a configuration, None where it does not tell."""
    rows = config.get("rows")
    return (rows.get("count") if isinstance(rows, dict) else None), config.get("repeats")
