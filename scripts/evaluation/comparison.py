"""What two sets of samples say of their difference: by row where rows are known, as two groups where not.

Guarantees: a sample without a reward is never a 0; a row that has no sample on one side is left out of
the difference and named, and how far all missing samples together could move it is told beside
it; a difference is called shown only if the test at 5 % says so, whatever the interval; of several
categories only what Holm's correction leaves is claimed. Rewards lie in 0..1. Pure; the
formulas are in paired.py.
"""

from statistics import fmean

from evaluation import significance

LEVEL = 0.05


class Pair:
    """One row on both sides: rewards before and after, and how many samples each side lacks."""

    def __init__(self, item):
        self.row, self.row_id, self.category = item["row"], item["row_id"], item["category"]
        self.before, self.after = [], []
        self.missing = {"before": 0, "after": 0}

    def whole(self):
        return bool(self.before and self.after)

    def difference(self):
        return fmean(self.after) - fmean(self.before)

    def difference_if(self, bad):
        """The difference, had the missing samples earned `bad` after and 1 - `bad` before."""
        after = [*self.after, *[bad] * self.missing["after"]]
        return fmean(after) - fmean([*self.before, *[1 - bad] * self.missing["before"]])

    def told(self):
        return {"row": self.row, "row_id": self.row_id, "category": self.category}


def missing(evaluation):
    """The samples without a reward, [{"row", "row_id", "category", "repeat", "why"}].

    Those that failed, and for an evaluation those that never ran: its configuration tells how many there are.
    """
    failed = {(item["row"], item["repeat"]): item for item in evaluation.failures}
    places = set(failed)
    if config := evaluation.config:
        done = {(item["row"], item["repeat"]) for item in evaluation.samples}
        places = {(row, repeat) for row in range(config["rows"]["count"]) for repeat in range(config["repeats"])} - done
    return [_missing(*place, failed.get(place)) for place in sorted(places)]


def _missing(row, repeat, failure):
    item = failure or {"row_id": None, "category": None}
    why = (item.get("error") or {}).get("code", item["status"]) if failure else "not run"
    return {"row": row, "row_id": item["row_id"], "category": item["category"], "repeat": repeat, "why": why}


def pairs(before, after, key):
    """The rows of two sides, each (samples, missing samples): a list of Pair, in order; `key(sample)` tells a row."""
    found, sides = {}, (("before", *before), ("after", *after))
    for side, samples, _ in sides:
        for item in samples:
            getattr(found.setdefault(key(item), Pair(item)), side).append(item["reward"])
    for side, _, lacking in sides:
        for item in lacking:
            found.setdefault(key(item), Pair(item)).missing[side] += 1
    return [found[name] for name in sorted(found)]


def paired_result(rows):
    """Figures for Pairs that have samples on both sides; None without any."""
    if not rows:
        return None
    differences = [pair.difference() for pair in rows]
    up, down = (sum(sign * each > 0 for each in differences) for sign in (1, -1))
    told = {
        "rows": len(rows),
        "samples": sum(len(pair.before) + len(pair.after) for pair in rows),
        "base": fmean(fmean(pair.before) for pair in rows),
        "candidate": fmean(fmean(pair.after) for pair in rows),
        "difference": fmean(differences),
        "better": up,
        "worse": down,
    }
    return told | (_single(rows, up, down) if _is_table(rows) else _several(differences))


def _is_table(rows):
    """Whether the rows are a table of four: one sample on each side, passed or not."""
    return all(len(pair.before) == len(pair.after) == 1 and {*pair.before, *pair.after} <= {0, 1} for pair in rows)


def _single(rows, up, down):
    both = sum(pair.before == pair.after == [1] for pair in rows)
    low, high = significance.newcombe(both, up, down, len(rows) - both - up - down)
    return {
        "low": low,
        "high": high,
        "p": significance.mcnemar(up, down),
        "method": "exact McNemar, Newcombe's interval",
    }


def _several(differences):
    low, high = significance.bootstrap(differences)
    method = f"sign flips of row means, bootstrap over rows ({significance.RESAMPLES} draws, seed {significance.SEED})"
    return {"low": low, "high": high, "p": significance.sign_flips(differences), "method": method}


