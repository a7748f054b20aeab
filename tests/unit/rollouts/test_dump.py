"""The arithmetic of a rollout dump: advantages, and groups that are mixed or dropped."""

import pytest

from rollouts import dump


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
