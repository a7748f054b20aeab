"""The rehearsal driver as a process, against a scripted agent."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from common import program
from common.settings import ROOT
from policy import model_api
from proofs.rig import eventually

AGENT = ROOT / "tests/support/scripted_agent.py"
KEY = "key-that-nobody-may-see"


def row(identity, calls):
    truth = [{"name": f"tool_{n}", "arguments": json.dumps({"n": n})} for n in range(calls)]
    metadata = {"id": identity, "category": "test", "ground_truth": truth, "responses_create_params": {}}
    return {"input": [{"role": "user", "content": "do"}], "metadata": metadata}


class Rehearsal:
    """A folder with rows; `run` starts the driver there."""

    def __init__(self, folder):
        self.folder, self.dump, self.process = folder, folder / "dump.jsonl", None

    def write(self, *rows):
        (self.folder / "rows.jsonl").write_text("".join(json.dumps(item) + "\n" for item in rows))

    def start(self, *options, behaviour="", **environment):
        agent = f"{shlex.quote(sys.executable)} {shlex.quote(str(AGENT))} {behaviour}"
        command = program.room("rollouts.rehearsal", "--prompt-data", str(self.folder / "rows.jsonl"))
        command += ["--agent-command", agent, "--dump", str(self.dump), *options]
        proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY"), "http://127.0.0.1:9")
        self.process = subprocess.Popen(
            command,
            env=os.environ | proxies | {"TMPDIR": str(self.folder)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.process

    def run(self, *options, **more):
        process = self.start(*options, **more)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    def records(self):
        return [json.loads(line) for line in self.dump.read_text().splitlines()]


@pytest.fixture
def rehearsal(tmp_path):
    driver = Rehearsal(tmp_path)
    driver.write(row(1, 1))
    yield driver
    if driver.process and driver.process.poll() is None:
        driver.process.terminate()
        driver.process.wait(20)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_oracle_plays_the_ground_truth_and_the_dump_says_what_happened(rehearsal):
    rehearsal.write(row(10, 2), row(11, 7))
    status, output = rehearsal.run("--n-samples-per-prompt", "2")
    records = rehearsal.records()
    assert status == 0, output
    assert "samples=4 groups=2 mixed_groups=0 dropped_groups=0 mean_reward=1.000 model_calls=18" in output
    assert [item["sample_index"] for item in records] == [0, 1, 2, 3]
    turns = [(item["row_id"], item["group_id"], item["agent_turns"]) for item in records]
    assert turns == [(10, 0, 3), (10, 0, 3), (11, 1, 6), (11, 1, 6)]
    assert all(item["advantage"] == 0.0 and item["history_branches"] == 0 for item in records)
    assert records[0]["response"].count("<tool_call>") == records[0]["response"].count("<tool_response>\ndone") == 2
    assert records[2]["response"].count("<tool_call>") == 7
    assert records[0]["total_token_count"] is None
    assert not list(rehearsal.folder.glob("*.part*")) and not list(rehearsal.folder.glob("session-*"))


def test_noop_answers_once_and_calls_nothing(rehearsal):
    status, output = rehearsal.run("--policy", "noop")
    [item] = rehearsal.records()
    assert (status, item["agent_turns"], item["reward"]) == (0, 1, 0.0), output
    assert "<tool_call>" not in item["response"]


def test_an_agent_gets_the_trainers_variables_and_its_own(rehearsal, tmp_path):
    rehearsal.write(row(1, 0))
    seen_path = tmp_path / "seen.json"
    environment = {"MODEL_API_KEY": KEY, "RELAX_STALE": "x", "SEEN": str(seen_path)}
    options = ["--agent-cwd", str(tmp_path), "--agent-env", "ONE=a=b", "ONE_MORE="]
    status, output = rehearsal.run(*options, behaviour="variables", **environment)
    seen = json.loads(seen_path.read_text())
    assert status == 0, output
    assert (seen["ONE"], seen["ONE_MORE"], seen["mode"], seen["cwd"]) == ("a=b", "", "0o700", str(tmp_path))
    assert seen["leads_group"]
    assert seen["RELAX_BASE_URL"].endswith("/agentic_api") and seen["RELAX_BASE_URL"].startswith("http://127.0.0.1:")
    assert seen["RELAX_ROLLOUT_MODE"] == "train" and seen["RELAX_GROUP_ID"] == "0"
    assert "MODEL_API_KEY" not in seen and "RELAX_STALE" not in seen
    assert seen["RELAX_SESSION_ID"] not in output and seen["RELAX_SESSION_ID"] not in rehearsal.dump.read_text()


def test_a_failed_sample_drops_its_group_and_fails_the_run(rehearsal):
    rehearsal.write(row(1, 1), row(2, 1))
    status, output = rehearsal.run("--n-samples-per-prompt", "2", behaviour="odd-groups-fail")
    records = rehearsal.records()
    assert status == 1
    assert "dropped_groups=1 mean_reward=1.000" in output
    assert "2 samples without a reward: agent exited with 1: no reward for ***" in output
    assert [item["advantage"] for item in records] == [0.0, 0.0, None, None]
    assert [item["status"] for item in records] == ["completed", "completed", "failed", "failed"]
    assert records[2]["reward"] is None


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ("garbage", "agent's output is not JSON"),
        ("nan", "agent's output has no finite reward"),
        ("nothing", "agent left no output file"),
        ("stranger", "agent exited with 1: answered 401"),
    ],
)
def test_what_an_agent_may_leave_behind(rehearsal, behaviour, error):
    status, output = rehearsal.run(behaviour=behaviour)
    assert status == 1 and error in output
    assert rehearsal.records()[0]["error"] == error


def test_an_agent_that_takes_too_long_is_ended_with_its_group(rehearsal, tmp_path):
    pids = tmp_path / "pids"
    started = time.monotonic()
    status, output = rehearsal.run("--agent-timeout", "4", behaviour="hang-deaf", PIDS=str(pids))
    assert status == 1 and "agent took more than 4 s" in output
    assert 9 < time.monotonic() - started < 20, "SIGKILL comes five seconds after SIGTERM"
    assert not any(alive(pid) for pid in pids.read_text().split())


def test_a_child_gets_time_to_drop_its_lock(rehearsal, tmp_path):
    lock = tmp_path / "lock"
    process = rehearsal.start(behaviour="child-with-lock", LOCK=str(lock))
    eventually(lock.exists)
    process.terminate()
    process.communicate(timeout=15)
    assert not lock.exists()


def test_a_child_left_behind_ends_with_its_agent(rehearsal, tmp_path):
    pids = tmp_path / "pids"
    status, output = rehearsal.run(behaviour="leave-child", PIDS=str(pids))
    assert status == 0, output
    eventually(lambda: not alive(pids.read_text()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_driver_ends_its_agents_and_writes_no_dump(rehearsal, tmp_path, number):
    rehearsal.write(row(1, 1), row(2, 1))
    pids = tmp_path / "pids"
    process = rehearsal.start("--concurrency", "1", behaviour="hang", PIDS=str(pids))
    eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    process.send_signal(number)
    output, _ = process.communicate(timeout=15)
    assert process.returncode == 128 + number and "stopped by SIG" in output
    assert not any(alive(pid) for pid in pids.read_text().split())
    assert not rehearsal.dump.exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "rows.jsonl:2: not JSON"),
        ('{"responses_create_params": {}}', "rows.jsonl:2: not a row of the trainer's"),
        ('{"input": "x", "metadata": {"id": 1}}', "rows.jsonl:2: metadata.ground_truth is missing"),
        ("[" * 100_000, "rows.jsonl:2: not JSON"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(rehearsal, line, words):
    with (rehearsal.folder / "rows.jsonl").open("a") as rows:
        rows.write(line + "\n")
    status, output = rehearsal.run()
    assert status == 1 and words in output and "Traceback" not in output
    assert not rehearsal.dump.exists()


def test_reserved_variables_and_an_existing_dump_are_refused(rehearsal):
    status, output = rehearsal.run("--agent-env", "RELAX_SESSION_ID=x")
    assert status == 2 and "RELAX_SESSION_ID" in output
    rehearsal.dump.write_text("kept")
    status, output = rehearsal.run()
    assert status == 1 and "exists" in output and rehearsal.dump.read_text() == "kept"


@pytest.fixture
def endpoint():
    """A model endpoint: first a tool call, then a message; it counts tokens, or refuses with its `status`."""

    def answer(session, body):
        if endpoint.status != 200:
            raise model_api.ModelError(endpoint.status, "busy")
        endpoint.models.append(body["model"])
        turn = len(endpoint.models)
        item = model_api.function_call("tool", "{}") if turn == 1 else model_api.message("Done.")
        return model_api.answered([item]) | {"usage": {"input_tokens": 100 * turn, "output_tokens": 10}}

    endpoint = model_api.ModelAPI("127.0.0.1", answer)
    endpoint.models, endpoint.status = [], 200
    yield endpoint
    endpoint.stop()


def test_an_endpoint_plays_the_policy_and_its_token_counts_are_kept(rehearsal, endpoint):
    key = endpoint.open({}).id
    environment = {"MODEL_URL": endpoint.base_url, "MODEL": "small", "MODEL_API_KEY": key}
    status, output = rehearsal.run("--policy", "endpoint", **environment)
    [item] = rehearsal.records()
    assert status == 0 and endpoint.models == ["small"] * 2, output
    counts = [item[name] for name in ("prompt_token_count", "response_token_count", "total_token_count")]
    assert counts == [100, 110, 210]
    assert key not in output + rehearsal.dump.read_text()


def test_an_endpoint_that_fails_and_one_that_is_missing(rehearsal, endpoint):
    endpoint.status = 429
    environment = {"MODEL_URL": endpoint.base_url, "MODEL_API_KEY": endpoint.open({}).id}
    status, output = rehearsal.run("--policy", "endpoint", **environment)
    assert status == 1 and "429" in output
    status, output = rehearsal.run("--policy", "endpoint", MODEL_URL="")
    assert status == 1 and "MODEL_URL is empty" in output
