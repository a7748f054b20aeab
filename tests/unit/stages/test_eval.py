"""An evaluation with scripted endpoints and a Gateway without a graph: every figure, every ending, every refusal."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import eval as stage
from common import program, terminal
from common import settings as variables
from common.failure import Failure
from evaluation import files
from evaluation.metrics import rate, wilson
from support.http_server import nobody
from support.playing_gateway import PlayingGateway
from support.scripted_endpoint import (
    REPORTED,
    Reply,
    ScriptedEndpoint,
    as_text,
    empty_list,
    failing,
    idle,
    malformed,
    right,
    where,
)

KEY = "never-show-me-model-key"
TOKEN = "never-show-me-gateway-token"
NEEDED = ([], ["a"], ["a"])
TOOLS = [
    {"type": "function", "name": f"tool_{n}", "strict": False, "parameters": {"type": "object", "required": needed}}
    for n, needed in enumerate(NEEDED)
]
CALLS = (0, 1, 1, 2, 5)  # of the ground truths, row after row


def task_row(index):
    count = CALLS[index % len(CALLS)]
    calls = [{"name": f"tool_{n % 3}", "arguments": json.dumps({"a": f"{index}.{n}"})} for n in range(count)]
    params = {"input": [{"role": "user", "content": f"Do task {index}."}], "tools": TOOLS, "temperature": 1}
    category = f"workplace_assistant_{'ab'[index % 2]}"
    fields = {"id": 1000 + index, "category": category, "environment_name": "workplace_assistant"}
    return {"responses_create_params": params, "ground_truth": calls, **fields}


class Place:
    """Rows to evaluate, a folder, and the command's variables."""

    def __init__(self, folder, monkeypatch, capsys):
        self.folder, self.monkeypatch, self.capsys = folder, monkeypatch, capsys
        self.rows, self.blank = [task_row(index) for index in range(10)], ""
        self.path = folder / "data" / "eval" / "it"

    def environment(self, endpoint, gateway, **changes):
        (self.folder / "rows.jsonl").write_text(self.blank + "".join(json.dumps(row) + "\n" for row in self.rows))
        defaults = {name: variable.default for name, variable in variables.declared().items()}
        ours = {"MODEL_URL": endpoint.url, "MODEL": "m", "MODEL_API_KEY": KEY, "NEMO_GYM_URL": gateway.url}
        ours |= {"DATA_ROOT": str(self.folder / "data"), "NEMO_GYM_SOURCE_DATA": str(self.folder / "rows.jsonl")}
        ours |= {"EVAL_NAME": "it", "GATEWAY_TOKEN": TOKEN, "EVAL_PREFLIGHT": "8", "NEMO_GYM_DEADLINE_S": "60"}
        return defaults | ours | changes

    def run(self, endpoint, gateway, **changes):
        """The exit status and what was said."""
        for name, text in self.environment(endpoint, gateway, **changes).items():
            self.monkeypatch.setenv(name, text)
        self.monkeypatch.setattr(sys, "argv", ["eval.py"])
        try:
            status = stage.main()
        except Failure as failure:
            status = str(failure)
        said = "".join(self.capsys.readouterr())
        assert KEY not in said + str(status) and TOKEN not in said + str(status)
        return status, said

    def evaluate(self, behaviour, fate=None, **changes):
        """Evaluate an endpoint that behaves so: (status, what was said, the endpoint, the Gateway)."""
        with ScriptedEndpoint(self.rows, behaviour) as endpoint, PlayingGateway(fate) as gateway:
            return *self.run(endpoint, gateway, **changes), endpoint, gateway

    def result(self):
        return files.read_json(self.path / "result.json")

    def samples(self):
        return files.read(self.path).samples

    def failures(self):
        return files.read(self.path).failures


