"""The Gateway in front of two scripted pairs: which one a trial gets and keeps, and what a dead pair takes."""

import pytest

from proofs.rig import eventually
from support.scripted_environment import gateway_alone


@pytest.fixture(scope="module")
def started(tmp_path_factory, example_rows):
    folder = tmp_path_factory.mktemp("pairs")
    with gateway_alone(folder, example_rows[0], pairs=2, GATEWAY_CLEANUP_TIMEOUT_S="2") as gateway:
        yield gateway


@pytest.fixture
def gateway(started):
    started.renew()
    yield started
    for pair in started.pairs:
        pair.gone.set()


@pytest.fixture
def pairs(gateway):
    return gateway.pairs


def hanging(gateway, pairs, count):
    """Ids of trials that run, started one after the other; hung on their pair."""
    ids = []
    for pair in pairs:
        pair.run = pair.hang
    for _ in range(count):
        begun = sum(len(pair.runs) for pair in pairs)
        ids.append(gateway.begin())
        eventually(lambda begun=begun: sum(len(pair.runs) for pair in pairs) > begun)
    return ids


def assert_cleaned(pairs):
    for pair in pairs:
        assert {path.rpartition("/")[2] for _, path in pair.asked} == {run["rollout_id"] for run in pair.runs}


def test_a_trial_gets_the_pair_with_the_fewest_and_is_cleaned_there(gateway, pairs):
    first, second = pairs
    ids = hanging(gateway, pairs, 5)
    assert sorted(len(pair.runs) for pair in pairs) == [2, 3]
    for request_id in ids:
        gateway.http.post(f"/v1/trials/{request_id}/abort")
        assert gateway.wait(request_id)["status"] == "aborted"
    assert_cleaned(pairs)
    first.run = second.run = lambda body: (200, body | {"reward": 1.0, "response": {"output": []}})
    assert gateway.finish()["reward"] == 1.0
    assert_cleaned(pairs)


def test_the_open_sessions_are_those_of_all_pairs(gateway, pairs):
    def counted(*counts):
        for pair, count in zip(pairs, counts, strict=True):
            pair.sessions = lambda pair=pair, count=count: (200, {"open": count, "epoch": pair.epoch})
        eventually(lambda: gateway.health()[1]["open_sessions"] == sum(counts))

    counted(3, 4)
    counted(0, 0)


def test_a_dead_pair_ends_its_own_trials_gets_no_new_ones_and_comes_back(gateway, pairs):
    alive, dead = pairs
    ids = hanging(gateway, pairs, 4)
    dead.stop()
    eventually(lambda: not gateway.health()[1]["servers"]["resource_2"]["up"])
    status, state = gateway.health()
    assert (status, state["ready"], state["open_sessions"]) == (200, True, None)
    assert [name for name, server in state["servers"].items() if not server["up"]] == ["agent_2", "resource_2"]
    ended = [gateway.show(request_id, wait_s=1).json() for request_id in ids]
    assert sorted(snapshot["status"] for snapshot in ended) == ["failed"] * 2 + ["running"] * 2
    for snapshot in ended:
        if snapshot["status"] == "failed":
            assert f":{dead.port}" in snapshot["error"]["cause"]
    hanging(gateway, pairs, 2)
    assert (len(alive.runs), len(dead.runs)) == (4, 2)
    dead.reset()
    dead.epoch = "second"
    dead.start()
    gateway.wait_all_up()
    hanging(gateway, pairs, 2)
    assert (len(alive.runs), len(dead.runs)) == (4, 2)


def test_a_trial_given_to_a_pair_that_just_died_runs_on_the_other(gateway, pairs):
    alive, dead = pairs
    dead.stop()
    ids = [gateway.begin() for _ in range(4)]
    assert [gateway.wait(request_id)["reward"] for request_id in ids] == [1.0] * 4
    assert len(alive.runs) == 4 and not dead.runs
    dead.start()
