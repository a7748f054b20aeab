"""The agent command as the trainer starts it: a process with variables, against a scripted Gateway."""

import hashlib
import http.client
import json
import signal
import threading
import time

import pytest

from common import settings
from gateway import client
from support.scripted_gateway import DROP, RUNNING, Hold, ScriptedGateway, fault, snapshot
from support.session import BASE_URL, INPUT, SESSION_ID, TOKEN, Sample


@pytest.fixture
def sample(tmp_path):
    one = Sample(tmp_path)
    yield one
    if one.process and one.process.poll() is None:
        one.process.kill()
        one.process.communicate()


def trial_id(sample):
    return "relax-" + hashlib.sha256(f"{sample.folder}\0{SESSION_ID}\0{1}".encode()).hexdigest()


def test_writes_the_reward_for_a_create_payload_of_the_protocol(sample):
    with ScriptedGateway(get=[RUNNING, snapshot(reward=0.5)]) as gateway:
        changes = {"NEMO_GYM_DEADLINE_S": "30", "NEMO_GYM_LEASE_S": "60", "RELAX_ROLLOUT_MODE": "eval"}
        status, err, output = sample.run(gateway, **changes)
    metrics = RUNNING[1]["metrics"]
    kept = {"request_id": trial_id(sample), "status": "completed", "metrics": metrics, "error": None}
    assert (status, err, output) == (0, "", {"reward": 0.5, "metadata": {"nemo_gym": kept}})
    (create,) = gateway.seen("create")
    assert create.path == "/v1/trials" and create.headers["Authorization"] == f"Bearer {TOKEN}"
    assert json.loads(create.body) == {
        "protocol_version": "relax-nemo-gym/v1",
        "request_id": trial_id(sample),
        "session": {"session_id": SESSION_ID, "group_id": "group-3", "rollout_mode": "eval", "attempt": 1},
        "environment": {"name": "workplace_assistant", "config": "workplace-assistant-v1", "task": INPUT},
        "model_endpoint": {"base_url": BASE_URL, "api_key": SESSION_ID, "model": "model"},
        "generation": {"responses_create_params": {}, "sampling_params": {}},
        "interrupt_policy": "protected",
        "deadline_s": 30,
        "lease_s": 60,
        "metadata": {},
    }
    # A long poll ends before the next renewal.
    assert gateway.seen("get")[0].path == f"/v1/trials/{trial_id(sample)}?wait_s=19"


def test_base_path_of_the_url_is_kept_and_no_token_is_sent_unset(sample):
    with ScriptedGateway() as gateway:
        assert sample.start(gateway.url + "/behind/it/", GATEWAY_TOKEN=None).end()[0] == 0
    assert [request.path.startswith("/behind/it/v1/trials") for request in gateway.requests] == [True, True]
    assert "Authorization" not in gateway.requests[0].headers


@pytest.mark.parametrize("reward", [0.0, 1, -2.5])
def test_truncated_with_a_reward_is_a_result(sample, reward):
    with ScriptedGateway(get=[snapshot("truncated", reward, {"code": "too_many_calls"})]) as gateway:
        status, _, output = sample.run(gateway)
    assert (status, output["reward"], output["metadata"]["nemo_gym"]["error"]["code"]) == (0, reward, "too_many_calls")


@pytest.mark.parametrize(
    ("end", "reward", "code"),
    [
        ("truncated", None, "deadline_exceeded"),
        ("aborted", None, "lease_expired"),
        ("failed", None, "agent_error"),
        ("failed", None, "gateway_restarted"),
        ("failed", 0.0, "cleanup_failed"),
        ("completed", True, "reward_is_no_number"),
        ("completed", "1.0", "reward_is_no_number"),
    ],
)
def test_an_end_without_a_reward_writes_nothing_and_says_why(sample, end, reward, code):
    error = {"code": code, "cause": f"refused by http://10.0.0.5 for {SESSION_ID}"}
    with ScriptedGateway(get=[snapshot(end, reward, error)]) as gateway:
        status, err, _ = sample.run(gateway)
    assert status == 1 and end in err and code in err and "refused by http://10.0.0.5" in err
    assert not gateway.seen("abort")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, b'{"status": "completed", "reward": NaN}', {}), "no JSON object"),
        ((200, b'{"status": "completed", "rew', {}), "no JSON object"),
        ((200, b"[1]", {}), "no JSON object"),
        (fault(404, "unknown_trial"), "404 unknown_trial"),
    ],
)
def test_an_answer_that_is_no_snapshot_ends_it(sample, answer, words):
    with ScriptedGateway(get=[answer]) as gateway:
        status, err, _ = sample.run(gateway)
    assert status == 1 and words in err and len(gateway.seen("get")) == 1