@pytest.fixture
def place(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("policy.endpoint.BACKOFF_S", 0.01)
    return Place(tmp_path, monkeypatch, capsys)


def shown(value):
    return f"{value['value']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


# --- figures -------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", ["responses", "chat"])
def test_an_endpoint_that_is_always_right_and_the_trajectories_of_its_samples(place, wire):
    status, said, endpoint, gateway = place.evaluate(right, WIRE=wire, REPEATS="3")
    metrics, calls = place.result()["metrics"], sum(CALLS) * 2 * 3
    low, high = wilson(10, 10)
    assert status == 0 and metrics["pass_rate"] == {"value": 1.0, "low": pytest.approx(low), "high": 1.0}
    assert metrics["pass_at"] == metrics["pass_all"] == {"1": 1.0, "2": 1.0, "3": 1.0}
    counts = metrics["behaviour"]
    assert counts["tool_calls"] == calls and counts["turns"] == calls + 30
    assert sum(counts.values()) == counts["tool_calls"] + counts["turns"]
    assert metrics["tokens"] == {"input_tokens": 100 * (calls + 30), "output_tokens": 10 * (calls + 30), "samples": 30}
    for words in (shown(metrics["pass_rate"]), "30 of 30 samples", "failures=0", f"evaluation of {REPORTED} on rows"):
        assert words in said, words
    assert {path for path, _, _ in endpoint.requests} == {"/v1/" + {"chat": "chat/completions"}.get(wire, wire)}
    assert {headers["Authorization"] for _, headers, _ in endpoint.requests} == {f"Bearer {KEY}"}
    assert {body["model"] for body in endpoint.model_calls()} == {"m"}
    written = "".join(file.read_text() for file in place.path.iterdir())
    assert KEY not in written + json.dumps(gateway.payloads)
    assert {payload["session"]["rollout_mode"] for payload in gateway.payloads} == {"eval"}
    samples = place.samples()
    assert [sample["row"] for sample in samples] == [index for index in range(10) for _ in range(3)]
    for sample in samples:
        row = place.rows[sample["row"]]
        assert (sample["row_id"], sample["category"]) == (row["id"], row["category"])
        assert sample["input"] == row["responses_create_params"]["input"]
        assert sample["ground_truth"] == row["ground_truth"] and sample["usage"]["output_tokens"] > 0
        calls = [(item["name"], item["arguments"]) for item in sample["output"] if item["type"] == "function_call"]
        assert calls == [(call["name"], call["arguments"]) for call in row["ground_truth"]]
        assert sample["output"][-1]["type"] == "message" and sample["seconds"] >= 0


def test_one_that_never_acts_earns_where_nothing_is_to_be_done(place):
    status, said, *_ = place.evaluate(idle)
    metrics = place.result()["metrics"]
    assert metrics["ceiling"] == {"rows": 10, "share": 1.0} and metrics["floor"] is None
    low, high = wilson(2, 10)
    assert status == 0 and metrics["pass_rate"] == pytest.approx({"value": 0.2, "low": low, "high": high})
    by_calls = {count: one["pass_rate"]["value"] for count, one in metrics["ground_truth_calls"].items()}
    assert by_calls == {"0": 1.0, "1": 0.0, "2": 0.0, "5": 0.0}
    assert metrics["behaviour"]["tool_calls"] == 0 and metrics["behaviour"]["turns"] == 10
    assert "ground truth of 5 calls" in said and shown(metrics["pass_rate"]) in said


def test_one_that_is_right_on_60_percent_of_the_samples_of_each_row(place):
    place.rows = [row for row in place.rows if row["ground_truth"]]
    status, said, *_ = place.evaluate(where(lambda asked: asked.start % 5 < 3), REPEATS="5", EVAL_CONCURRENCY="1")
    metrics, rows = place.result()["metrics"], len(place.rows)
    assert status == 0 and metrics["pass_rate"]["value"] == pytest.approx(0.6)
    # Rows that all agree vary less than single samples would: no narrower than Wilson's on all of them.
    assert (metrics["pass_rate"]["low"], metrics["pass_rate"]["high"]) == pytest.approx(wilson(3 * rows, 5 * rows))
    assert metrics["pass_at"] == {"1": pytest.approx(0.6), "2": 0.9, "4": 1.0, "5": 1.0}
    assert metrics["pass_all"] == {"1": pytest.approx(0.6), "2": 0.3, "4": 0.0, "5": 0.0}
    assert "pass@2" in said and "0.900" in said and "pass^2" in said and "0.300" in said


def test_one_that_is_right_on_60_percent_of_the_rows(place):
    status, said, *_ = place.evaluate(where(lambda asked: asked.index % 5 in (0, 2, 4)), REPEATS="4")
    metrics = place.result()["metrics"]
    effect = 4 * (10 / 9) / (40 / 39)
    low, high = wilson(24 / effect, 40 / effect)
    assert metrics["pass_rate"] == {"value": 0.6, "low": pytest.approx(low), "high": pytest.approx(high)}
    assert metrics["pass_at"] == metrics["pass_all"] == {"1": 0.6, "2": 0.6, "4": 0.6}
    # Of each category's five rows three pass.
    for name in "ab":
        category = metrics["categories"][f"workplace_assistant_{name}"]
        assert category == {"rows": 5, "samples": 20, "pass_rate": rate([(4, 4)] * 3 + [(0, 4)] * 2)}
        assert shown(category["pass_rate"]) in said


def odd_calls(asked):
    calls = [("gone", "{}"), ("tool_1", '{"b": 1}'), ("tool_0", '{"b": 1}')]
    return Reply(text="Done.") if asked.done else Reply(calls)


@pytest.mark.parametrize(
    ("behaviour", "wire", "counts", "words"),
    [
        (
            malformed,
            "responses",
            {"tool_calls": 18, "invalid_calls": 18, "tool_errors": 18},
            "warning: 18 of 18 tool calls (100.0%) came back unparsed",
        ),
        (as_text, "chat", {"tool_calls": 0, "calls_left_in_text": 8}, "8 left in the text"),
        (
            odd_calls,
            "responses",
            {"tool_calls": 30, "turns": 20, "unknown_calls": 10, "incomplete_calls": 10, "tool_errors": 10},
            "",
        ),
    ],
)
def test_odd_calls_are_counted_and_warned_of_where_parsing_may_be_why(place, behaviour, wire, counts, words):
    status, said, *_ = place.evaluate(where(lambda asked: False, otherwise=behaviour), WIRE=wire)
    assert status == 0 and place.result()["metrics"]["behaviour"].items() >= counts.items()
    assert words in said and (words or "came back unparsed" not in said)


def test_an_answer_that_was_cut_short_is_truncated_with_its_reward(place):
    body = json.dumps({"choices": [{"finish_reason": "length", "message": {"content": "I thi"}}]}).encode()
    status, said, *_ = place.evaluate(
        where(lambda asked: asked.index != 1, otherwise=lambda asked: Reply(body=body)), WIRE="chat"
    )
    metrics = place.result()["metrics"]
    assert status == 0 and metrics["truncated"] == {"max_output_tokens": 1} and metrics["pass_rate"]["value"] == 0.9
    assert metrics["tokens"]["samples"] == 9 and "truncated, max_output_tokens" in said
    assert place.samples()[1]["output"][0]["content"][0]["text"] == "I thi"


def together(endpoint, count, then=right):
    """Behave as `then` once `count` requests were there at one moment; all before it wait for that."""
    full = threading.Event()

    def behaviour(asked):
        if endpoint.at_once >= count:
            full.set()
        assert full.wait(60)
        return then(asked)

    return behaviour


def test_a_stated_number_of_samples_runs_at_once(place):
    with ScriptedEndpoint(place.rows) as endpoint, PlayingGateway() as gateway:
        crowd = together(endpoint, 3)
        endpoint.behaviour = lambda asked: right(asked) if asked.preflight else crowd(asked)
        assert place.run(endpoint, gateway, EVAL_CONCURRENCY="3", EVAL_PREFLIGHT="0", REPEATS="2")[0] == 0
    assert endpoint.most == 3


def test_sampling_reaches_the_endpoint_over_either_wire(place):
    changes = {"EVAL_TEMPERATURE": "0.25", "EVAL_TOP_P": "0.5", "EVAL_MAX_OUTPUT_TOKENS": "77"}
    changes |= {"EVAL_EXTRA_BODY": '{"top_k": 20, "chat_template_kwargs": {"enable_thinking": false}}'}
    for wire, longest in (("responses", "max_output_tokens"), ("chat", "max_tokens")):
        _, _, endpoint, _ = place.evaluate(right, WIRE=wire, EVAL_NAME=wire, **changes)
        for body in endpoint.model_calls():
            assert (body["temperature"], body["top_p"], body[longest], body["top_k"]) == (0.25, 0.5, 77, 20)
            assert body["chat_template_kwargs"] == {"enable_thinking": False}
    config = files.read(place.path.with_name("chat")).config
    assert config["sampling"] == {
        "temperature": 0.25, "top_p": 0.5, "max_output_tokens": 77,
        "extra_body": {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}},
    }  # fmt: skip


