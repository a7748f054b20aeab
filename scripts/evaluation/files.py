"""The folder of an evaluation: its configuration, its samples, its result. Rollout dumps are read in the same shape.

    config.json      what must match to resume or to compare
    rollouts.jsonl   a line for each sample with a reward, with its whole trajectory
    failures.jsonl   a line for each attempt that ended without a reward
    result.json      {"config", "metrics", "failures", "times"}, written at the end

Guarantees:
- config.json and result.json appear whole or not at all; a line is appended whole.
- Readers and a resumed writer drop a last line that was cut off. Any other broken line is refused by file and line, and
  so is a field of the wrong type.
- A folder has one writer at a time, and resumes only with the configuration that it was begun with.
- Every sample of a dump is there once, with its reward or as a failure. A dump has no configuration, prompt or ground
  truth; where it names neither row nor group, each sample is a row of its own.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from common.failure import Failure
from common.files import in_words, write_whole
from policy import transcript
from rollouts import dump
from rollouts.samples import FAILURE, SAMPLE, Sample, fit, number, row_key

FORMAT = 1
CONFIG, ROLLOUTS, FAILURES, RESULT, LOCK = "config.json", "rollouts.jsonl", "failures.jsonl", "result.json", "lock"
SAMPLE_KEYS = {"row", "row_id", "category", "repeat", "status", "reward", "output"}
FAILURE_KEYS = {"row", "row_id", "category", "repeat", "status", "error"}
NEEDED = {ROLLOUTS: SAMPLE_KEYS, FAILURES: FAILURE_KEYS}
FIELDS = {ROLLOUTS: SAMPLE, FAILURES: FAILURE}
# The rows may have moved: their hash tells whether they are the same.
# What an endpoint calls its model may change from call to call: the names are recorded, MODEL has to match.
NOT_COMPARED = frozenset({"rows.path", "model_reported"})
ANEW = "set another EVAL_NAME, or FRESH=1 to move the old one aside and begin anew"
ODD = re.compile(r"[^A-Za-z0-9._-]+")


class Evaluation(NamedTuple):
    """What a folder or a dump holds: its configuration (None for a dump), samples with a reward, and those without."""

    config: dict[str, Any] | None
    samples: list[Sample]
    failures: list[Sample]


def folder_name(model: str, split: str) -> str:
    """The default name of an evaluation; odd characters become dashes."""
    return ODD.sub("-", f"{model.rstrip('/').rpartition('/')[2]}-{split}").strip("-.") or "evaluation"


def folder(data_root: Path, name: str) -> Path:
    """Folder of the evaluation `name`. Raises Failure if the name is not that of a plain folder."""
    if ODD.search(name) or name.startswith((".", "-")):
        raise Failure(f"EVAL_NAME={name}: use letters, digits, '.', '_' and '-', and begin with a letter, digit or '_'")
    return data_root / "eval" / name


def differences(old: dict, new: dict, prefix: str = "") -> list[tuple[str, Any, Any]]:
    """[(dotted field, old value, new value)] of two configurations, where that matters; None for a missing key."""
    changed = []
    for key in sorted(old.keys() | new.keys()):
        field, left, right = f"{prefix}{key}", old.get(key), new.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            changed += differences(left, right, f"{field}.")
        elif left != right and field not in NOT_COMPARED:
            changed.append((field, left, right))
    return changed


# --- reading -------------------------------------------------------------------------------


def read(path: Path) -> Evaluation:
    """Read an evaluation's folder or a rollout dump's file. Raises Failure."""
    return read_folder(path) if path.is_dir() else of_records(dump.read_dump(path))


def read_folder(path: Path) -> Evaluation:
    """Read an evaluation, finished or not: the samples by (row, repeat), and the last failure of those without any."""
    config = read_json(path / CONFIG)
    if config.get("format") != FORMAT:
        raise Failure(f"{path / CONFIG}: format {config.get('format')!r}; this clone reads format {FORMAT}")
    samples = _by_place(read_lines(path / ROLLOUTS)[0])
    failures = _by_place(read_lines(path / FAILURES)[0])
    left = sorted(failures.keys() - samples.keys())
    return Evaluation(config, [samples[place] for place in sorted(samples)], [failures[place] for place in left])


def _by_place(records: list[Any]) -> dict[tuple[int, int], Any]:
    """{(row, repeat): the last record of it}."""
    return {(item["row"], item["repeat"]): item for item in records}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises Failure."""
    value = None
    with in_words(path, "; `make eval` writes one"), suppress(ValueError, RecursionError):
        value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise Failure(f"{path}: not a JSON object")
    return value


def read_lines(path: Path) -> tuple[list[Any], int]:
    """(records, bytes they take) of ROLLOUTS or FAILURES; ([], 0) without the file. Raises Failure with file and line.

    A last line that was cut off is in neither.
    """
    with in_words(path):
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    records, size, needed = [], 0, NEEDED[path.name]
    for nth, line in enumerate(lines, 1):
        record = _parse(line)
        if record is None and nth == len(lines):
            break
        if record is None or not record.keys() >= needed or not fit(record, FIELDS[path.name]):
            raise Failure(f"{path}:{nth}: not a line of an evaluation")
        records.append(record)
        size += len(line)
    return records, size


