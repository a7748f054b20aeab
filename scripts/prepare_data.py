#!/usr/bin/env python3
"""Put the task rows of a split in place, checked, raw and converted: `make data SPLIT=validation`.

The five example rows come from the installed nemo-gym package, the published splits from
the Hugging Face hub at the revision that data/dataset.lock.json pins. The converted file proves
that the trainer's converter loses nothing; training reads the raw file. Guarantees: a file is
put in place only if its sha256 is the pinned one and every row is fit to run; its bytes are
those that were published; a file that is already right needs no network.

    make data                                        # the five example rows
    make data SPLIT=train                            # 1,255 rows, about 32 MB
    scripts/run.sh prepare_data --accept REVISION    # check and pin another revision
"""

import fcntl
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from checks import registry
from common import terminal
from common.failure import Failure
from common.files import sha256_of, write_whole
from common.settings import from_command_line
from inputs import hub, row_facts, rows
from inputs.pins import LOCK, PUBLISHED, Lock, read_lock

STAGING = ".download"
OPTIONS = {
    "--accept": {"metavar": "REVISION", "help": "check the published splits at REVISION and pin them"},
    "--lock": {"type": Path, "default": LOCK, "metavar": "FILE", "help": f"the pins (default: {LOCK.name})"},
}


def main() -> None:
    settings, args = from_command_line(__doc__, "SPLIT", "DATA_ROOT", options=OPTIONS)
    registry.at_start("data", settings)
    folder = settings.gym_data
    with hub.disk_faults_in_words("DATA_ROOT", folder), alone_in(folder):
        lock = accept(args.accept, args.lock, folder) if args.accept else read_lock(args.lock)
        for split in PUBLISHED if args.accept else [settings.SPLIT]:
            path = folder / f"workplace_assistant_{split}.jsonl"
            prepare(lock, args.lock, split, path)
        shutil.rmtree(folder / STAGING, ignore_errors=True)


def prepare(lock: Lock, lock_path: Path, split: str, path: Path) -> None:
    """Put one split in place at `path` and its converted rows beside it; print a table of them."""
    pin, source = lock["splits"][split], path
    if sha256_of(path) != pin["sha256"]:
        source = obtain(lock, split, path.parent)
        refuse_other_bytes(source, pin, lock, lock_path)
    raw = rows.read_rows(source)
    if len(raw) != pin["rows"]:
        raise Failure(f"{source}: {len(raw)} rows, but {lock_path} says {pin['rows']}; correct the lock")
    converted = [convert(row, f"{source}: row {number}") for number, row in enumerate(raw, 1)]
    os.replace(source, path)
    relax_path = path.with_name(f"{path.stem}_relax.jsonl")
    write_whole(relax_path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in converted))
    terminal.say(summary(raw))
    terminal.say(
        f"Workplace Assistant data ready: split={split} rows={len(raw)} relax_rows={len(converted)} "
        f"sha256={pin['sha256']} path={path}"
    )


def convert(row: rows.Row, place: str) -> dict[str, Any]:
    """The trainer's form of `row`, after proving that the row comes back from it."""
    try:
        relax = rows.to_relax(row)
    except rows.RowError as error:
        raise Failure(f"{place}: {error}") from None
    if rows.to_run_request({"messages": relax["input"], "metadata": relax["metadata"]}) != row:
        raise Failure(f"{place}: the converted row does not give the raw row back; report this row")
    return relax


def obtain(lock: Lock, split: str, folder: Path) -> Path:
    """Fetch a split's file into the staging folder, unchecked; returns its path."""
    pin = lock["splits"][split]
    if "package" in pin:
        return copy_from_package(pin, folder / STAGING)
    with terminal.stage(f"download {pin['file']}"):
        return hub.fetch_dataset_file(lock["repo_id"], pin["file"], lock["revision"], folder / STAGING)


def copy_from_package(pin: dict[str, Any], folder: Path) -> Path:
    try:
        source = Path(str(metadata.distribution(pin["package"]).locate_file(pin["file"])))
        folder.mkdir(exist_ok=True)
        return Path(shutil.copyfile(source, folder / source.name))
    except metadata.PackageNotFoundError:
        raise Failure(f"{pin['package']} is not installed for this Python; run scripts/run.sh prepare_data") from None
    except FileNotFoundError:
        raise Failure(f"{source}: missing; remove .venv and run this again to install {pin['package']} anew") from None


def refuse_other_bytes(staged: Path, pin: dict[str, Any], lock: Lock, lock_path: Path) -> None:
    digest = sha256_of(staged)
    if digest == pin["sha256"]:
        return
    # Without the folder the next run asks the hub again; with it the client takes the file for done.
    shutil.rmtree(staged.parent, ignore_errors=True)
    origin = f"installed {pin['package']}" if "package" in pin else f"{lock['repo_id']} at revision {lock['revision']}"
    cure = "remove .venv and run this again" if "package" in pin else "scripts/run.sh prepare_data --accept REVISION"
    raise Failure(
        f"{pin['file']} of {origin} has sha256 {digest}, not {pin['sha256']} as in {lock_path}; "
        f"refused, nothing was changed; to take other rows: {cure}"
    )


def accept(revision: str, lock_path: Path, folder: Path) -> Lock:
    """Download the published splits at `revision`, check every row, then pin them; returns the new lock."""
    lock = read_lock(lock_path)
    lock["revision"] = hub.commit_of(lock["repo_id"], revision, "dataset")
    for split in PUBLISHED:
        staged = obtain(lock, split, folder)
        converted = [convert(row, f"{staged}: row {number}") for number, row in enumerate(rows.read_rows(staged), 1)]
        lock["splits"][split] |= {"sha256": sha256_of(staged), "rows": len(converted)}
    with hub.disk_faults_in_words("--lock", lock_path):
        write_whole(lock_path, json.dumps(lock, indent=2) + "\n")
    terminal.say(f"Dataset revision accepted: revision={lock['revision']} lock={lock_path}")
    return lock


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make the folder and keep a second preparation out of it until this one ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".preparing").open("w") as lock:
        # Some network file systems have no locks: nothing keeps a second run out there.
        with suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def summary(raw: list[rows.Row]) -> str:
    """A table of the rows' categories, environments, tools, ground-truth calls and prompt sizes."""
    tools = {tool["name"] for row in raw for tool in row[rows.WRAPPER].get("tools") or []}
    calls = [len(row["ground_truth"]) for row in raw]
    lines: list[tuple[str, Any]] = [("rows", len(raw))]
    lines += [(f"environment {name}", count) for name, count in counted(row["environment_name"] for row in raw)]
    lines += [(f"category {name}", count) for name, count in counted(row["category"] for row in raw)]
    lines += [("distinct tools", len(tools)), ("ground-truth calls (min/median/max)", spread(calls))]
    lines += [(f"rows with {number} calls", count) for number, count in counted(calls)]
    lines += [("prompt tokens, estimated (min/median/max)", spread([row_facts.prompt_tokens(row) for row in raw]))]
    return terminal.table(["what", "value"], lines)


def counted(values: Iterable[Any]) -> list[tuple[Any, int]]:
    return sorted(Counter(values).items())


def spread(numbers: list[int]) -> str:
    return f"{min(numbers)} / {median(numbers):g} / {max(numbers)}"


if __name__ == "__main__":
    terminal.run(main)
