"""Acceptance as a process: a dump on disk, a scripted Gateway and resource server, one verdict a layer."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import accept
import smoke
from common import net
from common.failure import Failure
from gateway import health
from rollouts import runs

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
TEXT = '<tool_call>\n{"name": "t", "arguments": {}}\n</tool_call>\n<tool_response>\nok\n</tool_response>\nDone.'
IDLE = {"ready": True, "service_epoch": "e1", "active_trials": 0, "open_sessions": 0}


def sample(**changes):
    fields = {"status": "completed", "reward": 1.0, "agent_turns": 2, "response": TEXT, "error": None}
    return fields | {"group_id": 0, "row_id": 1, "truncated_by": None} | changes


class Services(BaseHTTPRequestHandler):
    """Says what `server.answer` holds for /readyz; nothing else is there."""

    def do_GET(self):
        data = json.dumps(self.server.answer).encode()
        self.send_response(200 if self.server.answer.get("ready") else 503)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Keep the test's output clean."""


@pytest.fixture
def gateway():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Services)
    server.answer = dict(IDLE)
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Settings:
    def __init__(self, folder):
        self.EXP_DIR = folder


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


def judge(gateway, *samples, silent=()):
    places = [(f"dump.jsonl:{number}", item) for number, item in enumerate(samples, 1)]
    return accept.rollout(runs.Run("a", Path("dump.jsonl"), places), [*silent] or [gateway.url], silent)


def test_a_good_rollout_passes_with_the_sample_it_was_seen_in(gateway):
    layer = judge(gateway, sample(agent_turns=1, response="Done.", reward=0.0), sample())
    assert layer.verdict == "passed"
    assert layer.evidence[0] == "dump.jsonl:2: completed, reward 1.0, 2 turns, 1 tool calls"
    assert "active_trials=0 open_sessions=0" in layer.evidence[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"error": "agent exited with 1"}, "dump.jsonl:1: agent exited with 1"),
        ({"reward": None}, "dump.jsonl:1: reward None is no number"),
        ({"reward": True}, "reward True is no number"),
        ({"reward": float("nan")}, "reward nan is no number"),
        ({"status": "aborted"}, "dump.jsonl:1: status 'aborted'"),
        ({"status": "truncated"}, "no budget is named"),
        ({"agent_turns": 1}, "no sample of 1 took a second turn"),
        ({"response": "I called it."}, "no sample of 1 took a second turn"),
        ({"response": None, "agent_turns": None}, "no sample of 1 took a second turn"),
    ],
)
def test_what_fails_a_rollout(gateway, changes, words):
    layer = judge(gateway, sample(**changes))
    assert layer.verdict == "failed" and any(words in line for line in layer.evidence)


def test_a_truncated_sample_passes_with_its_budget(gateway):
    assert judge(gateway, sample(status="truncated", truncated_by="max_steps")).verdict == "passed"
    # The trainer's dump does not have the field.
    trainers = {name: value for name, value in sample(status="truncated").items() if name != "truncated_by"}
    assert judge(gateway, trainers).verdict == "passed"


@pytest.mark.parametrize("held", [{"active_trials": 1}, {"open_sessions": 2}, {"open_sessions": None}])
def test_state_that_is_not_released_or_not_known_fails(gateway, monkeypatch, held):
    monkeypatch.setattr(health, "RELEASE_S", 0)
    gateway.answer |= held
    clean, said = health.released([gateway.url], 0.3)
    assert not clean and ("unknown" in said or "=1" in said or "=2" in said)


def run(gateway, folder, *options, **environment):
    command = [sys.executable, str(SCRIPTS / "accept.py"), "--nemo-gym-url", gateway.url, *options]
    variables = {"EXP_DIR": str(folder), "RUN_DIR": str(folder / "run"), "GYM_BASE_PORT": "20900"} | environment
    ended = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stdout + ended.stderr


def write_dump(folder, *samples, name="a"):
    path = folder / "rehearsal" / "rollout_result" / "train" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in samples))
    return path


