"""The figures of an evaluation against published values, closed forms and plain counting."""

import itertools
import json
import math
import random
import statistics

import pytest

from evaluation import metrics
from evaluation.metrics import by_k, design_effect, pass_all, pass_at, rate, wilson

Z = 1.959963984540054


# --- intervals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("passed", "samples", "low", "high"),
    # Newcombe, "Two-sided confidence intervals for the single proportion", Stat. Med. 17 (1998), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_newcombes_published_values(passed, samples, low, high):
    assert [round(end, 4) for end in wilson(passed, samples)] == [low, high]


@pytest.mark.parametrize(("passed", "samples"), [(0, 1), (1, 1), (3, 10), (200, 345), (345, 345)])
def test_with_one_sample_a_row_the_interval_is_wilsons_own(passed, samples):
    found = rate([(1, 1)] * passed + [(0, 1)] * (samples - passed))
    share = passed / samples
    # The ends solve (p - x)^2 = z^2 x (1 - x) / n, which is where the interval comes from.
    for end in (found["low"], found["high"]):
        assert math.isclose((share - end) ** 2, Z**2 * end * (1 - end) / samples, abs_tol=1e-12)
    assert found["value"] == share and 0 <= found["low"] <= share <= found["high"] <= 1


@pytest.mark.parametrize("seed", range(5))
def test_the_clustered_variance_is_the_published_sum_over_pairs_of_a_cluster(seed):
    """Miller, "Adding Error Bars to Evals" (2024), eq. 4, as a plain sum over pairs, with m/(m-1) for few clusters."""
    chance = random.Random(seed)
    skills = [chance.random() for _ in range(40)]
    clusters = [[int(chance.random() < skill) for _ in range(chance.randint(1, 6))] for skill in skills]
    flat = list(itertools.chain(*clusters))
    mean, n, m = statistics.fmean(flat), len(flat), len(clusters)
    pairs = sum((a - mean) * (b - mean) for cluster in clusters for a in cluster for b in cluster)
    effect = pairs / n**2 * m / (m - 1) / (statistics.variance(flat) / n)
    assert math.isclose(design_effect([(sum(cluster), len(cluster)) for cluster in clusters]), max(1, effect))


def test_repeats_that_always_agree_tell_no_more_than_one_of_them():
    once = [(1, 1)] * 30 + [(0, 1)] * 20
    repeated = [(4 * passed, 4) for passed, _ in once]
    effect = design_effect(repeated)
    assert math.isclose(effect, 4 * (50 / 49) / (200 / 199))
    found = rate(repeated)
    assert (found["low"], found["high"]) == pytest.approx(wilson(30 * 4 / effect, 200 / effect))
    assert found["high"] - found["low"] >= rate(once)["high"] - rate(once)["low"]


@pytest.mark.parametrize(
    ("rows", "counted"), [([(0, 4)] * 20, (0, 20)), ([(4, 4)] * 20, (20, 20)), ([(3, 4)], (0.75, 1))]
)
def test_where_all_samples_agree_or_there_is_one_row_a_row_counts_once(rows, counted):
    found = rate(rows)
    assert found["value"] == counted[0] / counted[1]
    assert (found["low"], found["high"]) == pytest.approx(wilson(*counted))
    assert (found["low"] == 0.0, found["high"] == 1.0) == (counted[0] == 0, counted[0] == counted[1])


@pytest.mark.parametrize(("mean", "rows"), [(0.6, 60), (0.9, 100)])
def test_the_interval_covers_the_truth_about_95_times_in_100(mean, rows):
    """Rows of different difficulty (a beta distribution), four samples each, 600 times."""
    chance, covered, tries = random.Random(7), 0, 600
    for _ in range(tries):
        skills = [chance.betavariate(2 * mean, 2 * (1 - mean)) for _ in range(rows)]
        found = rate([(sum(chance.random() < skill for _ in range(4)), 4) for skill in skills])
        covered += found["low"] <= mean <= found["high"]
    assert 0.93 <= covered / tries <= 0.98


# --- pass@k and pass^k ---------------------------------------------------------------------


@pytest.mark.parametrize(("passed", "samples", "k"), [(0, 5, 2), (1, 5, 1), (2, 6, 3), (3, 6, 4), (4, 4, 4), (3, 4, 4)])
def test_pass_at_k_and_pass_to_the_k_are_shares_of_all_draws(passed, samples, k):
    draws = list(itertools.combinations([1] * passed + [0] * (samples - passed), k))
    assert math.isclose(pass_at(passed, samples, k), sum(map(any, draws)) / len(draws))
    assert math.isclose(pass_all(passed, samples, k), sum(map(all, draws)) / len(draws))