def unpaired_result(base, candidate):
    """Figures for two lists of samples whose rows cannot be told; samples with one `row` number are one group."""
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
        "method": f"groups dealt anew, bootstrap of groups ({significance.RESAMPLES} draws, "
        f"seed {significance.SEED}), not paired",
    }


def _groups(samples):
    found = {}
    for item in samples:
        found.setdefault(item["row"], []).append(item["reward"])
    return [fmean(rewards) for rewards in found.values()]


def categories(rows):
    """{category: figures, with "p_holm"} of Pairs; {} where there is only one."""
    found = {}
    for pair in rows:
        found.setdefault(str(pair.category), []).append(pair)
    if len(found) < 2:
        return {}
    figures = {name: paired_result(found[name]) for name in sorted(found)}
    corrected = significance.holm([each["p"] for each in figures.values()])
    return {name: each | {"p_holm": p} for (name, each), p in zip(figures.items(), corrected, strict=True)}


def worst_case(rows):
    """(low, high) of the difference, had the missing samples of the Pairs been as unkind, or as kind, as can be.

    None if none is missing. A row that one side never had is no missing sample.
    """
    if not any(count for pair in rows for count in pair.missing.values()):
        return None
    had = [pair for pair in rows if (pair.before or pair.missing["before"]) and (pair.after or pair.missing["after"])]
    return tuple(fmean(pair.difference_if(bad) for pair in had) for bad in (0, 1))


def flips(rows):
    """{"better": [...], "worse": [...]}: the rows that changed, the largest change first."""
    ordered = sorted(rows, key=lambda pair: (-abs(pair.difference()), pair.row))
    return {
        name: [
            pair.told() | {"base": pair.before, "candidate": pair.after}
            for pair in ordered
            if sign * pair.difference() > 0
        ]
        for name, sign in (("better", 1), ("worse", -1))
    }


# --- words ---------------------------------------------------------------------------------


def points(value):
    """A difference in percentage points."""
    return f"{100 * value:+.1f}"


def verdict(figures, lacking=0, worst=None):
    """One sentence. `lacking` samples are missing, of both sides, and `worst` is their worst case, if it is known."""
    leaves_out_zero = not figures["low"] <= 0 <= figures["high"]
    if figures["p"] < LEVEL:
        text = f"The candidate is {'better' if figures['difference'] > 0 else 'worse'} than the base"
    else:
        text = "No difference shown"
    text += (
        f": {points(figures['difference'])} points (95 % interval {points(figures['low'])} to "
        f"{points(figures['high'])}, p = {figures['p']:.2g}) over {_size(figures)}"
    )
    if figures["p"] >= LEVEL:
        text += _not_shown(figures, leaves_out_zero)
    elif not leaves_out_zero:
        text += "; the interval holds 0 all the same, so that the evidence is weak"
    return text + _missing_words(figures, lacking, worst) + "."


def _size(figures):
    if "groups" in figures:
        return "{} and {} groups of samples that are not paired: other rows may be why".format(*figures["groups"])
    return f"{figures['rows']} rows"


def _not_shown(figures, leaves_out_zero):
    if leaves_out_zero:
        return "; the interval leaves 0 out and the test does not, so that it takes more rows to tell"
    size = significance.findable(figures["low"], figures["high"])
    if size >= 1:
        return ", which is not the same as none: so few samples can hardly show any"
    return (
        f", which is not the same as none: these data would show one of about {100 * size:.1f} points in 4 of 5 cases"
    )


def _missing_words(figures, lacking, worst):
    if not lacking:
        return ""
    text = f"; left out without a reward: {lacking} sample(s)"
    if worst:
        text += f", which at their worst and best make it {points(worst[0])} and {points(worst[1])}"
        text += ", and could undo it" if figures["p"] < LEVEL and worst[0] <= 0 <= worst[1] else ""
    return text


def category_words(found):
    """What may be said of the categories, in one line; '' where there are none."""
    if not found:
        return ""
    shown = [name for name, each in found.items() if each["p_holm"] < LEVEL]
    told = ", ".join(f"{name} {points(found[name]['difference'])}" for name in shown)
    return f"By category, corrected for {len(found)} of them (Holm): {told or 'no difference shown in any'}."
