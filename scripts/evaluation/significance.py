"""Tests and intervals for two policies on the same rows, and for two sets of other rows. Pure, standard library.

- McNemar's test, exact (1947; the binomial form): of the rows on which two policies differ, each way
  is as likely, if there is no difference. Two-sided: twice the smaller tail.
- Difference of paired shares: Newcombe's square-and-add interval of Wilson's limits, with his
  continuity-corrected correlation (Statistics in Medicine 17, 1998, 2635-2650, method 10).
- Where rows have several samples, a row's difference is that of its mean rewards. Test: random
  sign flips of these differences (with one sample a row this is McNemar's test). Interval:
  percentile bootstrap over rows.
- Without pairs: each side's mean of groups has its bootstrap interval, and the two are squared and
  added as for independent shares (Newcombe 1998, method 10 of the companion paper); the test deals
  the groups anew to the two sides.
- Holm's correction (1979) where several tests are looked at together.

Whatever is drawn at random is drawn from SEED, so that the same samples give the same figures.
None of it knows what a row is or why a sample is missing.
"""

import math
import random
from collections import Counter
from statistics import NormalDist, fmean

from evaluation.metrics import Z, wilson

SEED, RESAMPLES = 0, 10_000
# A difference of this many half-widths of a 95 % interval is found by a test at 5 % in 80 of 100 cases.
POWER = (Z + NormalDist().inv_cdf(0.8)) / Z


def mcnemar(gained, lost):
    """Two-sided exact p-value for `gained` and `lost` rows among those that differ."""
    differ = gained + lost
    tail = sum(math.comb(differ, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**differ)


def newcombe(both, gained, lost, neither):
    """95 % interval (low, high) of the share that passes after less the share before, for counts of rows."""
    count = both + gained + lost + neither
    after, before = both + gained, both + lost
    (low_after, high_after), (low_before, high_before) = wilson(after, count), wilson(before, count)
    p, q = after / count, before / count
    phi = _correlation(both, gained, lost, neither)
    down = _hypot(p - low_after, high_before - q, phi)
    up = _hypot(high_after - p, q - low_before, phi)
    return p - q - down, p - q + up


def _hypot(x, y, phi):
    return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))


def _correlation(a, b, c, d):
    margins = (a + b) * (c + d) * (a + c) * (b + d)
    cross = a * d - b * c
    if cross > 0:
        cross = max(0.0, cross - (a + b + c + d) / 2)
    return cross / math.sqrt(margins) if margins else 0.0


def sign_flips(differences):
    """Two-sided p-value for row differences that are as likely to be one way round as the other."""
    sizes = Counter(abs(each) for each in differences if each)
    observed, draw = abs(math.fsum(differences)), random.Random(SEED)
    hits = sum(
        abs(sum(size * (2 * draw.binomialvariate(count) - count) for size, count in sizes.items())) >= observed - 1e-9
        for _ in range(RESAMPLES)
    )
    return (1 + hits) / (1 + RESAMPLES)


def bootstrap(values, least=-1.0):
    """95 % interval (low, high) of the mean of rows' values, each in `least`..1."""
    if len(set(values)) == 1:
        return _all_equal(values[0], len(values), least)
    counts, draw = Counter(values), random.Random(SEED)
    return percentiles(_resampled(counts, draw) / len(values) for _ in range(RESAMPLES))


def _resampled(counts, draw):
    """Sum of as many values as there are, drawn with replacement: how often each one comes is binomial."""
    left, pool, total = counts.total(), counts.total(), 0.0
    for value, count in counts.items():
        taken = draw.binomialvariate(left, min(1.0, count / pool)) if left else 0
        total, left, pool = total + taken * value, left - taken, pool - count
    return total


def _all_equal(value, count, least):
    """Nothing to resample: bounds from the share of rows that may be other, given that none of `count` was."""
    other = 1 - 0.025 ** (1 / count)
    return (1 - other) * value + other * least, (1 - other) * value + other


def percentiles(draws):
    """The middle 95 % of the draws."""
    ordered = sorted(draws)
    tail = len(ordered) // 40
    return ordered[tail], ordered[-1 - tail]


def unpaired_interval(before, after):
    """95 % interval of the difference of two means of independent groups, each group a mean reward in 0..1."""
    (low_before, high_before), (low_after, high_after) = bootstrap(before, 0.0), bootstrap(after, 0.0)
    p, q = fmean(after), fmean(before)
    return p - q - math.hypot(p - low_after, high_before - q), p - q + math.hypot(high_after - p, q - low_before)


def unpaired_test(before, after):
    """Two-sided p-value for groups that might as well have fallen to the other side."""
    pool, draw, observed = before + after, random.Random(SEED), abs(fmean(after) - fmean(before))
    hits = 0
    for _ in range(RESAMPLES):
        draw.shuffle(pool)
        hits += abs(fmean(pool[len(before) :]) - fmean(pool[: len(before)])) >= observed - 1e-9
    return (1 + hits) / (1 + RESAMPLES)


def holm(p_values):
    """The p-values, corrected for their number, in their order."""
    order, corrected, least = sorted(range(len(p_values)), key=p_values.__getitem__), [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def findable(low, high):
    """The true difference that data with this 95 % interval would show in 4 of 5 cases, about."""
    return POWER * (high - low) / 2