def test_retries_send_the_same_create_again_and_wait_as_long_as_they_are_told(sample):
    full = fault(429, "queue_full", Retry_After=1)
    with ScriptedGateway(create=[500, DROP, fault(503, "not_ready"), 408, full, (202, RUNNING[1], {})]) as gateway:
        assert sample.run(gateway)[0] == 0
    creates = gateway.seen("create")
    assert len(creates) == 6 and len({request.body for request in creates}) == 1
    assert creates[5].time - creates[4].time >= 1


@pytest.mark.parametrize(
    ("status", "cures"),
    [
        *((status, []) for status in (400, 401, 409, 302)),
        (413, ["; raise GATEWAY_MAX_BODY_BYTES", "in the row of id 7"]),
        (422, ["; mend that field", "in the row of id 7"]),
    ],
)
def test_a_refused_create_ends_at_once_with_the_gateways_words_and_a_cure_for_the_row(sample, status, cures):
    refusal = fault(status, "not_allowed", f"model_endpoint.base_url\nis off {SESSION_ID} {TOKEN}", Location="/x")
    with ScriptedGateway(create=[refusal]) as gateway:
        code, err, _ = sample.run(gateway)
    assert code == 1 and f"the Gateway answered {status} not_allowed model_endpoint.base_url is off" in err
    assert all(words in err for words in cures)
    assert [request.route for request in gateway.requests] == ["create"]


def test_tries_are_bounded_and_the_trial_is_aborted(sample):
    with ScriptedGateway(get=[fault(500, "internal")]) as gateway:
        status, err, _ = sample.run(gateway, NEMO_GYM_MAX_RETRIES="3")
    assert status == 1 and "500 internal" in err
    assert len(gateway.seen("get")) == 3 and len(gateway.seen("abort")) == 1


def test_a_gateway_that_never_was_there_gets_the_startup_time(sample):
    with ScriptedGateway() as gateway:
        pass
    begun = time.monotonic()
    status, err, _ = sample.run(gateway, NEMO_GYM_STARTUP_TIMEOUT_S="1")
    assert status == 1 and f"127.0.0.1:{gateway.port}" in err and "make gym-up" in err
    assert 0.5 < time.monotonic() - begun < 3


def test_rides_out_a_gateway_restart(sample):
    with ScriptedGateway(get=[Hold(0.2, RUNNING), DROP, Hold(0.1, RUNNING), snapshot()]) as gateway:
        sample.start(gateway.url, NEMO_GYM_STARTUP_TIMEOUT_S="0.5")
        gateway.wait_for("get", 2)
        gateway.go()
        time.sleep(2)
        assert sample.process.poll() is None, sample.end()
        gateway.come()
        assert sample.end()[0] == 0
    assert len(gateway.seen("create")) == 1


def test_comes_up_before_its_gateway(sample):
    with ScriptedGateway() as gateway:
        gateway.go()
        sample.start(gateway.url)
        threading.Timer(1, gateway.come).start()
        assert sample.end()[0] == 0


