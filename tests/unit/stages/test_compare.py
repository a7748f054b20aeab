"""The comparison as a program, on result folders and dumps with known tables."""

import copy
import json

import pytest

from common import settings
from common.failure import Failure
from evaluation import comparison, conditions, sides, significance
from evaluation.files import Evaluation
from support.programs import only_error, stage_alone

CONFIG = {
    "format": 1,
    "rows": {"path": "rows.jsonl", "sha256": "5" * 64, "count": 20},
    "split": "validation",
    "limit": 0,
    "repeats": 1,
    "model": "base",
    "model_reported": "base-v1",
    "wire": "responses",
    "sampling": {"temperature": 1.0, "max_output_tokens": 2048},
    "environment": {"commit": "a85670e", "tree": "1", "patches": "2", "pandas": "2.3.2"},
    "gateway": {"protocol_version": "relax-nemo-gym/v1", "version": "1"},
    "deadline_s": 600,
}


def sample(row, repeat, reward, category="email", **changes):
    fields = {"row": row, "row_id": 100 + row, "category": category, "repeat": repeat, "request_id": "r"}
    return fields | {"status": "completed", "error": None, "reward": reward, "output": []} | changes


def config(**changes):
    """CONFIG with `changes` by dotted field, the dot as two underscores."""
    changed = copy.deepcopy(CONFIG)
    for name, value in changes.items():
        parent, _, field = name.rpartition("__")
        (changed[parent] if parent else changed)[field] = value
    return changed


