"""Runs on disk: rehearsals by their dump, training runs by the record that was written before they began.

Guarantees: a sample that lay in a folder before a training run began is never taken for the run's;
each sample comes with its file and line. Only reads.
"""

import json
from pathlib import Path

from common.failure import Failure
from rollouts import dump, growth

RUN_NAME = "Qwen3-4B_mcore_8xgpu"
NO_TRAINER = "not run: rehearsal driver, no trainer on this machine"


class Run:
    """One run: its samples [(file:line, sample)], and what its record says."""

    def __init__(self, run_id, dumps, samples, logs=(), gateways=(), dashboard=None):
        self.id, self.dumps, self.samples = run_id, dumps, samples
        self.logs, self.gateways, self.dashboard = list(logs), list(gateways), dashboard


def of_dump(path):
    """The run whose dump is one file. Raises Failure with file and line."""
    samples = [(f"{path}:{number}", item) for number, item in enumerate(dump.read_dump(path), 1)]
    return Run(path.stem, path, samples)


def of_record(path):
    """The training run with the record at `path`. Raises Failure."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        folder, before = Path(facts["dumps"]), facts["dumps_before"]
        samples = [each for file in sorted(folder.glob("*.jsonl")) for each in _gained(file, before.get(file.name))]
        return Run(facts["submission_id"], folder, samples, [Path(facts["log"])], facts["gateways"], facts["dashboard"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{path}: no record of a training run ({type(error).__name__})") from None


def _gained(path, mark):
    """The samples a dump has gained since `mark`; all of a file that was not there, or was written anew."""
    with path.open("rb") as file:
        start = growth.added_from(file, mark) if mark else 0
        file.seek(0)
        earlier = file.read(start).count(b"\n")
    return [(f"{path}:{n}", item) for n, item in enumerate(dump.read_dump(path), 1) if n > earlier]


def rehearsals(settings):
    return list((settings.EXP_DIR / "rehearsal" / "rollout_result" / "train").glob("*.jsonl"))


def records(settings):
    return list((settings.EXP_DIR / RUN_NAME / "runs").glob("*.json"))


def newest(settings):
    """The newest run. Raises Failure if there is none."""
    found = rehearsals(settings) + records(settings)
    if not found:
        raise Failure(f"{settings.EXP_DIR}: no run there; `make smoke` rolls the rows out, `make train` trains")
    path = max(found, key=lambda each: each.stat().st_mtime)
    return of_record(path) if path.suffix == ".json" else of_dump(path)


def newest_dump(settings, earlier=()):
    """The newest rehearsal's dump that is none of `earlier`. Raises Failure if there is none.

    Not told by the time: the clock of a file server need not be ours.
    """
    found = [path for path in rehearsals(settings) if path not in earlier]
    if not found:
        raise Failure(f"{settings.EXP_DIR}/rehearsal: no new rollout dump there; `make smoke` rolls the rows out")
    return max(found, key=lambda path: path.stat().st_mtime)
