"""The folder of an evaluation: its configuration, its samples, its result; and rollout dumps in the same shape.

    config.json      what must match for a resumption or a comparison
    rollouts.jsonl   one line a sample that earned a reward, with its whole trajectory
    failures.jsonl   one line an attempt that ended without one
    result.json      {"config", "metrics", "failures", "times"}, written at the end

Guarantees: a line is appended whole, and one that a kill or a full disk cut off at the end is
dropped by who reads and by who goes on writing; any other broken line, and one whose fields are
of another kind, is refused by file and line; config.json and result.json appear whole or not at
all; who goes on writing has the configuration that was begun with; one process writes to a folder
at a time. It computes no figure and never asks the network.
"""

import fcntl
import json
import os
import re
import time
from contextlib import suppress
from pathlib import Path

from common.failure import Failure
from common.files import write_whole
from evaluation import eval_dump
from evaluation.eval_dump import Evaluation
from rollouts import dump
from rollouts.samples import FAILURE, SAMPLE, fit

FORMAT = 1
CONFIG, ROLLOUTS, FAILURES, RESULT, LOCK = "config.json", "rollouts.jsonl", "failures.jsonl", "result.json", "lock"
SAMPLE_KEYS = {"row", "row_id", "category", "repeat", "status", "reward", "output"}
FAILURE_KEYS = {"row", "row_id", "category", "repeat", "status", "error"}
FIELDS = {ROLLOUTS: SAMPLE, FAILURES: FAILURE}
# Where the rows lie may differ; what they are is told by their hash.
NOT_COMPARED = frozenset({"rows.path"})
ANEW = "set another EVAL_NAME, or FRESH=1 to move the old one aside and begin anew"
ODD = re.compile(r"[^A-Za-z0-9._-]+")


def folder_name(model, split):
    """The name an evaluation gets where none is given: odd characters become dashes."""
    return ODD.sub("-", f"{model.rstrip('/').rpartition('/')[2]}-{split}").strip("-.") or "evaluation"


def folder(data_root, name):
    """Folder of the evaluation `name`. Raises Failure for a name that is no plain folder's."""
    if ODD.search(name) or name.startswith((".", "-")):
        raise Failure(
            f"EVAL_NAME={name}: a name is letters, digits, '.', '_' and '-', and begins with none of the last"
        )
    return Path(data_root) / "eval" / name


def differences(old, new, prefix=""):
    """[(dotted field, old value, new value)] of two configurations, where that matters; None for a missing key."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        field, left, right = f"{prefix}{key}", old.get(key), new.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            found += differences(left, right, f"{field}.")
        elif left != right and field not in NOT_COMPARED:
            found.append((field, left, right))
    return found


# --- reading -------------------------------------------------------------------------------


def read(path):
    """Read an evaluation's folder, or a rollout dump's file: an Evaluation. Raises Failure."""
    path = Path(path)
    return read_folder(path) if path.is_dir() else eval_dump.evaluation(dump.read_dump(path))


def read_folder(path):
    """Read an evaluation, finished or not: the samples by (row, repeat), and the last failure of each that has none."""
    config = read_json(path / CONFIG)
    if config.get("format") != FORMAT:
        raise Failure(f"{path / CONFIG}: format {config.get('format')!r}; this clone reads format {FORMAT}")
    samples = _by_place(read_lines(path / ROLLOUTS, SAMPLE_KEYS)[0])
    failures = _by_place(read_lines(path / FAILURES, FAILURE_KEYS)[0])
    left = {place: item for place, item in failures.items() if place not in samples}
    return Evaluation(config, [samples[place] for place in sorted(samples)], [left[place] for place in sorted(left)])


def _by_place(records):
    """{(row, repeat): record}, the last one of each."""
    return {(item["row"], item["repeat"]): item for item in records}


def read_json(path):
    """One JSON object. Raises Failure."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; `make eval` writes one") from None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Failure(f"{path}: not a JSON object")
    return found