def lines(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


@pytest.fixture
def results(tmp_path):
    """Writes an evaluation's folder: results(name, {row: [rewards]}, ...)."""

    def make(name, rewards, failures=(), category=lambda row: "email", **changes):
        folder = tmp_path / "data" / "eval" / name
        folder.mkdir(parents=True)
        repeats = max(map(len, rewards.values()))
        settings = {"rows__count": len(rewards), "repeats": repeats, "model": name, "model_reported": f"{name}-v1"}
        (folder / "config.json").write_text(json.dumps(config(**settings | changes)))
        samples = [
            sample(row, repeat, reward, category(row))
            for row, given in rewards.items()
            for repeat, reward in enumerate(given)
            if reward is not None
        ]
        lines(folder / "rollouts.jsonl", samples)
        lines(folder / "failures.jsonl", failures)
        return folder

    return make


@pytest.fixture
def compare_results(results, compare):
    """Writes the evaluations base and trained with these rewards, and compares them."""

    def run(base, candidate, **changes):
        results("base", base), results("trained", candidate, **changes)
        return compare("base", "trained")

    return run


@pytest.fixture
def compare(tmp_path):
    def run(base, candidate, **variables):
        options = ["--base", base, "--candidate", candidate, "--data-root", tmp_path / "data"]
        done = stage_alone("compare", *options, home=tmp_path, **variables)
        written = list((tmp_path / "data" / "compare").glob("*.json"))
        return done, json.loads(written[0].read_text()) if written else None

    return run


def table(both, gained, lost, neither):
    """Rewards of base and candidate, {row: [reward]}."""
    pairs = [(1.0, 1.0)] * both + [(0.0, 1.0)] * gained + [(1.0, 0.0)] * lost + [(0.0, 0.0)] * neither
    return [{row: [pair[side]] for row, pair in enumerate(pairs)} for side in (0, 1)]


def test_the_configuration_of_these_tests_has_the_fields_of_a_real_one(tmp_path):
    source = lines(tmp_path / "rows.jsonl", [])
    values = settings.load({"NEMO_GYM_SOURCE_DATA": str(source)}, {}, dotenv=tmp_path / "none")
    facts = {name: CONFIG[name] for name in ("environment", "gateway")}
    real = conditions.configuration(values, 0, CONFIG["sampling"], facts, "m")
    assert real.keys() == CONFIG.keys() and real["rows"].keys() == CONFIG["rows"].keys()


def test_a_known_table_gives_its_published_figures_and_its_flips(compare_results):
    done, found = compare_results(*table(36, 12, 2, 0))
    assert done.returncode == 0, done.stderr
    figures = found["figures"]
    assert (figures["low"], figures["high"]) == (pytest.approx(0.0569, abs=5e-5), pytest.approx(0.3404, abs=5e-5))
    assert figures["p"] == pytest.approx(2 * (1 + 14 + 91) / 2**14)
    assert (figures["base"], figures["candidate"], figures["difference"]) == pytest.approx((0.76, 0.96, 0.2))
    assert [each["row"] for each in found["flips"]["better"]] == list(range(36, 48))
    assert found["flips"]["worse"] == [
        {"row": row, "row_id": 100 + row, "category": "email", "base": [1.0], "candidate": [0.0]} for row in (48, 49)
    ]
    assert "worse in 2 rows: row 48 (id 148) 1/1 → 0/1, row 49 (id 149) 1/1 → 0/1" in done.stdout
    assert "base 0.760 (base-v1), candidate 0.960 (trained-v1); exact McNemar" in done.stdout
    assert "better in 12 rows: " in done.stdout and ", and 2 more in the JSON file" in done.stdout
    assert done.stdout.splitlines()[-1] == (
        "The candidate is better than the base: +20.0 points (95 % interval +5.7 to +34.0, p = 0.013) over 50 rows."
    )


def test_no_difference_shown_says_what_could_have_been(compare_results):
    done, found = compare_results(*table(10, 3, 2, 5))
    low, high = significance.newcombe(10, 3, 2, 5)
    assert found["verdict"].startswith("No difference shown: +5.0 points")
    points = 280.16 / 1.96 * (high - low) / 2
    assert f"with 80 % power these data could detect a difference of about {points:.1f} points" in found["verdict"]


def test_an_interval_and_a_test_that_disagree_claim_nothing(compare_results):
    _, found = compare_results(*table(1, 7, 1, 12))
    assert found["figures"]["low"] > 0 and found["figures"]["p"] == pytest.approx(0.0703, abs=5e-5)
    assert found["verdict"].startswith("No difference shown: +28.6 points")
    assert found["verdict"].endswith("the interval excludes 0 but the test is not significant; more rows are needed.")


def test_repeats_are_compared_by_the_means_of_rows(compare_results):
    base = {row: [0.0, 0.0, float(row % 2), 0.0] for row in range(24)}
    candidate = {row: [1.0, 0.0, 1.0, float(row % 3 == 0)] for row in range(24)}
    done, found = compare_results(base, candidate)
    means = [sum(candidate[row]) / 4 - sum(base[row]) / 4 for row in range(24)]
    figures = found["figures"]
    assert figures["difference"] == pytest.approx(sum(means) / 24)
    assert (figures["low"], figures["high"]) == significance.bootstrap(means)
    assert figures["p"] == significance.sign_flips(means)
    assert (figures["rows"], figures["samples"]) == (24, 192)
    assert "seed 0" in done.stdout


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"rows__sha256": "6"}, f'rows.sha256 is "{"5" * 64}" and "6"'),
        ({"rows__count": 7}, "rows.count is 1 and 7"),
        ({"limit": 5}, "limit is 0 and 5"),
        ({"split": "train"}, 'split is "validation" and "train"'),
        ({"repeats": 9}, "repeats is 1 and 9"),
        ({"wire": "chat"}, 'wire is "responses" and "chat"'),
        ({"sampling__temperature": 0.7}, "sampling.temperature is 1.0 and 0.7"),
        ({"sampling__max_output_tokens": None}, "sampling.max_output_tokens is 2048 and null"),
        ({"environment__pandas": "3.0.0"}, 'environment.pandas is "2.3.2" and "3.0.0"'),
        ({"environment__patches": "other"}, 'environment.patches is "2" and "other"'),
        ({"gateway__protocol_version": "v2"}, 'gateway.protocol_version is "relax-nemo-gym/v1" and "v2"'),
        ({"gateway__version": "2"}, 'gateway.version is "1" and "2"'),
        ({"deadline_s": 30}, "deadline_s is 600 and 30"),
    ],
)
def test_results_that_do_not_match_are_refused_by_field_and_both_values(results, field, words):
    pair = [sides.Side(results(name, {0: [1.0]}, **more), 1) for name, more in (("base", {}), ("trained", field))]
    with pytest.raises(Failure) as refused:
        sides.refuse_other_conditions(*pair)
    assert words in str(refused.value) and "model" not in str(refused.value)