# --- failures ------------------------------------------------------------------------------


def test_an_endpoint_that_fails_one_request_in_twenty_is_asked_again(place):
    status, _, endpoint, _ = place.evaluate(failing, REPEATS="4")
    assert status == 0 and place.result()["metrics"]["pass_rate"]["value"] == 1.0
    assert len(endpoint.requests) > 100 and not place.samples()[0]["error"]


def test_what_the_endpoint_fails_for_good_is_no_zero_and_is_done_by_the_next_run(place):
    broken = where(lambda asked: asked.index not in (3, 4), otherwise=lambda asked: Reply(status=503))
    status, said, endpoint, _ = place.evaluate(broken, REPEATS="2", EVAL_TRIES="3")
    failures, result = place.failures(), place.result()
    assert status == 1 and len(place.samples()) == 16 and [item["row"] for item in failures] == [3, 3, 4, 4]
    assert result["failures"] == 4 and result["metrics"]["pass_rate"]["value"] == 1.0
    assert all("503" in item["error"]["cause"] and "(3 tries)" in item["error"]["cause"] for item in failures)
    assert "without a reward: 4 samples: agent_error endpoint_status" in said and "failures=4" in said
    asked = len([body for body in endpoint.model_calls() if "Do task 3." in json.dumps(body)])
    assert asked == 6
    status, said, endpoint, gateway = place.evaluate(right, REPEATS="2")
    assert status == 0 and len(gateway.payloads) == 4 and "16 samples are there, 4 are missing" in said
    assert place.result()["metrics"]["samples"] == 20 and place.result()["failures"] == 0
    status, _, _, gateway = place.evaluate(right, REPEATS="2")
    assert status == 0 and not gateway.payloads, "nothing is missing"


