#!/usr/bin/env python3
"""Audit the task rows of a split through the real verifier: `make audit SPLIT=validation`.

For every row: the ground truth replayed must earn 1, the ground truth with one argument altered 0, and
doing nothing earns what it earns (the floor). Besides: rows whose ground truth takes more calls than
one call a turn has turns for (the ceiling), rows that repeat each other in the split and across
the splits that are there, tools and categories, estimated prompt tokens against the budget. Asks
the resource server of the running graph, on this machine; no Gateway trial and no model.
Takes about 20 ms of CPU a row. Exits 1 if a row is broken, each named by file, line and id.

Not judged: whether a ground truth is what its text asks for, and whether it can be found in 6 steps.

    make gym-up && make audit                        # the five example rows
    make audit SPLIT=train                           # tables here; JSON and SVG in $DATA_ROOT/audit
    make audit SPLIT=train LIMIT=50                  # a part of the rows, in files of its own
    scripts/run.sh audit --nemo-gym-source-data rows.jsonl
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor

from checks import registry
from common import net, settings, terminal
from common.failure import Failure
from common.files import sha256_of, write_whole
from evaluation import audit_checks, audit_plot, audit_result
from inputs import row_facts, rows

SPLITS = ("example", "train", "validation")
# The resource server answers one request at a time; a second keeps it busy while the first is read.
AT_ONCE = 3
SHOWN = 10
NAMES = ("SPLIT", "LIMIT", "NEMO_GYM_SOURCE_DATA", "DATA_ROOT", "NEMO_GYM_MAX_PROMPT_LEN", "GYM_BASE_PORT")


def main():
    values, args = settings.from_command_line(__doc__, *NAMES, configure=add_options)
    registry.at_start("audit", values)
    start, path = time.monotonic(), values.rows_path()
    numbered = rows.read_numbered(path, values.LIMIT)
    verifier = audit_checks.Verifier((args.resource_url or values.local_url("resource")).rstrip("/"))
    audit_checks.must_discriminate(verifier)
    result = {
        "format": 1,
        "source": {"path": str(path), "sha256": sha256_of(path), "count": len(numbered)},
        "environment": environment_at(values.local_url("gateway")) if not args.resource_url else None,
        **audit_result.summary(path, numbered, ask(verifier, numbered), values.NEMO_GYM_MAX_PROMPT_LEN),
        "twins": twins(values, path, numbered),
        "seconds": round(time.monotonic() - start, 1),
    }
    written = write(values.DATA_ROOT / "audit", name_of(path, values.LIMIT, len(numbered)), result)
    return report(path, result, written)


def add_options(parser):
    parser.add_argument("--resource-url", metavar="URL", help="the resource server (default: port GYM_BASE_PORT + 2)")


def environment_at(url):
    """What rewards depend on, as the graph's Gateway tells it; None if it does not."""
    return net.readyz(url)[1].get("environment")


def ask(verifier, numbered):
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


def twins(values, path, numbered):
    """Rows that repeat an earlier one of the split, or one of another split: [{"row", "of", "same_answer"}]."""
    own = [(rows.place(path, line, row), row) for line, row in numbered]
    names = {name for name, _ in own}
    found = row_facts.twins(own)
    for split in SPLITS:
        other = values.rows_path(split)
        if other.exists() and other.resolve() != path.resolve():
            theirs = [(rows.place(other, line, row), row) for line, row in rows.read_numbered(other)]
            found += [each for each in row_facts.twins(theirs + own) if each[0] in names and each[1] not in names]
    return [dict(zip(("row", "of", "same_answer"), each, strict=True)) for each in found]


def name_of(path, limit, count):
    """The name of an audit's files: a part of the rows has one of its own, and never replaces the result of all."""
    return f"{path.stem}-first-{limit}" if count == limit else path.stem


def write(folder, name, result):
    """Write the result as JSON and as a plot, each whole or not at all; their paths. Raises Failure."""
    texts = {f"{name}.json": json.dumps(result, indent=1, sort_keys=True) + "\n", f"{name}.svg": audit_plot.svg(result)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            write_whole(folder / file, text)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror}; DATA_ROOT names another place") from None
    return [folder / file for file in texts]


def report(path, result, written):
    """Say what was found. Raises Failure if a row is broken."""
    for lines in audit_result.tables(result):
        terminal.say(lines + "\n")
    some(result["twins"], lambda each: f"{each['row']} {audit_result.relation(each)} {each['of']}")
    some(result["faults"], lambda each: f"{each['row']}: {each['fault']}")
    terminal.say(audit_result.line(result) + f" seconds={result['seconds']}")
    terminal.say("written: " + " ".join(map(str, written)))
    if result["faults"]:
        first, broken = result["faults"][0], len({each["row"] for each in result["faults"]})
        raise Failure(f"{broken} broken row(s) in {path}, first {first['row']}: {first['fault']}; take them out")


def some(items, words):
    for item in items[:SHOWN]:
        terminal.say(words(item))
    if len(items) > SHOWN:
        terminal.say(f"… and {len(items) - SHOWN} more of these, in the JSON file")


if __name__ == "__main__":
    terminal.run(main)
