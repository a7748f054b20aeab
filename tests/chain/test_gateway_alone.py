"""The Gateway in front of a scripted agent and resource server: clean-up, retention, odd answers, how it ends."""

import signal
import time

import pytest

from proofs.rig import eventually
from support.scripted_environment import RESPONSE, gateway_alone

RETENTION_S = 3
NOT_READY_S = 3.5


@pytest.fixture(scope="module")
def started(tmp_path_factory, example_rows):
    with gateway_alone(
        tmp_path_factory.mktemp("alone"), example_rows[0],
        GATEWAY_CLEANUP_TIMEOUT_S="0.8", GATEWAY_RETENTION_S=str(RETENTION_S), GATEWAY_MAX_BODY_BYTES="200000",
        WORKPLACE_ASSISTANT_MAX_CONCURRENCY="2", GATEWAY_QUEUE_LIMIT="0",
    ) as gateway:  # fmt: skip
        yield gateway


@pytest.fixture
def gateway(started):
    started.renew()
    yield started
    started.pairs[0].gone.set()


@pytest.fixture
def scripted(gateway):
    return gateway.pairs[0]


def assert_failed(snapshot, code, kind=None):
    assert (snapshot["status"], snapshot["reward"]) == ("failed", None), snapshot
    assert (snapshot["error"]["code"], snapshot["error"].get("type")) == (code, kind), snapshot


def test_the_run_request_is_the_row_with_the_rollouts_id_in_both_places_and_tools_by_name(gateway, scripted):
    assert gateway.finish()["reward"] == 1.0
    [run] = scripted.runs
    rollout_id = run.pop("rollout_id")
    assert run["responses_create_params"].pop("metadata") == {"relax_nemo_gym_rollout_id": rollout_id}
    params = gateway.row["responses_create_params"]
    names = [{"type": "function", "name": tool["name"], "parameters": None, "strict": None} for tool in params["tools"]]
    assert len(names) == 27 and len(rollout_id) == 32
    assert run == gateway.row | {"responses_create_params": params | {"tools": names}}
    assert scripted.asked == [("GET", f"/cleanup/{rollout_id}")]


ODD_ANSWERS = [
    ("run_failed", (500, {"detail": "never"})), ("run_failed", (404, b"never")),
    *(("no_reward", (200, odd | {"response": RESPONSE})) for odd in ({}, {"reward": None}, {"reward": True})),
    ("no_reward", (200, {"reward": "1", "response": RESPONSE})),
    (None, (200, b'{"reward": 1e999, "response": {}}')), (None, (200, b'{"reward": NaN}')), (None, (200, b"garbage")),
    (None, (200, b"[]")), (None, (200, b'{"reward": 1.0, "response": {"output": [7]}}')),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "answer"), ODD_ANSWERS, ids=range(len(ODD_ANSWERS)))
def test_an_odd_answer_of_the_agent_never_becomes_a_reward(gateway, scripted, kind, answer):
    scripted.run = lambda body: answer
    snapshot = gateway.finish()
    assert_failed(snapshot, "agent_error", kind or snapshot["error"].get("type"))
    assert snapshot["error"]["type"] and snapshot["error"]["cause"] and "Traceback" not in snapshot["error"]["cause"]


def test_a_response_without_items_keeps_its_reward(gateway, scripted):
    scripted.run = lambda body: (200, b'{"reward": 1.0, "response": []}')
    snapshot = gateway.finish()
    assert snapshot["reward"] == 1.0 and snapshot["metrics"]["tool_calls"] == 0


def test_an_abort_is_reported_after_the_proof(gateway, scripted):
    scripted.run = scripted.hang
    request_id = gateway.begin()
    eventually(lambda: scripted.runs)
    assert gateway.http.post(f"/v1/trials/{request_id}/abort").status_code == 202
    assert gateway.wait(request_id)["status"] == "aborted"
    assert [method for method, _ in scripted.asked] == ["POST", "GET"]


UNCLEAN = (200, {"clean": False})
CLEANUPS = [
    ("aborted", "clean_get", UNCLEAN, "cleanup_unverified"),
    ("aborted", "clean_get", (200, {"clean": "yes"}), "cleanup_unverified"),
    ("aborted", "clean_get", (500, {}), "cleanup_probe_failed"),
    ("aborted", "clean_get", (200, b"garbage"), "cleanup_probe_failed"),
    ("aborted", "clean_get", (200, b"[]"), "cleanup_probe_failed"),
    ("aborted", "clean_get", None, "cleanup_probe_failed"),
    ("aborted", "clean_post", (500, {}), "cleanup_failed"),
    ("aborted", "clean_post", None, "cleanup_failed"),
    ("deadline_exceeded", "clean_get", UNCLEAN, "cleanup_unverified"),
    ("lease_expired", "clean_post", None, "cleanup_failed"),
]


