"""Tests and intervals for two policies on the same rows, and for two sets of other rows. Pure, standard library.

- McNemar's test, exact (1947; the binomial form): of the rows on which two policies differ, each way is as likely, if
  there is no difference. Two-sided: twice the smaller tail.
- Difference of paired shares: Newcombe's square-and-add interval of Wilson's limits, with his continuity-corrected
  correlation (Statistics in Medicine 17, 1998, 2635-2650, method 10).
- Rows with several samples: a row's difference is that of its mean rewards. Test: random sign flips of these
  differences (McNemar's test where a row has one sample). Interval: percentile bootstrap over rows.
- Without pairs: each side's mean of groups has its bootstrap interval, and the two are squared and added as for
  independent shares (Newcombe 1998, method 10 of the companion paper). Test: the groups are dealt anew to both sides.
- Holm's correction (1979) where several tests are looked at together.

Guarantees: the same samples give the same figures, since all random draws come from SEED. Nothing here knows what a row
is or why a sample is missing.
"""

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean

from evaluation.metrics import Z, wilson

SEED, RESAMPLES = 0, 10_000
# A test at 5 % has 80 % power for a difference of this many half-widths of the 95 % interval.
POWER = (Z + NormalDist().inv_cdf(0.8)) / Z


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value for `gained` and `lost` rows among those that differ."""
    differ = gained + lost
    tail = sum(math.comb(differ, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**differ)


def newcombe(both: int, gained: int, lost: int, neither: int) -> tuple[float, float]:
    """95 % interval (low, high) of the share that passes after minus the share before, from counts of rows."""
    count = both + gained + lost + neither
    after, before = both + gained, both + lost
    (low_after, high_after), (low_before, high_before) = wilson(after, count), wilson(before, count)
    p, q = after / count, before / count
    phi = _correlation(both, gained, lost, neither)
    down = _hypot(p - low_after, high_before - q, phi)
    up = _hypot(high_after - p, q - low_before, phi)
    return p - q - down, p - q + up


def _hypot(x: float, y: float, phi: float) -> float:
    return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))


def _correlation(a: int, b: int, c: int, d: int) -> float:
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    cross = a * d - b * c
    if cross > 0:
        cross = max(0.0, cross - (a + b + c + d) / 2)
    return cross / math.sqrt(margins) if margins else 0.0


def sign_flips(differences: Sequence[float]) -> float:
    """Two-sided p-value: without a difference, each row's difference is as likely to have the other sign."""
    sizes = Counter(abs(difference) for difference in differences if difference)
    observed, draw = abs(math.fsum(differences)), random.Random(SEED)
    hits = sum(
        abs(sum(size * (2 * draw.binomialvariate(count) - count) for size, count in sizes.items())) >= observed - 1e-9
        for _ in range(RESAMPLES)
    )
    return (1 + hits) / (1 + RESAMPLES)


def bootstrap(values: Sequence[float], least: float = -1.0) -> tuple[float, float]:
    """95 % interval (low, high) of the mean of rows' values, each in `least`..1."""
    if len(set(values)) == 1:
        # Nothing to resample: bounds from the share of rows that may differ, given that none of these did.
        other = 1 - 0.025 ** (1 / len(values))
        return (1 - other) * values[0] + other * least, (1 - other) * values[0] + other
    counts, draw = Counter(values), random.Random(SEED)
    return percentiles(_resampled(counts, draw) / len(values) for _ in range(RESAMPLES))


def _resampled(counts: Counter[float], draw: random.Random) -> float:
    """Sum of as many values as there are, drawn with replacement: a value's number of draws is binomial."""
    left, pool, total = counts.total(), counts.total(), 0.0
    for value, count in counts.items():
        taken = draw.binomialvariate(left, min(1.0, count / pool)) if left else 0
        total, left, pool = total + taken * value, left - taken, pool - count
    return total


def percentiles(draws: Iterable[float]) -> tuple[float, float]:
    """The middle 95 % of the draws."""
    ordered = sorted(draws)
    tail = len(ordered) // 40
    return ordered[tail], ordered[-1 - tail]


def unpaired_interval(before: list[float], after: list[float]) -> tuple[float, float]:
    """95 % interval of the difference of the means of two independent sides; a value is a group's mean reward, 0..1."""
    (low_before, high_before), (low_after, high_after) = bootstrap(before, 0.0), bootstrap(after, 0.0)
    p, q = fmean(after), fmean(before)
    return p - q - math.hypot(p - low_after, high_before - q), p - q + math.hypot(high_after - p, q - low_before)


def unpaired_test(before: list[float], after: list[float]) -> float:
    """Two-sided p-value: without a difference, a group might as well belong to the other side."""
    pool, draw, observed = before + after, random.Random(SEED), abs(fmean(after) - fmean(before))
    hits = 0
    for _ in range(RESAMPLES):
        draw.shuffle(pool)
        hits += abs(fmean(pool[len(before) :]) - fmean(pool[: len(before)])) >= observed - 1e-9
    return (1 + hits) / (1 + RESAMPLES)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values in their order, corrected for their number."""
    order, corrected, least = sorted(range(len(p_values)), key=p_values.__getitem__), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def detectable(low: float, high: float) -> float:
    """About the true difference that data with this 95 % interval detect with 80 % power."""
    return POWER * (high - low) / 2
