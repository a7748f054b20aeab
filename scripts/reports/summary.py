"""The summary of a run, as the report's first screen shows it: pass rate with interval, figures, plots.

Guarantees: samples without a reward are counted separately and are in no rate; a share is shown with its number of
samples. The formulas are in evaluation/metrics.py, with the samples of a row as a cluster; this file only chooses what
is shown.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from evaluation import metrics
from reports.samples import Sample, calls
from servers import replay

PLOT_LINES, COUNTED_LINES = 40, 10
WORDS = {
    "changed": "another value",
    "deleted": "row deleted, to be kept",
    "kept": "row kept, to be deleted",
    "created": "row created, not asked for",
    "missing": "row not created",
    "order": "another order",
}


def summary(samples: list[Sample], reasons: list[dict[str, Any]]) -> dict[str, Any]:
    """What the page shows above its table: {"rate", "tiles", "plots"}; `reasons` are those of reasons.explain."""
    graded = [sample for sample in samples if sample["reward"] is not None]
    return {
        "rate": _rate(graded) | {"note": _note(graded)},
        "tiles": [*_counts(samples, graded), *_several(graded), *_behaviour(samples, reasons)],
        "plots": [plot for plot in _plots(samples, graded, reasons) if plot["lines"]],
    }


def _rate(samples: list[Sample]) -> dict[str, Any]:
    """{"value", "low", "high"}, all None without samples."""
    return dict(metrics.rate(metrics.per_row(samples)) or dict.fromkeys(("value", "low", "high")))


def _note(graded: list[Sample]) -> str:
    known = {sample["row"]: sample["ground_truth"] for sample in graded if sample["ground_truth"] is not None}
    note = f"{len(graded):,} samples with a reward, of {len({sample['row'] for sample in graded}):,} rows"
    if not known:
        return note
    floor = sum(bool(replay.explain([], truth)["equal"]) for truth in known.values())
    return f"{note}; doing nothing passes {floor} of {len(known)} rows ({100 * floor / len(known):.1f} %)"


def _counts(samples: list[Sample], graded: list[Sample]) -> list[tuple[str, str, str]]:
    passed = sum(passed for passed, _ in metrics.per_row(graded))
    return [
        ("Samples", f"{len(samples):,}", f"{len({sample['row'] for sample in samples}):,} rows"),
        ("Passed", f"{passed:,}", "reward 1"),
        ("Not passed", f"{len(graded) - passed:,}", "any other reward"),
        ("No reward", f"{len(samples) - len(graded):,}", "ended without one"),
        ("Truncated", f"{sum(sample['status'] == 'truncated' for sample in samples):,}", "by a budget"),
    ]


def _several(graded: list[Sample]) -> list[tuple[str, str, str]]:
    """Rates over several tries of a row, for the greatest number of tries."""
    rows = metrics.per_row(graded)
    most = max((count for _, count in rows), default=0)
    if most < 2:
        return []
    any_of, all_of = (metrics.by_k(rows, chance)[str(most)] for chance in (metrics.pass_at, metrics.pass_all))
    return [
        (f"pass@{most}", f"{100 * any_of:.1f} %", f"one of {most} tries passes"),
        (f"pass^{most}", f"{100 * all_of:.1f} %", f"all of {most} tries pass"),
    ]


def _behaviour(samples: list[Sample], reasons: list[dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    steps = [step for reason in reasons for step in reason["steps"]]
    called = [len(calls(sample)) for sample in samples if sample["output"] is not None]
    seconds = [sample["seconds"] for sample in samples if sample["seconds"] is not None]
    tokens = [sample["usage"].get("output_tokens") or 0 for sample in samples if sample["usage"]]
    if called:
        yield ("Tool calls", f"{statistics.fmean(called):.1f}", f"a sample; {max(called)} at most")
    if steps:
        yield ("Failed calls", f"{sum(bool(step['fault']) for step in steps):,}", f"of {len(steps):,} replayed")
    if seconds:
        yield ("Seconds", f"{statistics.median(seconds):.1f}", f"median; {max(seconds):.1f} at most")
    if tokens:
        yield ("Output tokens", f"{statistics.fmean(tokens):,.0f}", "a sample")


def _plots(samples: list[Sample], graded: list[Sample], reasons: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield _by("Pass rate by category", graded, lambda sample: sample["category"], filters=True)
    known = [sample for sample in graded if sample["ground_truth"] is not None]
    yield _by("Pass rate by ground-truth calls", known, lambda sample: len(sample["ground_truth"] or []))
    if len({sample["step"] for sample in samples}) > 1:
        yield _by("Pass rate by rollout", graded, lambda sample: sample["step"])
    differing = Counter(
        words
        for reason in reasons
        for words in {f"{place['table']}: {WORDS[place['kind']]}" for place in reason["differences"]}
    )
    yield _counted("What differs where it did not pass", differing, "samples; one may differ in several ways", "bad")
    ends = Counter(
        str((sample["error"] or {}).get("code") or sample["status"]) for sample in samples if sample["reward"] is None
    )
    yield _counted("Ended without a reward", ends, "samples by code; never counted as zeros", "warn")


def _by(title: str, graded: list[Sample], key: Callable[[Sample], Any], filters: bool = False) -> dict[str, Any]:
    """Pass rates with intervals, a line for each value of `key` (None: left out); with `filters` a line is a button."""
    parts = {}
    for sample in graded:
        if (value := key(sample)) is not None:
            parts.setdefault(value, []).append(sample)
    chosen = sorted(parts, key=lambda value: (isinstance(value, str), value))[:PLOT_LINES]
    lines = [_line(value, parts[value]) | ({"category": value} if filters else {}) for value in chosen]
    more = f"; {len(parts) - len(chosen)} more are not drawn" if len(parts) > len(chosen) else ""
    return {"title": title, "note": f"with 95 % intervals{more}", "style": "bar", "lines": lines}


def _line(value: Any, samples: list[Sample]) -> dict[str, Any]:
    rate = _rate(samples)
    return rate | {"label": str(value), "figure": f"{100 * rate['value']:.1f} %", "note": f"of {len(samples):,}"}


def _counted(title: str, counts: Counter[str], note: str, style: str) -> dict[str, Any]:
    """Counts, the greatest first."""
    most = counts.most_common(COUNTED_LINES)
    lines = [
        {"label": label, "value": count / most[0][1], "low": None, "high": None, "figure": f"{count:,}", "note": ""}
        for label, count in most
    ]
    return {"title": title, "note": note, "style": style, "lines": lines}