@pytest.mark.parametrize(
    ("end", "error"),
    [
        ("truncated", {"code": "deadline_exceeded"}),
        ("failed", {"code": "agent_error", "type": "resource_server_lost"}),
        ("aborted", {"code": "lease_expired"}),
    ],
)
def test_an_end_without_a_reward_is_a_failure(place, end, error):
    fate = {2: {"status": end, "error": error}}.get
    status, said, *_ = place.evaluate(right, fate=fate, EVAL_CONCURRENCY="1")
    assert status == 1 and len(place.samples()) == 9 and place.failures()[0]["error"] == error
    assert " ".join(error.values()) in said


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(status=None), "connection_broken"),
        (Reply(status=503), "status"),
        (Reply(status=302), "redirect"),
        (Reply(body=b"x"), "not_json"),
        (Reply(body=b'{"error": "overloaded"}'), "error_body"),
        (Reply(body=b'{"output": 7}'), "schema"),
    ],
)
def test_a_failure_is_typed_by_what_the_endpoint_did(place, reply, kind):
    broken = where(lambda asked: asked.index != 3, otherwise=lambda asked: reply)
    _, said, *_ = place.evaluate(broken, EVAL_TRIES="1")
    (failed,) = place.failures()
    assert failed["error"]["type"] == f"endpoint_{kind}" and failed["error"]["code"] == "agent_error"
    assert f"without a reward: 1 samples: agent_error endpoint_{kind} " in said


