"""What two sets of samples say about their difference: row by row where rows are known, otherwise as two groups.

Guarantees:
- A sample without a reward is never a 0. A row without samples on one side is left out and named, and so is how far all
  missing samples together could move the difference.
- A difference is claimed only if the test at 5 % is significant, whatever the interval shows; of several categories
  only those that Holm's correction leaves.
- Rewards lie in 0..1. Pure: the formulas are in significance.py.
"""

from collections.abc import Callable
from statistics import fmean
from typing import Any

from evaluation import significance
from evaluation.files import Evaluation

LEVEL = 0.05
DRAWS = f"{significance.RESAMPLES} draws, seed {significance.SEED}"


class Pair:
    """One row on both sides: rewards before and after, and how many samples each side lacks."""

    def __init__(self, item: dict[str, Any]) -> None:
        self.row, self.row_id, self.category = item["row"], item["row_id"], item["category"]
        self.before: list[float] = []
        self.after: list[float] = []
        self.missing = {"before": 0, "after": 0}

    def whole(self) -> bool:
        return bool(self.before and self.after)

    def difference(self) -> float:
        return fmean(self.after) - fmean(self.before)

    def difference_if(self, bad: float) -> float:
        """The difference, had the missing samples earned `bad` after and 1 - `bad` before."""
        after = [*self.after, *[bad] * self.missing["after"]]
        return fmean(after) - fmean([*self.before, *[1 - bad] * self.missing["before"]])

    def told(self) -> dict[str, Any]:
        return {"row": self.row, "row_id": self.row_id, "category": self.category}