def read_lines(path, needed):
    """(records, bytes they take) of a file of JSON objects with the keys `needed`; ([], 0) where there is none.

    A last line that was cut off is left out of both. Raises Failure with file and line.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    records, size = [], 0
    for number, line in enumerate(lines, 1):
        record = _parse(line)
        if record is None and number == len(lines):
            break
        if record is None or not record.keys() >= needed or not fit(record, FIELDS[path.name]):
            raise Failure(f"{path}:{number}: not a line of an evaluation")
        records.append(record)
        size += len(line)
    return records, size


def _parse(line):
    """The object of a whole line, or None."""
    with suppress(ValueError, RecursionError):
        record = json.loads(line) if line.endswith(b"\n") else None
        return record if isinstance(record, dict) else None
    return None


# --- writing -------------------------------------------------------------------------------


def write_json(path, value):
    """Put an object at `path`, keys sorted, whole or not at all. Raises Failure."""
    try:
        write_whole(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None


def move_aside(path):
    """Give an evaluation's folder another name; the new path. Raises Failure if a process writes there."""
    moved = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    with locked(path):
        try:
            os.rename(path, moved)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}") from None
    return moved


def locked(path):
    """The folder's lock, taken until it is closed. Raises Failure if another process has it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Failure(f"{path}: another evaluation writes there; wait for it, or set another EVAL_NAME") from None
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    return lock


class Writer:
    """The one process that adds to an evaluation's folder; `done` holds the places (row, repeat) with a reward."""

    def __init__(self, path, config):
        """Begin or go on. Raises Failure if another process writes there, or if it was begun otherwise."""
        self.path, self._lock = path, locked(path)
        self._begin(config)
        samples, size = read_lines(path / ROLLOUTS, SAMPLE_KEYS)
        self.done = set(_by_place(samples))
        self._files = {ROLLOUTS: self._open(ROLLOUTS, size)}
        self._files[FAILURES] = self._open(FAILURES, read_lines(path / FAILURES, FAILURE_KEYS)[1])

    def _begin(self, config):
        if not (self.path / CONFIG).exists():
            if left := [name for name in (ROLLOUTS, FAILURES, RESULT) if (self.path / name).exists()]:
                raise Failure(
                    f"{self.path}: holds {' and '.join(left)} and no {CONFIG}, so that nothing tells what they are of; "
                    f"{ANEW}"
                )
            return write_json(self.path / CONFIG, config)
        # As it will be read back: a tuple is a list then.
        changed = differences(read_json(self.path / CONFIG), json.loads(json.dumps(config)))
        if changed:
            field, old, new = changed[0]
            raise Failure(
                f"{self.path}: begun with {field} = {_shown(old)}, and now it is {_shown(new)}; "
                f"put that back to go on, or {ANEW}"
            )

    def _open(self, name, size):
        path = self.path / name
        if path.exists():
            os.truncate(path, size)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, sample):
        """Append a sample, to the rollouts if it has a reward, else to the failures. Raises Failure."""
        rewarded = sample.get("reward") is not None
        self._write(ROLLOUTS if rewarded else FAILURES, sample)
        if rewarded:
            self.done.add((sample["row"], sample["repeat"]))

    def _write(self, name, record):
        data = json.dumps(record, allow_nan=False).encode() + b"\n"
        try:
            while data:
                data = data[os.write(self._files[name], data) :]
        except OSError as error:
            raise Failure(f"{self.path / name}: {error.strerror}; what was done before is kept") from None

    def finish(self, result):
        write_json(self.path / RESULT, result)

    def reopen(self):
        """Samples will be added: a result of before no longer holds."""
        (self.path / RESULT).unlink(missing_ok=True)

    def close(self):
        while self._files:
            os.close(self._files.popitem()[1])
        self._lock.close()


def _shown(value):
    return json.dumps(value)[:200]