def test_an_endpoint_that_goes_after_the_preflight_is_typed_unreachable(place, monkeypatch):
    url = nobody()
    monkeypatch.setattr(stage, "check_tool_calls", lambda settings, endpoint, rows: setattr(endpoint, "url", url))
    place.evaluate(right, EVAL_TRIES="1", EVAL_CONCURRENCY="1")
    errors = [item["error"] for item in place.failures()]
    assert errors and {error["type"] for error in errors} == {"endpoint_unreachable"}
    assert all(url in error["cause"] for error in errors)


@pytest.mark.parametrize(
    ("status", "error", "cure"),
    [
        (
            413,
            {"code": "body_too_large", "message": "more than 9 bytes"},
            "; raise GATEWAY_MAX_BODY_BYTES where the Gateway runs, then make gym-up there",
        ),
        (422, {"code": "invalid_payload", "field": "environment.task.x", "message": "is odd"}, "; mend that field"),
        (400, {"code": "callback_not_allowed"}, ""),
    ],
)
def test_a_row_that_the_gateway_does_not_take_is_named_with_the_cure(place, status, error, cure):
    # A blank line first: a row's line is not its number.
    place.blank = "\n"
    with ScriptedEndpoint(place.rows) as endpoint, PlayingGateway() as gateway:
        gateway.refuse = lambda payload: (status, error) if payload["environment"]["task"]["id"] == 1003 else None
        ended, _ = place.run(endpoint, gateway, EVAL_CONCURRENCY="1")
    # A refusal that is not about the row names none.
    row = f"{place.folder}/rows.jsonl:5 (id 1003): " if cure else ""
    assert ended == f"{row}{gateway.url}: the Gateway answered {status} {' '.join(error.values())}{cure}"
    assert len(place.samples()) == 3


def test_an_endpoint_that_is_gone_ends_it_early_and_the_next_run_does_the_rest(place):
    gone = where(lambda asked: asked.number < 30, otherwise=lambda asked: Reply(status=503))
    status, said, _, gateway = place.evaluate(gone, REPEATS="4", EVAL_CONCURRENCY="1")
    for words in ("5 samples in a row got no reward", "503", "the same command does the rest"):
        assert words in status
    assert place.samples() and len(place.failures()) == 5 and not (place.path / "result.json").exists()
    assert place.evaluate(right, REPEATS="4")[0] == 0 and place.result()["metrics"]["samples"] == 40


def test_a_gateway_that_is_gone_ends_it_early(place):
    with ScriptedEndpoint(place.rows, delay_s=0.05) as endpoint, PlayingGateway() as gateway:

        def behaviour(asked):
            if asked.number == 20:
                gateway.__exit__()
            return right(asked)

        endpoint.behaviour = behaviour
        status, _ = place.run(endpoint, gateway, NEMO_GYM_MAX_RETRIES="3", EVAL_CONCURRENCY="2", REPEATS="4")
        assert f"{gateway.url}: " in status and "the same command does the rest" in status
        assert 0 < len(place.samples()) < 40


def test_a_gateway_without_trajectories_is_refused(place, monkeypatch):
    show = PlayingGateway.show
    monkeypatch.setattr(PlayingGateway, "show", lambda self, trial: show(self, trial) | {"artifact_ref": None})
    status, *_ = place.evaluate(right)
    assert "kept no trajectory" in status and "make gym-up" in status


# --- preflight -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "wire", "words"),
    [
        (malformed, "responses", ["unparsable 8", "the last brace is lost", "update the engine"]),
        (lambda asked: Reply([("tool_0", '{"a": 1}}')]), "chat", ["unparsable 8", "text behind the arguments"]),
        (lambda asked: Reply([("tool_0", "[]")]), "responses", ["unparsable 8", "not an object"]),
        (as_text, "chat", ["left in the text 8", "--tool-call-parser hermes", "SGLang --tool-call-parser qwen"]),
        (empty_list, "chat", ["empty list 8", "finish_reason 'tool_calls'", "--enable-auto-tool-choice"]),
        (lambda asked: Reply(text="Sure!"), "responses", ["no call 8", "'Sure!'"]),
        (lambda asked: Reply(status=500) if asked.number else right(asked), "responses", ["failed 8", "500"]),
    ],
)
def test_an_endpoint_whose_tool_calls_do_not_parse_is_refused_with_the_cure(place, behaviour, wire, words):
    status, said, _, gateway = place.evaluate(behaviour, WIRE=wire)
    assert "100.0%" in status and "EVAL_UNPARSED_SHARE" in status and not gateway.payloads
    for word in words:
        assert word in status, (word, status)
    assert not (place.path / "result.json").exists()


