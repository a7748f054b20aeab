"""The arithmetic of a rollout dump, and what counts as one of its samples."""

import json

import pytest

from rollouts import dump, samples


def test_advantages_are_grpos():
    assert dump.advantages([1.0]) == [0.0]
    assert dump.advantages([1.0, 1.0, 1.0]) == [0.0, 0.0, 0.0]
    low, high = dump.advantages([0.0, 1.0])
    assert high == pytest.approx(0.7071, abs=1e-4) and low == -high
    assert sum(dump.advantages([0.0, 0.0, 1.0, 1.0, 1.0])) == pytest.approx(0.0)


def test_mixed_and_dropped_groups_are_told_apart():
    def sample(group, reward):
        fields = {"group_id": group, "reward": reward, "error": None if reward is not None else "lost"}
        return fields | {"advantage": None, "agent_turns": 2, "status": "completed"}

    records = [sample(0, 0.0), sample(0, 1.0), sample(1, 1.0), sample(1, None), sample(2, 0.0), sample(2, 0.0)]
    dump.set_advantages(records)
    total = dump.summary(records)
    assert (total["mixed_groups"], total["dropped_groups"], total["failed_samples"]) == (1, 1, 1)
    assert total["mean_reward"] == 0.25
    assert [item["advantage"] is None for item in records] == [False, False, True, True, False, False]


def line(index, **more):
    fields = {"sample_index": index, "status": "completed", "reward": 1.0, "agent_turns": 2, "response": "Done."}
    return json.dumps(fields | more) + "\n"


def test_a_sample_that_stands_twice_counts_once_and_equal_ones_of_two_runs_count_each(tmp_path, capsys):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    paths[0].write_text(line(0, request_id="x") + line(1, reward={"value": 1}) + line(0, request_id="x"))
    paths[1].write_text(line(0, request_id="y") + line(1, reward={"value": 1}) + line(None) + line(None))
    records = dump.read_dumps(paths)
    assert [item.get("request_id") for item in records] == ["x", None, "y", None, None]
    assert "2 samples stand twice" in capsys.readouterr().out


def test_a_dump_of_which_only_a_cut_line_exists_holds_nothing_yet(tmp_path, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text(line(0)[:40])
    assert dump.read_dump(path) == [] and "cut off" in capsys.readouterr().out


def test_a_row_is_the_same_whether_its_number_is_whole_or_a_float():
    assert samples.row_key({"row_id": 3.0}) == samples.row_key({"row_id": 3}) != samples.row_key({"row_id": 3.5})
