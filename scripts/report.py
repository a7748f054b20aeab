#!/usr/bin/env python3
"""Write one self-contained HTML file about a run: its pass rate, every sample, every trajectory: `make report`.

RUN is an evaluation (its name or folder), a rollout dump or a folder of them, of rehearsals or of
training; empty: the last `make smoke` or `make train`. The calls of each sample and of its ground
truth are replayed on fresh state here, without servers, to show where the final states differ;
about 10 ms a sample. Guarantees: the file appears whole or not at all, and holds all it needs (it
loads nothing, and forbids itself to); text of a run stays text; rewards are the recorded ones.

    make report
    make report RUN=Qwen3-4B-validation
    scripts/run.sh report --run data/experiments/rehearsal/rollout_result/train/ID.jsonl --out report.html
"""

from itertools import chain
from pathlib import Path

from common import settings as variables
from common import terminal
from common.failure import Failure
from common.files import write_whole
from pages import inline
from reports import reasons as report_reasons
from reports import samples as report_samples
from reports import summary
from servers.tree import fingerprint, installed_tree

OPTIONS = ("RUN", "DATA_ROOT", "EXP_DIR", "SPLIT", "NEMO_GYM_SOURCE_DATA")
TASK_SHOWN, WHY_SHOWN = 300, 400
LABELS = {"evaluation": "Repeat", "rehearsal": "Sample", "training": "Rollout"}
# Of the environment's fingerprint, what decides what a replay gives.
REPLAYED_BY = ("workplace_tree", "pandas")


def add_options(parser):
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it [beside the run]")


def reasons_of(samples):
    """report_reasons.explain of each sample, with progress."""
    bar, found = terminal.Bar("samples", len(samples)), []
    for sample in samples:
        found.append(report_reasons.explain(sample))
        bar.step()
    terminal.clear_line()
    return found


def tasks_of(samples):
    """{row: {"input", "ground_truth"}}: what the samples of one row share, held once."""
    return {each["row"]: {"input": _items(each["input"]), "ground_truth": each["ground_truth"]} for each in samples}


def _items(prompt):
    """A row's input as a list of items."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []


def task_text(prompt):
    """What the user asked, for a line of the table."""
    asked = [item.get("content") for item in _items(prompt) if isinstance(item, dict) and item.get("role") == "user"]
    return asked[-1][:TASK_SHOWN] if asked and isinstance(asked[-1], str) else ""


def index_of(sample, reason):
    """What the table shows of a sample."""
    label = sample["repeat"] if sample["step"] in (None, 0) else f"{sample['step']}.{sample['repeat']}"
    return {
        "group": sample["row"],
        "row_id": sample["row_id"],
        "category": sample["category"],
        "label": str(label if label is not None else "–"),
        "status": str(sample["status"]),
        "reward": sample["reward"],
        "calls": len(report_samples.calls(sample)),
        "seconds": sample["seconds"],
        "task": task_text(sample["input"]),
        "why": reason["why"][:WHY_SHOWN],
    }


def facts_of(config, above=""):
    """[(name, text)] of nested facts, the names joined by dots."""
    lines = []
    for name, value in config.items():
        if isinstance(value, dict):
            lines += facts_of(value, f"{above}{name}.")
        elif value not in (None, "", []):
            lines.append((f"{above}{name}", str(value)[:500]))
    return lines


def about(source):
    """What a reader wants to know first of a run, after its name."""
    found = [source.facts.get("model_reported") or source.facts.get("model"), source.facts.get("split")]
    repeats = source.facts.get("repeats")
    return [str(each) for each in (*found, repeats and f"{repeats} repeats") if each]


def missing_of(source):
    """How many of an evaluation's samples are neither rewarded nor failed yet; 0 for a dump, which tells no number."""
    count, repeats = (source.facts.get("rows") or {}).get("count"), source.facts.get("repeats")
    return 0 if count is None or repeats is None else count * repeats - len(source.samples)


def warnings_of(source, reasons):
    """What a reader has to know before believing the differences."""
    found = []
    if missing := missing_of(source):
        whole = len(source.samples) + missing
        found.append(
            f"Not finished: {missing} of {whole} samples are missing; the same make eval does what is missing."
        )
    here, there = fingerprint(installed_tree()), source.facts.get("environment") or {}
    other = [name for name in REPLAYED_BY if there and there.get(name) != here[name]]
    if other:
        found.append(f"States were replayed in another environment than the run's: {', '.join(other)} differ.")
    odd = sum(reason["why"].startswith("recorded reward") for reason in reasons)
    if odd:
        found.append(
            f"{odd} recorded rewards are not those of a replay here: the ground truth or the environment may differ."
        )
    unknown = sum(sample["reward"] is not None and sample["ground_truth"] is None for sample in source.samples)
    if unknown:
        found.append(f"{unknown} samples have no ground truth in the run: their states are not compared.")
    return found


def write(path, source):
    """Put the report at `path`. Returns the page's summary. Raises Failure."""
    samples = source.samples
    reasons = reasons_of(samples)
    run = {
        "kind": source.kind,
        "title": source.name,
        "about": about(source),
        "label": LABELS[source.kind],
        "facts": facts_of(source.facts),
        "warnings": warnings_of(source, reasons),
        "samples": [index_of(*each) for each in zip(samples, reasons, strict=True)],
    } | summary.summary(samples, reasons)
    page, _ = inline.load("report.html")
    head, _, tail = page.partition(inline.DATA_PLACE)
    tasks = (inline.data(f"t{nth}", task) for nth, task in tasks_of(samples).items())
    details = map(_details, range(len(samples)), samples, reasons)
    try:
        write_whole(path, chain([head + inline.data("run", run)], tasks, details, [tail]))
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; --out names another place") from None
    return run


def _details(nth, sample, reason):
    kept = {name: sample[name] for name in ("output", "metrics", "usage", "request_id")}
    return inline.data(f"s{nth}", kept | reason)


def main():
    settings, args = variables.from_command_line(__doc__, *OPTIONS, configure=add_options)
    source = report_samples.find(settings)
    path = args.out or source.target
    run = write(path, source)
    rate = run["rate"]
    shown = "none" if rate["value"] is None else f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"
    missing = f" missing={missing_of(source)}" if missing_of(source) else ""
    terminal.say(
        f"Report ready: {path.resolve()} run={source.name} samples={len(source.samples)}{missing} pass_rate={shown}"
    )


if __name__ == "__main__":
    terminal.run(main)
