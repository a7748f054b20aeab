"""Faults of a policy and of its endpoint, through the real agent: field cases E1, E4, E6, E8, E11 and E15.

A fault of the policy earns 0, and the trial ends in order. A fault of the endpoint gives no reward and an error
that names its kind and the endpoint, never the key.
"""

import json
import socket

import pytest

from policy.model_api import answered, function_call, message
from proofs.rig import SECRET_PREFIX, secret
from support.http_server import nobody
from support.scripted_model import DONE, Answer, call, reasoning

SEARCH = call("email_search_emails", query="carlos")


def searches(count):
    """Calls that differ in their ids."""
    return [item for _ in range(count) for item in call("email_search_emails", query="carlos")]


def assert_policy_fault(snapshot, status="completed"):
    assert (snapshot["status"], snapshot["reward"]) == (status, 0.0), snapshot


BAD_ARGUMENTS = [
    "", "{", "{'query': 'x'}", '{"query": "x"', '{"query": "x"}}', "null", "[]", "7", '"text"', '{"query": NaN}',
    '{"query": "\\ud800"}', '{"n": ' + "9" * 400 + "}", '{"a":' * 3000 + "1" + "}" * 3000, '{"query": {"a": []}}',
    '{"no_such_parameter": 1}', '{"query": "\\u0000"}',
]  # fmt: skip


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS, ids=range(len(BAD_ARGUMENTS)))
def test_e1_odd_arguments_become_an_output_and_the_trial_goes_on(graph, models, arguments):
    policy = models.script([function_call("email_search_emails", arguments)], DONE)
    assert_policy_fault(graph.finish(policy))
    assert len(policy.calls) == 2 and len(policy.calls[1].outputs) == 1 and policy.calls[1].outputs[0]


@pytest.mark.parametrize(("items", "calls"), [(reasoning(), 0), (SEARCH, 6)])
def test_e4_a_policy_that_never_closes_ends_after_six_calls(graph, models, items, calls):
    policy = models.script(items)
    snapshot = graph.finish(policy)
    assert_policy_fault(snapshot)
    assert len(policy.calls) == 6 and snapshot["metrics"]["tool_calls"] == calls


def test_an_answer_cut_by_its_length_is_truncated_with_a_reward(graph, models):
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    snapshot = graph.finish(models.script(answered([message("I will")]) | cut))
    assert_policy_fault(snapshot, "truncated")
    assert snapshot["error"] == {"code": "response_incomplete", "type": "max_output_tokens"}


NAMES = [
    "verify", "seed_session", "aggregate_metrics", "sessions", "cleanup", "cleanup/x", "x/../verify",
    "x/../seed_session", "../verify", "%2e%2e/seed_session", "%76erify", "email_search_emails?x=1#f",
    "email_search_emails#", "email_search_emails/", "/email_search_emails", "Email_Search_Emails",
    "email_search_emails ", "", " ", ".", "..", "/", "//evil.example/x", "http://127.0.0.1:9/x", "no_such_tool",
    "x" * 10_000, "caf\u00e9", "\u202e", "a\x00b", "a\r\nHost: x", '"quoted"', "{}", "docs", "openapi.json",
]  # fmt: skip


def test_e8_names_that_are_no_tools_come_back_as_tool_errors_and_change_nothing(graph, models):
    """Every odd name is called after a real change and before a look at it."""
    calls = [function_call(name, "{}") for name in NAMES]
    look = call("email_get_email_information_by_id", email_id="00000057", field="subject")
    change = call("email_delete_email", email_id="00000057")
    policy = models.script(change, calls[:12], calls[12:24], calls[24:], look, DONE)
    truth = [{"name": "email_delete_email", "arguments": '{"email_id": "00000057"}'}]
    snapshot = graph.finish(policy, row=graph.row | {"ground_truth": truth})
    _, *outputs, seen = policy.calls[-1].outputs
    # The deleted mail is still gone after all calls, so none gave the trial a fresh state or another one.
    assert "not found" in seen
    for name, output in zip(NAMES, outputs, strict=True):
        assert output.startswith('{"output":"Error executing tool ') and name in json.loads(output)["output"]
    assert (snapshot["status"], snapshot["reward"]) == ("completed", 1.0), snapshot
    assert snapshot["metrics"]["tool_calls"] == snapshot["metrics"]["tool_outputs"] == len(NAMES) + 2
    assert graph.open_sessions() == 0


def test_e8_a_cleanup_route_of_another_trial_is_not_reached(graph, models):
    waiting = models.policy(lambda call: models.released.wait(0.5) or (SEARCH if call.turn < 4 else DONE))
    other = graph.start(graph.payload(waiting))
    graph.wait_running(other)
    graph.finish(models.script([function_call(f"cleanup/{index}", "{}") for index in range(8)], DONE))
    assert graph.wait(other)["status"] == "completed"
    assert all("Session not initialized" not in output for output in waiting.calls[-1].outputs)