@pytest.mark.parametrize(("ending", "route", "answer", "code"), CLEANUPS)
def test_an_end_without_proof_is_failed_and_says_after_what(gateway, scripted, ending, route, answer, code):
    """With None for an answer, none comes."""
    scripted.run = scripted.hang
    setattr(scripted, route, (lambda: answer) if answer else scripted.hang)
    limits = {"deadline_exceeded": {"deadline_s": 0.5}, "lease_expired": {"lease_s": 0.5}}.get(ending, {})
    request_id = gateway.begin(**limits)
    eventually(lambda: scripted.runs)
    if ending == "aborted":
        gateway.http.post(f"/v1/trials/{request_id}/abort")
    snapshot = gateway.wait(request_id)
    assert_failed(snapshot, code)
    assert snapshot["error"]["cause"].startswith(f"after {ending}")
    # It goes on until the state is gone.
    setattr(scripted, route, lambda: (200, {"clean": True}))
    scripted.gone.set()
    before = len(scripted.asked)
    eventually(lambda: scripted.asked[before:] and scripted.asked[-1][0] == "GET")


def test_a_completed_trial_without_proof_has_no_reward(gateway, scripted):
    scripted.clean_get = lambda: UNCLEAN
    assert_failed(gateway.finish(), "cleanup_unverified")


def test_a_resource_server_started_anew_ends_what_ran(gateway, scripted):
    scripted.run = scripted.hang
    request_id = gateway.begin()
    eventually(lambda: scripted.runs)
    scripted.epoch = "second"
    snapshot = gateway.wait(request_id)
    assert_failed(snapshot, "agent_error", "resource_server_lost")
    assert f":{scripted.port}" in snapshot["error"]["cause"]


@pytest.mark.parametrize("answer", ["hang", (500, {}), (200, b"garbage"), (200, b"[]"), (200, {"open": 0})])
def test_a_resource_server_that_does_not_answer_makes_it_not_ready_and_trials_wait(gateway, scripted, answer):
    healthy = scripted.sessions
    scripted.sessions = scripted.hang if answer == "hang" else lambda: answer
    eventually(lambda: gateway.health()[0] == 503, NOT_READY_S, 0.05)
    state = gateway.health()[1]
    assert state["ready"] is False and state["servers"]["resource"]["up"] is False and state["open_sessions"] is None
    assert gateway.http.get("/healthz").status_code == 200
    request_id = gateway.begin()
    time.sleep(0.3)
    assert gateway.show(request_id).json()["status"] == "queued" and not scripted.runs
    scripted.sessions = healthy
    scripted.gone.set()
    assert gateway.wait(request_id)["reward"] == 1.0


def test_an_ended_trial_is_forgotten_after_its_retention(gateway, scripted):
    request_id = gateway.begin()
    assert gateway.wait(request_id)["status"] == "completed"

    def forgotten():
        return gateway.show(request_id).status_code == 404

    time.sleep(RETENTION_S / 3)
    assert not forgotten()
    eventually(forgotten, 20)
    assert gateway.health()[1]["terminal_trials"] == gateway.health()[1]["trials"]


def test_the_bound_of_a_body_is_the_variables_and_without_a_token_none_is_asked_for(gateway):
    assert gateway.create(gateway.payload(metadata={"pad": "x" * 200_000})).status_code == 413
    assert gateway.show("none").status_code == 404


def test_with_no_queue_one_more_than_runs_is_refused(gateway, scripted):
    scripted.run = scripted.hang
    ids = [gateway.begin()]
    eventually(lambda: len(scripted.runs) == 1)
    ids.append(gateway.begin())
    eventually(lambda: len(scripted.runs) == 2)
    assert gateway.create(gateway.payload()).status_code == 429
    for request_id in ids:
        gateway.http.post(f"/v1/trials/{request_id}/abort")
        gateway.wait(request_id)


def test_a_signal_ends_running_trials_with_a_code_and_a_restart_finds_both_results(gateway, scripted):
    finished = gateway.finish()
    scripted.run = scripted.hang
    running = gateway.begin()
    eventually(lambda: scripted.runs[1:])
    assert gateway.down(signal.SIGTERM) == 0
    assert ("POST", f"/cleanup/{scripted.runs[-1]['rollout_id']}") in scripted.asked
    scripted.gone.set()
    gateway.env["GATEWAY_RETENTION_S"] = "3600"
    gateway.up()
    assert gateway.show(finished["request_id"]).json() == finished
    assert_failed(gateway.show(running).json(), "service_shutdown")


def test_a_kill_ends_what_ran_as_gateway_restarted_and_its_state_is_cleaned(gateway, scripted):
    scripted.run = scripted.hang
    running = gateway.begin()
    eventually(lambda: scripted.runs)
    gateway.down(signal.SIGKILL)
    scripted.gone.set()
    gateway.up()
    assert_failed(gateway.show(running).json(), "gateway_restarted")
    path = f"/cleanup/{scripted.runs[0]['rollout_id']}"
    eventually(lambda: scripted.asked[-2:] == [("POST", path), ("GET", path)])