def test_every_layer_is_named_and_a_missing_server_counts_for_its_own_alone(gateway, tmp_path):
    path = write_dump(tmp_path, sample())
    status, output = run(gateway, tmp_path)
    assert status == 1 and "Traceback" not in output
    assert "services ready:     passed" in output
    assert "verifier contract:  not looked at: nobody listens at http://127.0.0.1:20902" in output
    assert "model rollout:      passed" in output
    assert "training step:      not run: rehearsal driver, no trainer on this machine" in output
    assert output.strip().splitlines()[-1].startswith("acceptance not looked at: verifier contract (")
    report = json.loads((tmp_path / "run" / "accept.json").read_text())
    assert report["dump"] == str(path)
    verdicts = [each["verdict"].split(":")[0] for each in report["layers"]]
    assert verdicts == ["passed", "not looked at", "passed", "not run"]


def test_without_a_graph_what_it_would_show_is_not_looked_at(tmp_path):
    silent = ["http://127.0.0.1:9"]
    layer = judge(None, sample(), silent=silent)
    assert layer.verdict == "not looked at: whether http://127.0.0.1:9 let go of all state"
    assert "1 of 1 samples called tools" in layer.evidence[1]
    # What speaks against the dump does so without a graph, too.
    assert judge(None, sample(reward=None), silent=silent).verdict == "failed"
    layers = [accept.services({silent[0]: (False, {})}), layer]
    assert accept.summary(layers) == ("failed: services ready; not looked at: model rollout", True)
    assert accept.summary([accept.Layer("training step", runs.NO_TRAINER, [])]) == ("passed", False)


def test_a_gateway_that_is_not_ready_fails_the_services(gateway, tmp_path):
    gateway.answer |= {"ready": False, "servers": {"agent": {"up": False}}}
    layer = accept.services({gateway.url: net.readyz(gateway.url)})
    assert layer.verdict == "failed" and '"agent"' in layer.evidence[0] and "make gym-up" in layer.evidence[0]
    urls = [gateway.url, "http://127.0.0.1:9"]
    nobody = accept.services({url: net.readyz(url) for url in urls})
    assert any(line.startswith("http://127.0.0.1:9/readyz: no answer") for line in nobody.evidence)


@pytest.mark.parametrize("line", ["{", "[]", '{"reward": 1}', "[" * 100_000])
def test_a_broken_dump_is_named_by_file_and_line(gateway, tmp_path, line):
    path = write_dump(tmp_path, sample())
    path.write_text(path.read_text() + line + "\n")
    status, output = run(gateway, tmp_path)
    assert status == 1 and f"{path}:2: not" in output and "Traceback" not in output


def test_no_dump_yet_says_what_makes_one(gateway, tmp_path):
    status, output = run(gateway, tmp_path)
    assert status == 1 and "make smoke" in output


def test_the_newest_dump_is_taken_and_an_older_run_is_not(tmp_path):
    old, new = write_dump(tmp_path, name="old"), write_dump(tmp_path, name="new")
    os.utime(old, (1000, 1000))
    os.utime(new, (2000, 2000))
    assert runs.newest_dump(Settings(tmp_path)) == runs.newest(Settings(tmp_path)).dumps == new
    assert runs.newest_dump(Settings(tmp_path), [new]) == old
    with pytest.raises(Failure, match="no new rollout dump"):
        runs.newest_dump(Settings(tmp_path), runs.rehearsals(Settings(tmp_path)))


def test_a_smoke_run_that_fails_names_what_did_not_run():
    class Run:
        stages = dict.fromkeys(["data", "graph", "verifier contract", "acceptance"])
        results = [("data", "passed", 0.1, ""), ("graph", "failed", 2.0, "")]

        class settings:
            REHEARSAL_POLICY, MODEL, MODEL_URL, RAY_ADDRESS = "oracle", "model", None, None

    lines = smoke.verdict(Run)
    assert lines[0].endswith("failed") and lines[1].endswith("not run") and lines[2].endswith("not run")
    assert lines[3] == "training step:      not run: rehearsal driver, no trainer on this machine"
    assert len(lines) == 4, "nobody stood in for anybody: no rollout ran"
    Run.results.append(("Ray job", "failed", 1.0, ""))
    assert "ground truth stood in for the policy model" in smoke.verdict(Run)[4]
    del Run.results[-1]
    table = smoke.final_table(Run, 3).splitlines()
    assert [line.split("  ")[0].strip() for line in table[2:]] == [
        "set-up",
        "data",
        "graph",
        "verifier contract",
        "acceptance",
        "total",
    ]
