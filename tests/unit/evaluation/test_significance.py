"""Tests and intervals against published examples and against full enumeration."""

import itertools
import math
from statistics import fmean

import pytest

from evaluation import significance

# Both passed, only the second, only the first, neither; what was published for the second less the first.
NEWCOMBE_1998 = (36, 12, 2, 0)
# Bentur et al. 2009, as worked out by Fagerland, Lydersen and Laake (2013, 2014): 21 children, before and after.
AIRWAYS = (1, 7, 1, 12)
# Approval of the prime minister, Agresti, Categorical Data Analysis: 1,600 people asked twice.
APPROVAL = (794, 86, 150, 570)


def test_mcnemar_is_the_published_one():
    assert significance.mcnemar(7, 1) == pytest.approx(0.0703, abs=5e-5)
    assert significance.mcnemar(86, 150) == pytest.approx(3.716e-05, rel=1e-3)
    assert significance.mcnemar(1, 7) == significance.mcnemar(7, 1)
    assert significance.mcnemar(0, 0) == significance.mcnemar(3, 3) == 1
    assert significance.sign_flips([1] * 7 + [-1] + [0] * 13) == pytest.approx(significance.mcnemar(7, 1), abs=0.01)


@pytest.mark.parametrize(
    ("table", "low", "high"), [(NEWCOMBE_1998, 0.0569, 0.3404), (AIRWAYS, 0.026, 0.507), (APPROVAL, -0.0587, -0.0212)]
)
def test_the_interval_of_paired_shares_is_the_published_one(table, low, high):
    digits = 5 * 10 ** -(len(str(high).partition(".")[2]) + 1)
    assert significance.newcombe(*table) == pytest.approx((low, high), abs=digits)
    both, gained, lost, neither = table
    assert significance.newcombe(both, lost, gained, neither) == pytest.approx((-high, -low), abs=digits)


@pytest.mark.parametrize("table", [(10, 0, 0, 10), (5, 0, 0, 0)])
def test_the_interval_without_any_difference_still_has_a_width(table):
    low, high = significance.newcombe(*table)
    assert low < 0 < high


def enumerated(differences):
    """p-value over all signs."""
    observed = abs(math.fsum(differences))
    signs = list(itertools.product((1, -1), repeat=len(differences)))
    return fmean(abs(sum(s * d for s, d in zip(each, differences, strict=True))) >= observed - 1e-9 for each in signs)


@pytest.mark.parametrize(
    "differences",
    [[1.0] * 5, [0.25, 0.5, -0.25, 0.75, 1.0, 0.0, -0.5], [0.25] * 6 + [-0.25] * 2 + [0.0] * 4, [0.0] * 3],
)
def test_sign_flips_come_near_the_p_value_over_all_signs(differences):
    assert significance.sign_flips(differences) == pytest.approx(enumerated(differences), abs=0.012)


def test_the_bootstrap_comes_near_the_normal_interval_of_many_rows():
    differences = [0.5] * 300 + [-0.25] * 200 + [0.0] * 500
    mean = fmean(differences)
    error = math.sqrt(fmean((each - mean) ** 2 for each in differences) / len(differences))
    low, high = significance.bootstrap(differences)
    assert (low, high) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=error / 8)


def test_equal_differences_give_an_interval_that_knows_how_few_rows_there_were():
    low, high = significance.bootstrap([0.0] * 20)
    # Were more than 16.8 % of rows other, 20 in a row would be alike in fewer than 2.5 of 100 cases.
    assert high == -low == pytest.approx(1 - 0.025 ** (1 / 20)) == pytest.approx(0.168, abs=5e-4)
    low, high = significance.bootstrap([1.0] * 5)
    assert low == pytest.approx(1 - 2 * (1 - 0.025 ** (1 / 5))) and high == 1


def test_groups_without_pairs():
    before, after = [0.0, 0.25, 0.5, 0.25], [0.75, 1.0, 0.75, 1.0]
    low, high = significance.unpaired_interval(before, after)
    assert 0 < low < fmean(after) - fmean(before) < high
    low, high = significance.unpaired_interval([0.0] * 4, [1.0] * 4)
    assert low == pytest.approx(1 - math.sqrt(2) * 0.602, abs=1e-3) and high == 1
    # Of the 70 ways to deal eight groups, two are as far apart.
    assert significance.unpaired_test(before, after) == pytest.approx(2 / 70, abs=0.01)
    assert significance.unpaired_test(before, before) == 1
    # Newcombe's companion paper, 56 of 70 and 48 of 80: 0.0524 to 0.3339 by method 10.
    before, after = [1.0] * 48 + [0.0] * 32, [1.0] * 56 + [0.0] * 14
    assert significance.unpaired_interval(before, after) == pytest.approx((0.0524, 0.3339), abs=0.015)


def test_the_same_samples_give_the_same_figures():
    for figure in (significance.bootstrap, significance.sign_flips):
        assert figure([0.25, 0.5, -0.25] * 9) == figure([0.25, 0.5, -0.25] * 9)


def test_holm_is_the_published_correction():
    # Worked example of the step-down: 0.01, 0.04, 0.03, 0.005 become 0.03, 0.06, 0.06, 0.02.
    assert significance.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert significance.holm([0.6, 0.9]) == [1.0, 1.0]
    assert significance.holm([]) == []


def test_what_could_have_been_found_is_the_usual_power_formula():
    # 1.96 + 0.8416 standard errors.
    assert significance.detectable(-0.0196, 0.0196) == pytest.approx(0.028016, abs=1e-5)