@pytest.mark.parametrize("count", [17, 500])
def test_e11_too_many_calls_truncate_with_0_and_others_go_on(graph, models, example_rows, count):
    beside = [graph.start(graph.payload(models.oracle(example_rows[0]))) for _ in range(3)]
    snapshot = graph.finish(models.script(searches(count)))
    assert_policy_fault(snapshot, "truncated")
    assert snapshot["error"]["code"] == "too_many_calls" and str(count) in snapshot["error"]["cause"]
    assert [graph.wait(request_id)["reward"] for request_id in beside] == [1.0] * 3
    # The bound itself is allowed.
    assert_policy_fault(graph.finish(models.script(searches(16), DONE)))
    graph.wait_released()


ERROR = {"error": {"code": "server_error", "message": "no"}}
ENDPOINT_FAULTS = {
    "not_json": [
        Answer(200, b"<html>never</html>"), Answer(200), Answer(200, b"[]"),
        Answer(200, b'{"output":' + b"[" * 100_000),
    ],
    "schema": [
        *(Answer(200, {"output": output}) for output in (None, "text", [1, None], [{"type": "nonsense"}])),
        Answer(200, b'{"output": NaN}'), Answer(200, {"id": "x"}),
        Answer(200, {"output": [{"type": "function_call", "arguments": "{}"}]}),
        Answer(200, {"output": [{"type": "message", "role": "assistant", "content": 5}]}),
    ],
    "error_body": [
        Answer(200, ERROR), Answer(200, ERROR | {"output": []}), Answer(200, {"status": "failed", "output": []}),
    ],
    "status": [*(Answer(status, ERROR) for status in (400, 401, 500)), *map(Answer, (204, 404, 503))],
    "connection_broken": [
        Answer(200, b'{"output": [', {"Content-Length": 100}), Answer(200, b"no gzip", {"Content-Encoding": "gzip"}),
    ],
    "too_large": [Answer(200, b" " * (50 << 20))],
}  # fmt: skip
CASES = [
    pytest.param(kind, answer, id=f"{kind}-{number}")
    for kind, answers in ENDPOINT_FAULTS.items()
    for number, answer in enumerate(answers)
]


def assert_endpoint_fault(snapshot, kind, url):
    assert (snapshot["status"], snapshot["reward"]) == ("failed", None), snapshot
    error = snapshot["error"]
    assert (error["code"], error["type"]) == ("agent_error", f"endpoint_{kind}"), error
    assert url in error["cause"] and len(error["cause"]) < 1000


@pytest.mark.parametrize(("kind", "answer"), CASES)
def test_e15_a_fault_of_the_endpoint_names_kind_and_endpoint(graph, models, kind, answer):
    policy = models.script(answer)
    assert_endpoint_fault(graph.finish(policy), kind, policy.base_url)
    assert len(policy.calls) == (4 if answer.status in (500, 503) else 1)


def test_e15_a_refused_connection_and_one_that_ends_without_an_answer_are_named(graph, models):
    url = nobody()
    assert_endpoint_fault(graph.finish(url), "unreachable", url)

    def drop(call):
        call.connection.shutdown(socket.SHUT_RDWR)
        return Answer(200)

    policy = models.policy(drop)
    assert_endpoint_fault(graph.finish(policy), "connection_broken", policy.base_url)
    assert len(policy.calls) == 1, "it is not called again"


def test_e15_an_endpoint_that_echoes_the_key_does_not_get_it_into_the_error(graph, models):
    policy = models.policy(lambda call: Answer(400, {"error": f"bad token {call.headers['Authorization']}"}))
    payload = graph.payload(policy)
    payload["model_endpoint"]["api_key"] = secret()
    snapshot = graph.wait(graph.start(payload))
    assert "bad token" in snapshot["error"]["cause"] and SECRET_PREFIX not in json.dumps(snapshot)


def test_e15_passing_faults_are_ridden_out_and_429_waits_as_long_as_it_is_told(graph, models):
    told = Answer(429, b"", {"Retry-After": "1"})
    policy = models.script(told, Answer(502), Answer(503), SEARCH, Answer(500), Answer(504), DONE)
    assert graph.finish(policy)["status"] == "completed"
    assert len(policy.calls) == 7
    first, second = policy.calls[:2]
    assert second.time - first.time >= 1 and first.body == second.body


def test_e6_a_fault_at_a_later_call_takes_the_reward_of_what_was_done(graph, models, example_rows):
    truth = example_rows[0]["ground_truth"][0]
    policy = models.script([function_call(truth["name"], truth["arguments"])], Answer(400))
    snapshot = graph.finish(policy)
    assert (snapshot["status"], snapshot["reward"], snapshot["metrics"]) == ("failed", None, {})


def test_a_lean_answer_is_filled_in(graph, models, example_rows):
    truth = example_rows[0]["ground_truth"][0]
    lean = {"output": [{"type": "function_call", "name": truth["name"], "arguments": truth["arguments"]}]}
    closing = {"output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]}]}
    usage = {"usage": {"input_tokens": 5, "output_tokens": 2}}
    thought = {"output": [*reasoning(), *lean["output"]]}
    odd_usage = {"usage": {"input_tokens": "x", "output_tokens": []}}
    for first in (lean, lean | usage, thought, lean | odd_usage, lean | {"usage": "many"}):
        snapshot = graph.finish(models.script(Answer(200, first), Answer(200, closing | usage)))
        assert (snapshot["status"], snapshot["reward"]) == ("completed", 1.0), snapshot