def test_means_over_rows_take_the_rows_that_have_k_samples():
    rows = [(1, 1), (1, 2), (3, 3), (0, 3)]
    at, every = by_k(rows, pass_at), by_k(rows, pass_all)
    assert list(at) == list(every) == ["1", "2", "3"]
    assert at["1"] == every["1"] == pytest.approx((1 + 0.5 + 1 + 0) / 4)
    assert (at["2"], every["2"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert by_k([], pass_at) == {}


# --- behaviour -----------------------------------------------------------------------------

TOOLS = [
    {"name": "find", "parameters": {"required": ["name", "kind"]}},
    {"name": "list", "parameters": {}},
    {"name": "bare"},
]


def call(name, arguments):
    return {"type": "function_call", "name": name, "arguments": arguments}


def result(**fields):
    return {"type": "function_call_output", "output": json.dumps(fields)}


def said(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def sample(row=0, repeat=0, reward=1.0, output=(), **more):
    fixed = {"category": "c", "status": "completed", "error": None, "ground_truth": [], "usage": None}
    return fixed | {"row": row, "repeat": repeat, "reward": reward, "output": list(output), "metrics": {}} | more


@pytest.mark.parametrize(
    ("items", "counted"),
    [
        ([], {}),
        ([call("find", '{"name": "a", "kind": null}'), result(output="found")], {"tool_calls": 1}),
        ([call("find", '{"name": "a"}'), result(output="Error executing tool 'find': x")],
         {"tool_calls": 1, "tool_errors": 1, "incomplete_calls": 1}),
        ([call("find", '{"name": "a"'), result(error="Invalid tool call arguments: x")],
         {"tool_calls": 1, "tool_errors": 1, "invalid_calls": 1}),
        ([call("list", "[]"), result(detail=[])], {"tool_calls": 1, "tool_errors": 1, "invalid_calls": 1}),
        ([call("gone", "{}"), result(output="Error executing tool 'gone': 'gone'")],
         {"tool_calls": 1, "tool_errors": 1, "unknown_calls": 1}),
        ([call("gone", "["), call("bare", "{}"), result(output="Customer not found.")],
         {"tool_calls": 2, "invalid_calls": 1, "unknown_calls": 1}),
        ([call("list", None), call("list", "null")], {"tool_calls": 2, "invalid_calls": 2}),
        ([said("I call.\n<tool_call>{}</tool_call>"), said("<tool_call>")], {"calls_left_in_text": 1}),
        ([said('{"name": "find", "arguments": {}}')], {"calls_left_in_text": 1}),
        ([said("No tool call is needed, the arguments: none.")], {}),
    ],
)  # fmt: skip
def test_what_a_policy_did_is_counted(items, counted):
    found = metrics.behaviour(sample(output=items), metrics.required_arguments(TOOLS))
    assert found == dict.fromkeys(metrics.COUNTED, 0) | counted


def test_the_summary_counts_each_row_once():
    truncated = {"code": "response_incomplete", "type": "max_output_tokens"}
    found = metrics.summary(
        [
            sample(0, 0, 1.0, usage={"input_tokens": 5, "output_tokens": 2}, metrics={"model_calls": 3}),
            sample(0, 1, 0.0, status="truncated", error=truncated),
            sample(1, 0, 0.0, category="d", ground_truth=[1, 2], output=[call("gone", "{}")]),
            sample(1, 1, 0.0, category="d", ground_truth=[1, 2], status="truncated", error={"code": "too_many_calls"}),
            sample(2, 0, 1.0, ground_truth=[1]),
        ],
        expected=6,
        tools_of=lambda index: TOOLS,
    )
    assert (found["rows"], found["samples"], found["expected"], found["mean_reward"]) == (3, 5, 6, 0.4)
    assert found["pass_rate"] == rate([(1, 2), (0, 2), (1, 1)])
    assert found["categories"]["c"] == {"rows": 2, "samples": 3, "pass_rate": rate([(1, 2), (1, 1)])}
    assert {count: group["samples"] for count, group in found["ground_truth_calls"].items()} == {"0": 2, "1": 1, "2": 2}
    assert found["truncated"] == {"max_output_tokens": 1, "too_many_calls": 1}
    assert found["tokens"] == {"input_tokens": 5, "output_tokens": 2, "samples": 1}
    assert (found["behaviour"]["turns"], found["behaviour"]["unknown_calls"]) == (3, 1)


def test_nothing_at_all_is_no_rate_of_zero():
    found = metrics.summary([], 4, lambda index: [])
    assert found["pass_rate"] is found["mean_reward"] is found["tokens"] is None
    assert found["pass_at"] == found["categories"] == {}