def _parse(line: bytes) -> dict | None:
    """The object on a whole line, or None."""
    with suppress(ValueError, RecursionError):
        record = json.loads(line) if line.endswith(b"\n") else None
        return record if isinstance(record, dict) else None
    return None


# --- rollout dumps -------------------------------------------------------------------------


def of_records(records: Iterable[Mapping[str, Any]]) -> Evaluation:
    """The records of a rollout dump; rows are numbered as they come, and so are the repeats of a row."""
    rows, repeats, evaluation = {}, {}, Evaluation(None, [], [])
    for index, item in enumerate(records):
        group = item.get("group_id")
        # A trainer numbers its groups anew in each rollout.
        key = row_key(item) or (index if group is None else f"group {group} of rollout {item.get('rollout_id')}")
        row = rows.setdefault(key, len(rows))
        repeats[row] = repeats.get(row, -1) + 1
        sample = sample_of(item, row, repeats[row])
        (evaluation.failures if sample["reward"] is None else evaluation.samples).append(sample)
    return evaluation


def sample_of(item: Any, row: Any, repeat: Any) -> Sample:
    """A record of a rollout dump as a sample, without what only the row itself tells."""
    tokens, error = (item.get("prompt_token_count"), item.get("response_token_count")), item.get("error")
    # Trainers write many things where there is no reward; only a number is a reward.
    rewarded = number(item["reward"]) and not error
    return {
        "row": row,
        "row_id": item.get("row_id"),
        "row_key": row_key(item),
        "category": item.get("category"),
        "repeat": repeat,
        "request_id": item.get("request_id"),
        "status": item["status"],
        "error": {"code": "no_reward", "cause": str(error)} if error else None,
        "reward": float(item["reward"]) if rewarded else None,
        "metrics": {"model_calls": item["agent_turns"]},
        "usage": None if None in tokens else {"input_tokens": tokens[0], "output_tokens": tokens[1]},
        "seconds": item.get("seconds"),
        "input": [],
        "ground_truth": [],
        "output": transcript.items(str(item["response"] or "")),
    }


# --- writing -------------------------------------------------------------------------------


def write_json(path: Path, value: dict) -> None:
    """Put an object at `path`, keys sorted, whole or not at all. Raises Failure."""
    with in_words(path):
        write_whole(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def move_aside(path: Path) -> Path:
    """Rename an evaluation's folder; the new path. Raises Failure if a process writes there."""
    moved = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    with _locked(path), in_words(path):
        os.rename(path, moved)
    return moved


def _locked(path: Path) -> TextIO:
    """The folder's lock, held until it is closed. Raises Failure if another process holds it."""
    with in_words(path):
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(f"{path}: another evaluation writes there; wait for it, or set another EVAL_NAME") from None
        return lock


class Writer:
    """The only process that adds to an evaluation's folder; `done` holds the places (row, repeat) with a reward."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        """Begin or resume. Raises Failure if another process writes there, or if the configuration differs."""
        self.path, self._lock = path, _locked(path)
        self._begin(config)
        samples, size = read_lines(path / ROLLOUTS)
        self.done = set(_by_place(samples))
        self._files = {ROLLOUTS: self._open(ROLLOUTS, size)}
        self._files[FAILURES] = self._open(FAILURES, read_lines(path / FAILURES)[1])

    def _begin(self, config: dict[str, Any]) -> None:
        if not (self.path / CONFIG).exists():
            if left := [name for name in (ROLLOUTS, FAILURES, RESULT) if (self.path / name).exists()]:
                raise Failure(
                    f"{self.path}: holds {' and '.join(left)} and no {CONFIG} to tell what they belong to; {ANEW}"
                )
            return write_json(self.path / CONFIG, config)
        # Compare with what will be read back: JSON turns tuples into lists.
        changed = differences(read_json(self.path / CONFIG), json.loads(json.dumps(config)))
        if changed:
            field, *values = changed[0]
            old, new = (json.dumps(value)[:200] for value in values)
            raise Failure(
                f"{self.path}: begun with {field} = {old}, and now it is {new}; put that back to go on, or {ANEW}"
            )

    def _open(self, name: str, size: int) -> int:
        path = self.path / name
        if path.exists():
            os.truncate(path, size)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def add(self, sample: dict[str, Any]) -> None:
        """Append a sample: to the rollouts if it has a reward, otherwise to the failures. Raises Failure."""
        rewarded = sample.get("reward") is not None
        name, data = ROLLOUTS if rewarded else FAILURES, json.dumps(sample, allow_nan=False).encode() + b"\n"
        with in_words(self.path / name, "; what was done before is kept"):
            while data:
                data = data[os.write(self._files[name], data) :]
        if rewarded:
            self.done.add((sample["row"], sample["repeat"]))

    def finish(self, result: dict[str, Any]) -> None:
        write_json(self.path / RESULT, result)

    def reopen(self) -> None:
        """Remove the result: samples will be added, and it would no longer hold."""
        (self.path / RESULT).unlink(missing_ok=True)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])
        self._lock.close()