def test_a_refusal_is_one_line_that_names_every_field_and_writes_nothing(compare_results):
    done, found = compare_results({0: [1.0]}, {0: [1.0]}, wire="chat", sampling={"temperature": 0.7})
    error = only_error(done)
    assert 'wire is "responses" and "chat"' in error and "sampling.temperature is 1.0 and 0.7" in error
    assert "sampling.max_output_tokens is 2048 and null" in error and found is None


def test_missing_samples_are_named_and_never_counted_as_zero(compare_results):
    failure = sample(1, 0, None, status="failed", error={"code": "agent_error"})
    base = {0: [1.0], 1: [1.0], 2: [0.0], 3: [1.0]}
    candidate = {0: [1.0], 1: [None], 2: [0.0], 3: [None]}
    done, found = compare_results(base, candidate, failures=[failure])
    assert found["figures"]["rows"] == 2 and found["figures"]["difference"] == 0
    assert found["missing"]["base"] == []
    lacking = [(item["row"], item["why"]) for item in found["missing"]["candidate"]]
    assert lacking == [(1, "agent_error"), (3, "not run")]
    assert [item["row"] for item in found["rows_left_out"]] == [1, 3]
    assert found["worst_case"] == [-0.5, 0.0]
    assert "row 1 (id 101) sample 1 agent_error, row 3 sample 1 not run" in done.stdout
    words = "left out without a reward: 2 sample(s), which at their worst and best make it -50.0 and +0.0"
    assert words in found["verdict"]


def pair(before, after, category="email", row=0):
    made = comparison.Pair({"row": row, "row_id": row, "category": category})
    made.before, made.after = before, after
    return made


def test_a_verdict_says_how_little_it_rests_on():
    few = comparison.paired_result([pair([0.0], [1.0]), pair([1.0], [0.0])])
    assert comparison.verdict(few).endswith(
        "over 2 rows, which does not prove equality: so few samples could hardly show any difference."
    )
    # Missing samples may undo a difference.
    figures = comparison.paired_result([pair([0.0], [1.0]) for _ in range(10)])
    assert comparison.verdict(figures, 3, (-0.1, 0.9)).endswith("make it -10.0 and +90.0, and could undo it.")
    assert "undo" not in comparison.verdict(figures, 3, (0.1, 0.9))


def test_a_row_with_some_samples_missing_keeps_the_others():
    evaluation = Evaluation(config(rows__count=1, repeats=2), [sample(0, 0, 1.0)], [])
    lacking = comparison.missing(evaluation)
    assert [(each["row"], each["repeat"]) for each in lacking] == [(0, 1)]
    samples = [sample(0, 0, 0.0), sample(0, 1, 1.0)]
    (one,) = comparison.pairs((samples, []), (evaluation.samples, lacking), lambda item: item["row"])
    assert one.whole() and one.difference() == 0.5
    assert comparison.worst_case([one]) == (0.0, 0.5)


