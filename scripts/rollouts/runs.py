"""Runs on disk: rehearsals by their dump, training runs by the record that was written before they began.

Guarantees:
- it only reads
- a sample that was in the folder before a training run began is never taken for the run's
- each sample comes with its file and line
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from common.failure import Failure
from common.settings import Settings
from rollouts import dump, growth
from rollouts.samples import DumpRecord

RUN_NAME = "Qwen3-4B_mcore_8xgpu"
NO_TRAINER = "not run: rehearsal driver, no trainer on this machine"


@dataclass
class Run:
    """One run: its samples as (file:line, sample), and what its record says."""

    id: str
    dumps: Path
    samples: list[tuple[str, DumpRecord]]
    logs: list[Path] = field(default_factory=list)
    gateways: list[str] = field(default_factory=list)
    dashboard: str | None = None


def of_dump(path: Path) -> Run:
    """The run whose dump is one file. Raises Failure with file and line."""
    samples = [(f"{path}:{number}", item) for number, item in enumerate(dump.read_dump(path), 1)]
    return Run(path.stem, path, samples)


def of_dumps(name: str, folder: Path) -> Run:
    """The run whose dumps lie in a folder; its samples are named by their number. Raises Failure."""
    records = dump.read_dumps(sorted(folder.glob("*.jsonl")))
    return Run(name, folder, [(f"{folder}, sample {number}", item) for number, item in enumerate(records, 1)])


def of_record(path: Path) -> Run:
    """The training run with the record at `path`. Raises Failure."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        folder, before = Path(facts["dumps"]), facts["dumps_before"]
        samples = [sample for file in sorted(folder.glob("*.jsonl")) for sample in _gained(file, before.get(file.name))]
        return Run(facts["submission_id"], folder, samples, [Path(facts["log"])], facts["gateways"], facts["dashboard"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{path}: no record of a training run ({type(error).__name__})") from None


def _gained(path: Path, mark: growth.Mark | None) -> list[tuple[str, DumpRecord]]:
    """The samples that a dump has gained since `mark`; all of them in a new file or one written anew."""
    with path.open("rb") as file:
        start = growth.added_from(file, mark) if mark else 0
        file.seek(0)
        earlier = file.read(start).count(b"\n")
    return [(f"{path}:{n}", item) for n, item in enumerate(dump.read_dump(path), 1) if n > earlier]


def rehearsal_dumps(settings: Settings) -> Path:
    """The folder of the rehearsals' dumps."""
    return settings.EXP_DIR / "rehearsal" / "rollout_result" / "train"


def rehearsals(settings: Settings) -> list[Path]:
    return list(rehearsal_dumps(settings).glob("*.jsonl"))


def newest(settings: Settings) -> Run:
    """The newest run. Raises Failure if there is none."""
    paths = rehearsals(settings) + list((settings.EXP_DIR / RUN_NAME / "runs").glob("*.json"))
    if not paths:
        raise Failure(f"{settings.EXP_DIR}: no run there; `make smoke` rolls the rows out, `make train` trains")
    path = max(paths, key=lambda path: path.stat().st_mtime)
    return of_record(path) if path.suffix == ".json" else of_dump(path)


def newest_dump(settings: Settings, earlier: Collection[Path] = ()) -> Path:
    """The newest rehearsal's dump that is none of `earlier`. Raises Failure if there is none.

    The time does not tell which dumps are earlier: a file server's clock need not be ours.
    """
    paths = [path for path in rehearsals(settings) if path not in earlier]
    if not paths:
        raise Failure(f"{settings.EXP_DIR}/rehearsal: no new rollout dump there; `make smoke` rolls the rows out")
    return max(paths, key=lambda path: path.stat().st_mtime)