def test_renews_every_third_of_the_lease_even_when_polls_fail(sample):
    polls = [Hold(0.4, RUNNING), 503, RUNNING, RUNNING, Hold(0.5, RUNNING), RUNNING, RUNNING, RUNNING, snapshot()]
    with ScriptedGateway(get=polls, renew=[500, 204]) as gateway:
        assert sample.run(gateway)[0] == 0
    taken = gateway.requests[-1].time - gateway.requests[0].time
    renewals = [request.time for request in gateway.seen("renew")]
    gaps = [later - earlier for earlier, later in zip(renewals, renewals[1:], strict=False)]
    assert taken > 3 and len(renewals) >= taken / 1.6 - 1
    # The second follows a refused one; after it a third of the lease lies between two.
    assert all(0.9 < gap < 1.7 for gap in gaps[1:]) and gaps[0] < 1.7


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize("route", ["create", "get"])
def test_a_signal_aborts_the_trial_also_while_blocked(sample, name, code, route):
    with ScriptedGateway(**{route: [Hold(20, RUNNING)]}, abort=[Hold(30, RUNNING)]) as gateway:
        sample.start(gateway.url)
        gateway.wait_for(route)
        begun = time.monotonic()
        sample.process.send_signal(getattr(signal, name))
        gateway.wait_for("abort")
        sample.process.send_signal(signal.SIGTERM)
        status, err, _ = sample.end()
    assert status == code and name in err and time.monotonic() - begun < 4
    assert gateway.seen("abort")[0].path == f"/v1/trials/{trial_id(sample)}/abort"


def test_a_signal_while_the_gateway_is_away_ends_it_in_time(sample):
    with ScriptedGateway(get=[DROP]) as gateway:
        sample.start(gateway.url)
        gateway.wait_for("get")
        gateway.go()
        time.sleep(0.3)
        sample.process.send_signal(signal.SIGTERM)
        assert sample.end(timeout=4)[0] == 143


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((f"RELAX_{name}", None) for name in ("INPUT_JSON", "OUTPUT_JSON", "SESSION_IO_DIR", "BASE_URL")),
        *((f"RELAX_{name}", None) for name in ("SESSION_ID", "GROUP_ID")),
        ("RELAX_ROLLOUT_MODE", "test"),
        ("RELAX_BASE_URL", "10.0.0.5:8000"),
        ("RELAX_SESSION_ID", f"{SESSION_ID}\r\nX: y"),
        ("NEMO_GYM_LEASE_S", "soon"),
        ("NEMO_GYM_URL", "http://[::1"),
    ],
)
def test_a_missing_or_malformed_variable_is_named(sample, name, value):
    with ScriptedGateway() as gateway:
        status, err, _ = sample.run(gateway, **{name: value})
    assert status == 2 and (f"{name} is not set" if value is None else name) in err and not gateway.requests


NO_OBJECT = [b"", b"{", b"[]", b"\xff\xfe", b"[" * 200000]
NO_TASK = [b'{"messages": []}', b'{"messages": "hi"}', b'{"messages": [1], "metadata": 3}']
NO_NUMBER = [b'{"messages": [NaN]}', b'{"messages": [1e999]}']


@pytest.mark.parametrize("text", [None, *NO_OBJECT, *NO_TASK, *NO_NUMBER])
def test_an_unusable_input_file_is_named(sample, text):
    sample.input.unlink() if text is None else sample.input.write_bytes(text)
    with ScriptedGateway() as gateway:
        status, err, _ = sample.run(gateway)
    assert status == 2 and f"RELAX_INPUT_JSON: {sample.input}" in err and not gateway.requests


def test_an_output_that_cannot_be_written_is_named(sample):
    with ScriptedGateway() as gateway:
        status, err, _ = sample.run(gateway, RELAX_OUTPUT_JSON="/nowhere/out.json")
    assert status == 1 and "RELAX_OUTPUT_JSON: /nowhere/out.json" in err


def test_a_connection_that_is_reset_before_it_stands_is_tried_again(monkeypatch):
    """A Gateway that ends resets those whom it has not yet accepted."""

    def reset(*_):
        raise ConnectionResetError("reset by peer")

    monkeypatch.setattr(http.client.HTTPConnection, "connect", reset)
    gateway = client.Gateway(settings.load({"NEMO_GYM_URL": "http://127.0.0.1:9"}))
    with pytest.raises(client.Unavailable, match="reset by peer"):
        gateway.exchange("GET", "/readyz")
