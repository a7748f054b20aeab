"""The report of a run as one HTML file: its summary, a line for each sample, and every trajectory.

Guarantees:
- the file appears whole or not at all; it loads nothing, and forbids itself to;
- text of a run stays text; rewards are the recorded ones;
- what would make a reader doubt the differences (an unfinished run, another environment) stands among its warnings.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

from common import terminal
from common.files import in_words, write_whole
from pages import inline
from reports import reasons, samples, summary
from reports.samples import Sample
from servers.tree import fingerprint, installed_tree

TASK_SHOWN, WHY_SHOWN = 300, 400
LABELS = {"evaluation": "Repeat", "rehearsal": "Sample", "training": "Rollout"}
# Of the environment's fingerprint, what decides what a replay gives.
REPLAYED_BY = ("workplace_tree", "pandas")

Reason = dict[str, Any]


def write(path: Path, source: samples.Source) -> dict[str, Any]:
    """Put the report at `path`. Returns the page's summary. Raises Failure."""
    explained, facts = _explained(source.samples), source.facts
    repeats = facts.get("repeats")
    about = (facts.get("model_reported") or facts.get("model"), facts.get("split"), repeats and f"{repeats} repeats")
    run = {
        "kind": source.kind,
        "title": source.name,
        "about": [str(fact) for fact in about if fact],
        "label": LABELS[source.kind],
        "facts": _flat(facts),
        "warnings": _warnings(source, explained),
        "samples": [_line(*pair) for pair in zip(source.samples, explained, strict=True)],
    } | summary.summary(source.samples, explained)
    page, _ = inline.load("report.html")
    head, _, tail = page.partition(inline.DATA_PLACE)
    tasks = (inline.data(f"t{row}", task) for row, task in _tasks(source.samples).items())
    kept = [{name: item[name] for name in ("output", "metrics", "usage", "request_id")} for item in source.samples]
    details = (inline.data(f"s{nth}", kept[nth] | reason) for nth, reason in enumerate(explained))
    with in_words(path, "; --out names another place"):
        write_whole(path, chain([head + inline.data("run", run)], tasks, details, [tail]))
    return run


def missing(source: samples.Source) -> int:
    """How many of an evaluation's samples neither have a reward nor failed yet; 0 for a dump, which tells no number."""
    count, repeats = (source.facts.get("rows") or {}).get("count"), source.facts.get("repeats")
    return 0 if count is None or repeats is None else count * repeats - len(source.samples)


def _explained(items: list[Sample]) -> list[Reason]:
    """The reason of each sample, with progress."""
    bar, explained = terminal.Bar("samples", len(items)), []
    for sample in items:
        explained.append(reasons.explain(sample))
        bar.step()
    terminal.clear_line()
    return explained


def _flat(config: dict[str, Any], above: str = "") -> list[tuple[str, str]]:
    """[(name, text)] of nested facts, the names joined by dots."""
    lines = []
    for name, value in config.items():
        if isinstance(value, dict):
            lines += _flat(value, f"{above}{name}.")
        elif value not in (None, "", []):
            lines.append((f"{above}{name}", str(value)[:500]))
    return lines


def _warnings(source: samples.Source, explained: list[Reason]) -> list[str]:
    lines = []
    if lacking := missing(source):
        lines.append(
            f"Unfinished: {lacking} of {len(source.samples) + lacking} samples are missing. "
            "Run the same make eval again to complete them."
        )
    here, there = fingerprint(installed_tree()), source.facts.get("environment") or {}
    other = [name for name in REPLAYED_BY if there and there.get(name) != here[name]]
    if other:
        lines.append(f"States were replayed in another environment than the run's: {', '.join(other)} differ.")
    odd = sum(reason["why"].startswith("recorded reward") for reason in explained)
    if odd:
        lines.append(
            f"{odd} recorded rewards are not those of a replay here: the ground truth or the environment may differ."
        )
    unknown = sum(sample["reward"] is not None and sample["ground_truth"] is None for sample in source.samples)
    if unknown:
        lines.append(f"{unknown} samples have no ground truth in the run: their states are not compared.")
    return lines


def _line(sample: Sample, reason: Reason) -> dict[str, Any]:
    """What the table shows of a sample."""
    label = sample["repeat"] if sample["step"] in (None, 0) else f"{sample['step']}.{sample['repeat']}"
    return {
        "group": sample["row"],
        "row_id": sample["row_id"],
        "category": sample["category"],
        "label": str(label if label is not None else "–"),
        "status": str(sample["status"]),
        "reward": sample["reward"],
        "calls": len(samples.calls(sample)),
        "seconds": sample["seconds"],
        "task": _request(sample["input"]),
        "why": reason["why"][:WHY_SHOWN],
    }


def _request(prompt: str | list | None) -> str:
    """What the user asked, for a line of the table."""
    texts = [item.get("content") for item in _items(prompt) if isinstance(item, dict) and item.get("role") == "user"]
    return texts[-1][:TASK_SHOWN] if texts and isinstance(texts[-1], str) else ""


def _items(prompt: str | list | None) -> list:
    """A row's input as a list of items."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt or []


def _tasks(items: list[Sample]) -> dict[int, dict[str, Any]]:
    """{row: {"input", "ground_truth"}}: what the samples of one row share, held once."""
    return {item["row"]: {"input": _items(item["input"]), "ground_truth": item["ground_truth"]} for item in items}