def test_m1_calls_that_parse_one_at_a_time_and_not_in_a_crowd_are_found_with_64_at_once(place):
    with ScriptedEndpoint(place.rows) as endpoint, PlayingGateway() as gateway:
        crowd = together(endpoint, 64, as_text)
        endpoint.behaviour = lambda asked: crowd(asked) if asked.number else right(asked)
        status, _ = place.run(endpoint, gateway, EVAL_PREFLIGHT="64", WIRE="chat")
    assert endpoint.most == 64 and "left in the text 64" in status and "64 tool calls at once" in status


def test_a_share_may_be_accepted_and_the_check_left_out(place):
    one_in_eight = where(lambda asked: True)
    counter = iter(range(1000))

    def some(asked):
        return malformed(asked) if asked.preflight and asked.number and next(counter) == 0 else one_in_eight(asked)

    status, said, *_ = place.evaluate(some, EVAL_UNPARSED_SHARE="0.125")
    assert status == 0 and "parsed 7, unparsable 1; not parsed: 12.5%" in said
    status, *_ = place.evaluate(where(lambda a: True, then=malformed), EVAL_PREFLIGHT="0", EVAL_NAME="other")
    assert status == 0


@pytest.mark.parametrize(
    ("status", "wire", "words"),
    [
        (404, "responses", ["WIRE=chat", f"it lists {REPORTED}, not MODEL=m"]),
        (401, "chat", ["MODEL_API_KEY"]),
        (400, "chat", ["as scripted"]),
        (503, "responses", ["is the endpoint up"]),
    ],
)
def test_an_endpoint_that_takes_no_call_is_named_with_what_may_be_wrong(place, status, wire, words):
    ended, *_ = place.evaluate(lambda asked: Reply(status=status), WIRE=wire, EVAL_TRIES="1")
    assert str(status) in ended and all(word in ended for word in words), ended


# --- going on ------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_is_done_and_ends_what_runs(place):
    with ScriptedEndpoint(place.rows, delay_s=0.1) as endpoint, PlayingGateway() as gateway:
        changes = {"REPEATS": "8", "EVAL_CONCURRENCY": "4", "EVAL_PREFLIGHT": "0"}
        environment = os.environ | place.environment(endpoint, gateway, **changes)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(program.stage("eval"), env=environment, **streams)
        rollouts = place.path / "rollouts.jsonl"
        while not rollouts.exists() or rollouts.read_bytes().count(b"\n") < 5:
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == 130, said
    kept = len(place.samples())
    assert f"interrupted; {kept} samples are kept in {place.path}" in said and "does what is missing" in said
    assert "Traceback" not in said and KEY not in said
    assert gateway.aborted and all(trial["ended"].is_set() for trial in gateway.trials.values())


@pytest.mark.parametrize(
    ("changes", "field", "old", "new"),
    [
        ({"EVAL_TEMPERATURE": "0.5"}, "sampling.temperature", "null", "0.5"),
        ({"REPEATS": "2"}, "repeats", "1", "2"),
        ({"LIMIT": "9"}, "limit", "0", "9"),
        ({"MODEL": "other"}, "model", '"m"', '"other"'),
        ({"NEMO_GYM_DEADLINE_S": "50"}, "deadline_s", "60.0", "50.0"),
        ({"WIRE": "chat"}, "wire", '"responses"', '"chat"'),
    ],
)
def test_a_changed_configuration_is_refused_and_begun_anew_if_asked(place, changes, field, old, new):
    assert place.evaluate(right)[0] == 0
    status, _, _, gateway = place.evaluate(right, **changes)
    assert f"begun with {field} = {old}, and now it is {new}" in status or "rows.count" in status
    assert not gateway.payloads and place.result()["metrics"]["samples"] == 10
    status, said, _, gateway = place.evaluate(right, FRESH="1", **changes)
    assert status == 0 and len(gateway.payloads) >= 9 and "moved aside: " in said
    assert len(list(place.path.parent.iterdir())) == 2


