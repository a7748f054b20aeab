#!/usr/bin/env python3
"""Audit the task rows of a split through the real verifier: `make audit SPLIT=validation`.

For every row: the ground truth replayed must earn 1, the ground truth with one argument altered 0, and
what doing nothing earns is the floor. It also counts rows whose ground truth needs more turns than the
agent has, at one call a turn (the ceiling), rows that repeat each other in the split and across
the splits that are there, tools and categories, and estimated prompt tokens against the budget. Asks
the resource server of the running graph, on this machine; no Gateway trial and no model.
Takes about 20 ms of CPU a row. Exits 1 if a row is broken, each named by file, line and id.

It does not judge whether a ground truth is what its text asks for, nor whether 6 steps can find it.

    make gym-up && make audit                        # the five example rows
    make audit SPLIT=train                           # tables here; JSON and SVG in $DATA_ROOT/audit
    make audit SPLIT=train LIMIT=50                  # a part of the rows, in files of its own
    scripts/run.sh audit --nemo-gym-source-data rows.jsonl
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from checks import registry
from common import net, terminal
from common.failure import Failure
from common.files import in_words, sha256_of, write_whole
from common.settings import Settings, from_command_line
from evaluation import audit_checks, audit_plot, audit_result
from inputs import row_facts, rows

SPLITS = ("example", "train", "validation")
# The resource server answers one request at a time; a second keeps it busy while the first is read.
AT_ONCE = 3
SHOWN = 10
NAMES = ("SPLIT", "LIMIT", "NEMO_GYM_SOURCE_DATA", "DATA_ROOT", "NEMO_GYM_MAX_PROMPT_LEN", "GYM_BASE_PORT")
OPTIONS = {"--resource-url": {"metavar": "URL", "help": "the resource server (default: port GYM_BASE_PORT + 2)"}}


def main() -> None:
    settings, args = from_command_line(__doc__, *NAMES, options=OPTIONS)
    registry.at_start("audit", settings)
    start, path = time.monotonic(), settings.rows_path()
    numbered = rows.read_numbered(path, settings.LIMIT)
    verifier = audit_checks.Verifier((args.resource_url or settings.local_url("resource")).rstrip("/"))
    audit_checks.must_discriminate(verifier)
    # What rewards depend on, as the graph's Gateway tells it.
    environment = None if args.resource_url else net.readyz(settings.local_url("gateway"))[1].get("environment")
    result = {
        "format": 1,
        "source": {"path": str(path), "sha256": sha256_of(path), "count": len(numbered)},
        "environment": environment,
        **audit_result.summary(path, numbered, ask(verifier, numbered), settings.NEMO_GYM_MAX_PROMPT_LEN),
        "twins": twins(settings, path, numbered),
        "seconds": round(time.monotonic() - start, 1),
    }
    # A part of the rows has a name of its own, and never replaces the whole result.
    name = f"{path.stem}-first-{settings.LIMIT}" if len(numbered) == settings.LIMIT else path.stem
    report(path, result, write(settings.DATA_ROOT / "audit", name, result))


def ask(verifier: audit_checks.Verifier, numbered: list) -> list[audit_checks.Finding]:
    """The findings of audit_checks.check for each row, in order."""
    bar, findings = terminal.Bar("rows", len(numbered)), []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        waiting = [pool.submit(audit_checks.check, verifier, row) for _, row in numbered]
        try:
            for future in waiting:
                findings.append(future.result())
                bar.step()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    terminal.clear_line()
    return findings


def twins(settings: Settings, path: Path, numbered: list) -> list[dict[str, Any]]:
    """Rows that repeat an earlier one of the split, or one of another split: [{"row", "of", "same_answer"}]."""
    own = [(rows.place(path, line, row), row) for line, row in numbered]
    names = {name for name, _ in own}
    pairs = row_facts.twins(own)
    for split in SPLITS:
        other = settings.rows_path(split)
        if other.exists() and other.resolve() != path.resolve():
            theirs = [(rows.place(other, line, row), row) for line, row in rows.read_numbered(other)]
            pairs += [pair for pair in row_facts.twins(theirs + own) if pair[0] in names and pair[1] not in names]
    return [dict(zip(("row", "of", "same_answer"), pair, strict=True)) for pair in pairs]


def write(folder: Path, name: str, result: dict[str, Any]) -> list[Path]:
    """Write the result as JSON and as a plot, each whole or not at all; their paths. Raises Failure."""
    texts = {f"{name}.json": json.dumps(result, indent=1, sort_keys=True) + "\n", f"{name}.svg": audit_plot.svg(result)}
    with in_words(folder, "; DATA_ROOT names another place"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_whole(folder / file, text)
    return [folder / file for file in texts]


def report(path: Path, result: dict[str, Any], written: list[Path]) -> None:
    """Say the result. Raises Failure if a row is broken."""
    for lines in audit_result.tables(result):
        terminal.say(lines + "\n")
    relation = {True: "repeats", False: "asks the same, with another ground truth, as"}
    some(result["twins"], lambda twin: f"{twin['row']} {relation[twin['same_answer']]} {twin['of']}")
    some(result["faults"], lambda broken: f"{broken['row']}: {broken['fault']}")
    terminal.say(audit_result.line(result) + f" seconds={result['seconds']}")
    terminal.say("written: " + " ".join(map(str, written)))
    if result["faults"]:
        first, broken = result["faults"][0], len({fault["row"] for fault in result["faults"]})
        raise Failure(f"{broken} broken row(s) in {path}, first {first['row']}: {first['fault']}; take them out")


def some(items: list, words: Callable[[dict[str, Any]], str]) -> None:
    for item in items[:SHOWN]:
        terminal.say(words(item))
    if len(items) > SHOWN:
        terminal.say(f"… and {len(items) - SHOWN} more of these, in the JSON file")


if __name__ == "__main__":
    terminal.run(main)
