"""Evaluations on the real graph: rewards of the real verifier, trajectories, floor and ceiling, a killed one."""

import json
import os
import signal
import subprocess
import time
from dataclasses import replace

import pytest

from common import program
from evaluation import files
from inputs import rows
from proofs.rig import secret
from support.scripted_endpoint import Reply, ScriptedEndpoint, idle, malformed, right, where
from support.task_rows import SHARED_DATA

SOME = 12


@pytest.fixture(scope="module")
def some_rows(example_rows):
    if not SHARED_DATA.is_dir():
        return example_rows
    return rows.read_rows(SHARED_DATA / "workbench_dev.jsonl")[::29][:SOME]


class Command:
    """`make eval` on the graph, in a data folder of its own."""

    def __init__(self, graph, folder, task_rows):
        self.graph, self.folder, self.key = graph, folder, secret()
        self.write(task_rows)

    def write(self, task_rows):
        self.rows = task_rows
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in task_rows))

    def start(self, endpoint, **changes):
        ours = {"MODEL_URL": endpoint.url, "MODEL_API_KEY": self.key, "DATA_ROOT": str(self.folder), "EVAL_NAME": "it"}
        ours |= {"NEMO_GYM_SOURCE_DATA": str(self.folder / "rows.jsonl")}
        env = self.graph.env | ours | {"EVAL_CONCURRENCY": "6", "EVAL_PREFLIGHT": "8"} | changes
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(program.stage("eval"), env=env, **output)

    def run(self, endpoint, **changes):
        process = self.start(endpoint, **changes)
        output, _ = process.communicate(timeout=240)
        assert self.key not in output and self.graph.token not in output
        return process.returncode, output

    def evaluate(self, behaviour, **changes):
        """(exit status, output, result)."""
        with ScriptedEndpoint(self.rows, behaviour) as endpoint:
            status, output = self.run(endpoint, **changes)
        return status, output, self.result(changes.get("EVAL_NAME", "it"))

    def path(self, name="it"):
        return files.folder(self.folder, name)

    def result(self, name="it"):
        return files.read_json(self.path(name) / "result.json")


@pytest.fixture
def command(graph, tmp_path, some_rows):
    return Command(graph, tmp_path, some_rows)


def test_right_and_idle_stand_at_the_top_and_at_the_floor(command):
    status, output, always = command.evaluate(right, REPEATS="2", WIRE="chat", EVAL_PREFLIGHT="64")
    assert status == 0, output
    metrics = always["metrics"]
    assert metrics["pass_rate"]["value"] == 1.0 and metrics["samples"] == 2 * len(command.rows), output
    calls = 2 * sum(len(row["ground_truth"]) for row in command.rows)
    assert metrics["behaviour"]["tool_calls"] == calls and metrics["behaviour"]["tool_errors"] == 0
    assert metrics["tokens"]["output_tokens"] == 10 * metrics["behaviour"]["turns"]
    status, output, never = command.evaluate(idle, EVAL_NAME="idle")
    assert status == 0, output
    floor = never["metrics"]["floor"]
    assert never["metrics"]["pass_rate"]["value"] == floor["share"] == metrics["floor"]["share"] < 1
    fitting = sum(len(row["ground_truth"]) <= 5 for row in command.rows)
    assert never["metrics"]["ceiling"] == {"rows": fitting, "share": fitting / len(command.rows)}
    assert "floor (doing nothing earns 1)" in output and "ceiling" in output
    state = command.graph.health()[1]
    assert always["config"]["environment"] == state["environment"]
    assert always["config"]["gateway"]["version"] == state["gateway_version"]