def test_another_environment_or_other_rows_are_another_configuration(place):
    assert place.evaluate(right)[0] == 0
    place.rows[3]["category"] = "another"
    assert "rows.sha256" in place.evaluate(right)[0]
    place.rows[3] = task_row(3)
    with ScriptedEndpoint(place.rows) as endpoint, PlayingGateway() as gateway:
        gateway.ready["environment"] = READY_ELSEWHERE
        status, _ = place.run(endpoint, gateway)
    assert 'environment.pandas = "2.3.2", and now it is "3.0.0"' in status


READY_ELSEWHERE = {"gym_commit": "a" * 40, "pandas": "3.0.0"}


def test_gateways_that_differ_are_not_evaluated_on_together(place):
    with ScriptedEndpoint(place.rows) as endpoint, PlayingGateway() as one, PlayingGateway() as other:
        assert place.run(endpoint, one, GYM_URLS=f"{one.url},{other.url}", REPEATS="4")[0] == 0
        assert one.payloads and other.payloads
        other.ready["environment"] = READY_ELSEWHERE
        status, _ = place.run(endpoint, one, GYM_URLS=f"{one.url},{other.url}")
        assert "environment.pandas is 3.0.0" in status and other.url in status
        other.ready["ready"] = False
        assert "not ready" in place.run(endpoint, one, GYM_URLS=f"{one.url},{other.url}")[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MODEL_URL": ""}, "MODEL_URL is empty"),
        ({"EVAL_NAME": "../x"}, "EVAL_NAME=../x"),
        ({"EVAL_EXTRA_BODY": "{"}, "EVAL_EXTRA_BODY: not JSON"),
        ({"EVAL_EXTRA_BODY": "[]"}, "EVAL_EXTRA_BODY: not a JSON object"),
        ({"EVAL_EXTRA_BODY": '{"model": "x"}'}, "EVAL_EXTRA_BODY"),
        ({"NEMO_GYM_URL": "http://127.0.0.1:9"}, "not ready.*make gym-up"),
        ({"MODEL_URL": "http://127.0.0.1:9", "EVAL_TRIES": "1"}, "127.0.0.1:9.*is the endpoint up"),
        ({"NEMO_GYM_SOURCE_DATA": "/nowhere.jsonl"}, "/nowhere.jsonl"),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_is_written(place, changes, words):
    status, *_ = place.evaluate(right, **changes)
    assert re.search(words, status, re.DOTALL) and not place.path.parent.exists()


def test_while_it_runs_the_rate_is_that_of_what_is_done(place, monkeypatch):
    lines = []
    monkeypatch.setattr(terminal.Bar, "step", lambda self, count=1, text="": lines.append(text))
    end = {"status": "failed", "error": {"code": "agent_error"}}
    place.evaluate(idle, fate=lambda number: end if number == 1 else None, EVAL_CONCURRENCY="1")
    low, high = wilson(1, 1)
    assert lines[0] == f"pass 1.000 [{low:.3f}, {high:.3f}]" and lines[1] == lines[0] + ", without reward 1"
    low, high = wilson(2, 9)
    assert lines[-1] == f"pass {2 / 9:.3f} [{low:.3f}, {high:.3f}], without reward 1"
    assert math.isclose(place.result()["metrics"]["pass_rate"]["low"], low)


def test_no_thread_outlives_an_evaluation(place):
    before = set(threading.enumerate())
    place.evaluate(right)
    end = time.monotonic() + 10
    while left := [thread for thread in threading.enumerate() if thread not in before]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