def test_of_many_categories_only_what_survives_the_correction_is_claimed():
    rows = [pair([0.0], [1.0], "strong") for _ in range(12)]
    rows += [pair([0.0], [1.0], "weak") for _ in range(6)] + [pair([0.0], [0.0], name) for name in "abc"]
    found = comparison.categories(rows)
    assert found["weak"]["p"] < 0.05 < found["weak"]["p_holm"]
    assert comparison.category_words(found) == "By category, corrected for 5 of them (Holm): strong +100.0."
    assert comparison.category_words(comparison.categories(rows[-3:])).endswith("no difference shown in any.")
    assert comparison.categories(rows[:3]) == {} and comparison.category_words({}) == ""


# --- dumps ---------------------------------------------------------------------------------


def dumped(index, reward, **fields):
    return {"sample_index": index, "status": "completed", "reward": reward, "agent_turns": 2, "response": "x"} | fields


def rehearsed(rewards):
    return [dumped(i, r, row_id=i // 2, group_id=i // 2, category="email", error=None) for i, r in enumerate(rewards)]


def test_dumps_that_tell_their_rows_are_paired(tmp_path, compare):
    before = lines(tmp_path / "before.jsonl", rehearsed([0.0, 1.0, 0.0, 0.0, 1.0, 1.0]))
    # The same rows in another order.
    after = lines(tmp_path / "after.jsonl", rehearsed([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])[::-1])
    done, found = compare(before, after)
    assert done.returncode == 0, done.stderr
    assert found["figures"]["rows"] == 3 and found["figures"]["difference"] == pytest.approx(1 / 3)
    assert [each["row_id"] for each in found["flips"]["better"]] == [0, 1]


def test_dumps_of_a_trainer_are_compared_in_groups_and_say_so(tmp_path, compare):
    folder = tmp_path / "after"
    folder.mkdir()
    before = lines(tmp_path / "before.jsonl", [dumped(i, float(i % 4 == 0), rollout_id=0) for i in range(16)])
    lines(folder / "8.jsonl", [dumped(i, 1.0, rollout_id=8) for i in range(8)])
    rewards = [1.0] * 7 + [None]
    status = {1.0: "completed", None: "failed"}
    lines(folder / "9.jsonl", [dumped(i, r, rollout_id=9, status=status[r]) for i, r in enumerate(rewards)])
    done, found = compare(before, folder, NEMO_GYM_N_SAMPLES_PER_PROMPT=4)
    assert done.returncode == 0, done.stderr
    assert found["figures"]["groups"] == [4, 4] and found["figures"]["difference"] == pytest.approx(0.75)
    assert "4 and 4 groups of samples that are not paired: other rows may be why" in found["verdict"]
    assert "left out without a reward: 1 sample(s)." in found["verdict"]
    assert [each["why"] for each in found["missing"]["candidate"]] == ["failed"]


# --- faults of the user --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        ("gone", "CANDIDATE=gone: neither an evaluation in"),
        ("gone", "(base, empty, odd, unsized)"),
        ("../eval/base", "BASE and CANDIDATE are both"),
        ("../../dump.jsonl", "nothing tells that they were drawn alike"),
        ("empty", "no sample has a reward (0 failed)"),
        ("odd", "has the reward 7.0, which is not in 0..1"),
        ("unsized", "rows.count is 1 and null"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(results, compare, tmp_path, candidate, words):
    results("base", {0: [1.0]}), results("empty", {0: [None]}), results("odd", {0: [7.0]})
    results("unsized", {0: [1.0]}, rows={"sha256": "5" * 64})
    lines(tmp_path / "dump.jsonl", rehearsed([1.0, 0.0]))
    assert words in only_error(compare("base", candidate)[0])


def test_a_variable_that_is_not_set_is_named(tmp_path):
    assert "BASE is empty; make compare BASE=… CANDIDATE=…" in only_error(stage_alone("compare", home=tmp_path))


def test_a_folder_without_a_configuration_that_tells_its_size_is_refused(results):
    unsized = sides.Side(results("base", {0: [1.0]}, rows={"sha256": "x"}), 1)
    with pytest.raises(Failure, match=r"tells no rows\.count or no repeats"):
        unsized.refuse_unfit_samples()