def test_trajectories_are_the_real_tools_and_malformed_calls_are_counted(command):
    status, output, result = command.evaluate(where(lambda asked: asked.index % 2, otherwise=malformed))
    assert status == 0, output
    for sample in files.read(command.path()).samples:
        row = command.rows[sample["row"]]
        calls = [item for item in sample["output"] if item["type"] == "function_call"]
        outputs = [item["output"] for item in sample["output"] if item["type"] == "function_call_output"]
        assert len(calls) == len(outputs) == len(row["ground_truth"])
        given = row["responses_create_params"]["input"]
        assert [item["role"] for item in sample["input"]] == [item["role"] for item in given]
        if sample["row"] % 2 == 0:
            assert all("Invalid tool call arguments" in output for output in outputs)
        else:
            assert sample["reward"] == 1.0
    broken = sum(len(row["ground_truth"]) for index, row in enumerate(command.rows) if index % 2 == 0)
    counts = result["metrics"]["behaviour"]
    assert counts["invalid_calls"] == counts["tool_errors"] == broken and "came back unparsed" in output


def test_an_answer_beyond_the_deadline_is_a_failure_and_no_zero(command):
    command.write(command.rows[:2])

    def slow(asked):
        time.sleep(6 if asked.index == 0 else 0)
        return right(asked)

    with ScriptedEndpoint(command.rows, slow) as endpoint:
        status, output = command.run(endpoint, NEMO_GYM_DEADLINE_S="4")
    evaluation, result = files.read(command.path()), command.result()
    assert status == 1 and "without a reward: 1 samples: deadline_exceeded" in output, output
    assert [item["row"] for item in evaluation.failures] == [0] and evaluation.failures[0]["status"] == "truncated"
    assert result["failures"] == 1 and result["metrics"]["pass_rate"]["value"] == 1.0


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        ({"instructions": "x" * (5 << 20)}, ["413 body_too_large", "raise GATEWAY_MAX_BODY_BYTES"]),
        ({"temperature": "hot"}, ["422 invalid_payload environment.task.responses_create_params.temperature"]),
    ],
)
def test_a_row_that_the_gateway_does_not_take_is_named(command, odd, words):
    params = command.rows[2]["responses_create_params"] | odd
    given = [*command.rows[:2], command.rows[2] | {"responses_create_params": params}]
    command.write(given)
    with ScriptedEndpoint(given) as endpoint:
        status, output = command.run(endpoint, EVAL_CONCURRENCY="1")
    assert status == 1 and len(files.read(command.path()).samples) == 2, output
    assert f"error: {command.folder}/rows.jsonl:3 (id {given[2]['id']}): " in output
    assert all(part in output for part in words), output


def test_an_endpoint_that_hangs_up_is_typed_by_that(command):
    hang_up = where(lambda asked: asked.index, otherwise=lambda asked: Reply(status=None))
    with ScriptedEndpoint(command.rows, hang_up) as endpoint:
        status, output = command.run(endpoint, EVAL_TRIES="1")
    assert status == 1 and "without a reward: 1 samples: agent_error endpoint_connection_broken" in output, output
    (failed,) = files.read(command.path()).failures
    assert failed["row"] == 0 and endpoint.url in failed["error"]["cause"]


def test_killed_and_started_again_it_ends_like_an_unbroken_run(command):
    def behaviour(asked):
        return right(replace(asked, wanted=asked.wanted if asked.preflight or asked.index % 5 < 3 else []))

    expected = command.evaluate(behaviour, EVAL_NAME="unbroken")[2]
    with ScriptedEndpoint(command.rows, behaviour, delay_s=0.2) as endpoint:
        process = command.start(endpoint, EVAL_CONCURRENCY="2")
        rollouts = command.path() / "rollouts.jsonl"
        while not rollouts.exists() or rollouts.read_bytes().count(b"\n") < 0.4 * len(command.rows):
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        there = len(files.read(command.path()).samples)
        endpoint.delay_s = 0
        status, output = command.run(endpoint)
    assert status == 0 and f"going on: {there} samples are there" in output, output
    result = command.result()
    assert {**result, "times": None} == {**expected, "times": None}
    assert result["metrics"]["floor"]["share"] <= result["metrics"]["pass_rate"]["value"] < 1
