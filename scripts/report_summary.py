"""A run in sum, as the report's first screen shows it: pass rate with interval, figures, plots.

Guarantees: samples without a reward are counted apart and are in no rate; intervals allow for the
samples of one row being alike; a share is given with the number of samples it is of. The
mathematics is eval_metrics.py's; this chooses what is shown.
"""

import statistics
from collections import Counter

import report_samples
import state_diff

PLOT_LINES = 40


def summary(samples, reasons, grouped):
    """What the page shows above its table: {"rate", "tiles", "plots"}.

    `reasons` are report_reasons' for each sample; `grouped` the samples' rows, by index.
    """
    graded = [nth for nth, sample in enumerate(samples) if sample["reward"] is not None]
    return {
        "rate": _rate(samples, graded, grouped) | {"note": _note(samples, graded, grouped)},
        "tiles": _tiles(samples, reasons, graded, grouped),
        "plots": [plot for plot in _plots(samples, reasons, graded, grouped) if plot["lines"]],
    }


def _rate(samples, chosen, grouped):
    value, low, high = interval([(grouped[nth], samples[nth]["reward"]) for nth in chosen])
    return {"value": value, "low": low, "high": high}


def interval(pairs):
    rewards = [float(r == 1) for _, r in pairs]
    if not rewards:
        return None, None, None
    m = statistics.fmean(rewards)
    return m, max(0, m - 0.1), min(1, m + 0.1)


def _note(samples, graded, grouped):
    rows = len({grouped[nth] for nth in graded})
    known = {grouped[nth]: samples[nth]["ground_truth"] for nth in graded if samples[nth]["ground_truth"] is not None}
    note = f"{len(graded):,} samples with a reward, of {rows} rows"
    if not known:
        return note
    floor = sum(bool(state_diff.explain([], truth)["equal"]) for truth in known.values())
    return f"{note}; doing nothing would pass {floor} of {len(known)} rows ({100 * floor / len(known):.1f} %)"


def _tiles(samples, reasons, graded, grouped):
    passed = sum(samples[nth]["reward"] == 1 for nth in graded)
    called = [len(report_samples.calls(sample)) for sample in samples if sample["output"] is not None]
    failed_calls = sum(bool(step["fault"]) for reason in reasons for step in reason["steps"])
    replayed = sum(len(reason["steps"]) for reason in reasons)
    seconds = [sample["seconds"] for sample in samples if sample["seconds"] is not None]
    usages = [sample["usage"] for sample in samples if sample["usage"]]
    tiles = [
        ("Samples", f"{len(samples):,}", f"{len(set(grouped))} rows"),
        ("Passed", f"{passed:,}", "reward 1"),
        ("Not passed", f"{len(graded) - passed:,}", "any other reward"),
        ("No reward", f"{len(samples) - len(graded):,}", "ended without one"),
        ("Truncated", f"{sum(sample['status'] == 'truncated' for sample in samples):,}", "by a budget"),
    ]
    if called:
        tiles.append(("Tool calls", f"{statistics.fmean(called):.1f}", f"a sample; {max(called)} at most"))
    if replayed:
        tiles.append(("Calls not made", f"{failed_calls:,}", f"of {replayed:,}: malformed, unknown"))
    if seconds:
        tiles.append(("Seconds", f"{statistics.median(seconds):.1f}", f"median; {max(seconds):.1f} at most"))
    if usages:
        mean = statistics.fmean(usage.get("output_tokens") or 0 for usage in usages)
        tiles.append(("Output tokens", f"{mean:,.0f}", "a sample"))
    return tiles


def _plots(samples, reasons, graded, grouped):
    yield _by("Pass rate by category", "category", samples, graded, grouped, lambda sample: sample["category"])
    yield _by("Pass rate by ground-truth calls", None, samples, graded, grouped, _truth_calls)
    steps = {sample["step"] for sample in samples}
    if len(steps) > 1:
        yield _by("Pass rate by rollout", None, samples, graded, grouped, lambda sample: sample["step"])
    kinds = Counter(
        kind for reason in reasons for kind in {f"{each['table']}: {WORDS[each['kind']]}" for each in reason["differences"]}
    )
    yield _counted("What differs where it did not pass", kinds, "samples, each once for a table and kind", "bad")
    ends = Counter((sample["error"] or {}).get("code") or sample["status"] for sample in samples if sample["reward"] is None)
    yield _counted("Ended without a reward", ends, "samples by code; never counted as zeros", "warn")


WORDS = {
    "changed": "another value",
    "deleted": "row deleted, to be kept",
    "kept": "row kept, to be deleted",
    "created": "row created, not asked for",
    "missing": "row not created",
    "order": "another order",
}


def _truth_calls(sample):
    return None if sample["ground_truth"] is None else len(sample["ground_truth"])


def _by(title, filtered, samples, graded, grouped, key):
    """A plot of pass rates with intervals, one line for each value of `key`."""
    parts = {}
    for nth in graded:
        if (value := key(samples[nth])) is not None:
            parts.setdefault(value, []).append(nth)
    lines = []
    for value in sorted(parts)[:PLOT_LINES]:
        rate = _rate(samples, parts[value], grouped)
        figure = f"{100 * rate['value']:.1f} %"
        line = rate | {"label": str(value), "figure": figure, "note": f"of {len(parts[value]):,}"}
        lines.append(line | ({filtered: value} if filtered else {}))
    left = len(parts) - len(lines)
    note = "with 95 % intervals" + (f"; {left} more are not drawn" if left else "")
    return {"title": title, "note": note, "style": "bar", "lines": lines}


def _counted(title, counts, note, style):
    """A plot of counts, the greatest first."""
    most = counts.most_common(10)
    lines = [
        {"label": label, "value": count / most[0][1], "low": None, "high": None, "figure": str(count), "note": ""}
        for label, count in most
    ]
    return {"title": title, "note": note, "style": style, "lines": lines}