def missing(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The samples without a reward, [{"row", "row_id", "row_key", "category", "repeat", "why"}].

    Those that failed, and those of an evaluation that never ran: its configuration tells how many there are.
    """
    failed = {(item["row"], item["repeat"]): item for item in evaluation.failures}
    places = set(failed)
    if config := evaluation.config:
        done = {(item["row"], item["repeat"]) for item in evaluation.samples}
        places = {(row, repeat) for row in range(config["rows"]["count"]) for repeat in range(config["repeats"])} - done
    never_run = {"row_id": None, "category": None, "status": "not run", "error": None}
    samples = []
    for row, repeat in sorted(places):
        item = failed.get((row, repeat), never_run)
        why = (item.get("error") or {}).get("code", item["status"])
        named = {"row_id": item["row_id"], "row_key": item.get("row_key"), "category": item["category"]}
        samples.append({"row": row, **named, "repeat": repeat, "why": why})
    return samples


def pairs(before: tuple, after: tuple, key: Callable[[Any], Any]) -> list[Pair]:
    """The rows of two sides, in order; a side is (samples, missing samples), and `key(sample)` identifies the row."""
    rows: dict[Any, Pair] = {}
    for side, (samples, _) in (("before", before), ("after", after)):
        for item in samples:
            getattr(rows.setdefault(key(item), Pair(item)), side).append(item["reward"])
    for side, (_, lacking) in (("before", before), ("after", after)):
        for item in lacking:
            rows.setdefault(key(item), Pair(item)).missing[side] += 1
    return [rows[name] for name in sorted(rows)]


def paired_result(rows: list[Pair]) -> dict[str, Any]:
    """Figures for at least one Pair, all of them with samples on both sides."""
    differences = [pair.difference() for pair in rows]
    better, worse = (sum(sign * difference > 0 for difference in differences) for sign in (1, -1))
    figures = {
        "rows": len(rows),
        "samples": sum(len(pair.before) + len(pair.after) for pair in rows),
        "base": fmean(fmean(pair.before) for pair in rows),
        "candidate": fmean(fmean(pair.after) for pair in rows),
        "difference": fmean(differences),
        "better": better,
        "worse": worse,
    }
    if all(len(pair.before) == len(pair.after) == 1 and {*pair.before, *pair.after} <= {0, 1} for pair in rows):
        both = sum(pair.before == pair.after == [1] for pair in rows)
        interval = significance.newcombe(both, better, worse, len(rows) - both - better - worse)
        p, method = significance.mcnemar(better, worse), "exact McNemar, Newcombe's interval"
    else:
        interval, p = significance.bootstrap(differences), significance.sign_flips(differences)
        method = f"sign flips of row means, bootstrap over rows ({DRAWS})"
    return figures | {"low": interval[0], "high": interval[1], "p": p, "method": method}


def unpaired_result(base: list, candidate: list) -> dict[str, Any]:
    """Figures for two lists of samples whose rows are unknown; samples with the same `row` number form a group."""
    before, after = (_groups(samples) for samples in (base, candidate))
    low, high = significance.unpaired_interval(before, after)
    return {
        "groups": [len(before), len(after)],
        "samples": len(base) + len(candidate),
        "base": fmean(before),
        "candidate": fmean(after),
        "difference": fmean(after) - fmean(before),
        "low": low,
        "high": high,
        "p": significance.unpaired_test(before, after),
        "method": f"groups dealt anew, bootstrap of groups ({DRAWS}), not paired",
    }


def _groups(samples: list) -> list[float]:
    """The mean reward of each group."""
    groups: dict[int, list[float]] = {}
    for item in samples:
        groups.setdefault(item["row"], []).append(item["reward"])
    return [fmean(rewards) for rewards in groups.values()]


def categories(rows: list[Pair]) -> dict[str, dict[str, Any]]:
    """{category: figures, with "p_holm"} of Pairs; {} where there is only one category."""
    groups: dict[str, list[Pair]] = {}
    for pair in rows:
        groups.setdefault(str(pair.category), []).append(pair)
    if len(groups) < 2:
        return {}
    figures = {name: paired_result(groups[name]) for name in sorted(groups)}
    corrected = significance.holm([values["p"] for values in figures.values()])
    return {name: figures[name] | {"p_holm": p} for name, p in zip(figures, corrected, strict=True)}


def worst_case(rows: list[Pair]) -> tuple[float, float] | None:
    """(low, high) of the difference, had the missing samples of the Pairs been as unkind, or as kind, as possible.

    None if none is missing. A row that one side never had is no missing sample.
    """
    if not any(count for pair in rows for count in pair.missing.values()):
        return None
    had = [pair for pair in rows if (pair.before or pair.missing["before"]) and (pair.after or pair.missing["after"])]
    return fmean(pair.difference_if(0) for pair in had), fmean(pair.difference_if(1) for pair in had)


def flips(rows: list[Pair]) -> dict[str, list[dict[str, Any]]]:
    """{"better": [...], "worse": [...]}: the rows that changed, the largest change first."""
    changed = sorted((pair for pair in rows if pair.difference()), key=lambda pair: (-abs(pair.difference()), pair.row))
    by_side = {"better": [], "worse": []}
    for pair in changed:
        row = pair.told() | {"base": pair.before, "candidate": pair.after}
        by_side["better" if pair.difference() > 0 else "worse"].append(row)
    return by_side


# --- words ---------------------------------------------------------------------------------


def points(value: float) -> str:
    """A difference in percentage points."""
    return f"{100 * value:+.1f}"


def verdict(figures: dict[str, Any], lacking: int = 0, worst: tuple[float, float] | None = None) -> str:
    """One sentence. `lacking` samples of both sides are missing; `worst` is their worst case, if it is known."""
    significant, excludes_zero = figures["p"] < LEVEL, not figures["low"] <= 0 <= figures["high"]
    text = "No difference shown"
    if significant:
        text = f"The candidate is {'better' if figures['difference'] > 0 else 'worse'} than the base"
    size = f"{figures.get('rows')} rows"
    if "groups" in figures:
        size = "{} and {} groups of samples that are not paired: other rows may be why".format(*figures["groups"])
    text += (
        f": {points(figures['difference'])} points (95 % interval {points(figures['low'])} to "
        f"{points(figures['high'])}, p = {figures['p']:.2g}) over {size}"
    )
    if not significant:
        text += _not_shown(figures, excludes_zero)
    elif not excludes_zero:
        text += "; the interval includes 0 all the same, so the evidence is weak"
    return text + _missing_words(significant, lacking, worst) + "."


def _not_shown(figures: dict[str, Any], excludes_zero: bool) -> str:
    if excludes_zero:
        return "; the interval excludes 0 but the test is not significant; more rows are needed"
    size = significance.detectable(figures["low"], figures["high"])
    if size >= 1:
        return ", which does not prove equality: so few samples could hardly show any difference"
    return (
        ", which does not prove equality: with 80 % power these data could detect a difference of about "
        f"{100 * size:.1f} points"
    )


def _missing_words(significant: bool, lacking: int, worst: tuple[float, float] | None) -> str:
    if not lacking:
        return ""
    text = f"; left out without a reward: {lacking} sample(s)"
    if worst:
        text += f", which at their worst and best make it {points(worst[0])} and {points(worst[1])}"
        text += ", and could undo it" if significant and worst[0] <= 0 <= worst[1] else ""
    return text


def category_words(figures: dict[str, dict[str, Any]]) -> str:
    """What may be claimed of the categories, in one line; '' where there are none."""
    if not figures:
        return ""
    claims = [f"{name} {points(values['difference'])}" for name, values in figures.items() if values["p_holm"] < LEVEL]
    shown = ", ".join(claims) or "no difference shown in any"
    return f"By category, corrected for {len(figures)} of them (Holm): {shown}."
