"""Acceptance as a process: a dump on disk, a scripted Gateway and resource server, one verdict a layer."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import smoke
from common import net
from common.failure import Failure
from gateway import health
from reports import layers
from rollouts import runs
from support.doctor_case import Pages
from support.dumps import TEXT
from support.programs import stage

IDLE = {"ready": True, "service_epoch": "e1", "active_trials": 0, "open_sessions": 0}
NOBODY = "http://127.0.0.1:9"


def sample(**changes):
    fields = {"status": "completed", "reward": 1.0, "agent_turns": 2, "response": TEXT, "error": None}
    return fields | {"group_id": 0, "row_id": 1, "truncated_by": None} | changes


@pytest.fixture
def gateway():
    with Pages({"/readyz": dict(IDLE)}) as server:
        yield server


def judge(url, *samples, silent=()):
    places = [(f"dump.jsonl:{number}", item) for number, item in enumerate(samples, 1)]
    return layers.rollout(runs.Run("a", Path("dump.jsonl"), places), [url], silent)


def test_a_good_rollout_passes_with_the_sample_it_was_seen_in(gateway):
    layer = judge(gateway.url, sample(agent_turns=1, response="Done.", reward=0.0), sample())
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
    layer = judge(gateway.url, sample(**changes))
    assert layer.verdict == "failed" and any(words in line for line in layer.evidence)


def test_a_truncated_sample_passes_with_its_budget(gateway):
    cut = sample(status="truncated", truncated_by="max_steps")
    assert judge(gateway.url, cut).verdict == "passed"
    del cut["truncated_by"]  # the trainer's dump does not have the field
    assert judge(gateway.url, cut).verdict == "passed"


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ({"active_trials": 1}, "active_trials=1 "),
        ({"open_sessions": 2}, "open_sessions=2"),
        ({"open_sessions": None}, "open_sessions=unknown"),
    ],
)
def test_state_that_is_not_released_or_not_known_fails(gateway, held, words):
    gateway.pages["/readyz"] |= held
    clean, counts = health.released([gateway.url], 0.3)
    assert not clean and words in counts


def run(gateway, folder):
    variables = {"EXP_DIR": folder, "RUN_DIR": folder / "run", "GYM_BASE_PORT": "20900"}
    ended = stage("accept", "--nemo-gym-url", gateway.url, **variables)
    assert ended.returncode == 1
    return ended.stdout + ended.stderr


def write_dump(folder, *samples, name="a"):
    path = folder / "rehearsal" / "rollout_result" / "train" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in samples))
    return path


def test_every_layer_is_named_and_a_missing_server_counts_for_its_own_alone(gateway, tmp_path):
    path = write_dump(tmp_path, sample())
    output = run(gateway, tmp_path)
    assert "services ready:     passed" in output
    assert "verifier contract:  not looked at: nobody listens at http://127.0.0.1:20902" in output
    assert "model rollout:      passed" in output
    assert "training step:      not run: rehearsal driver, no trainer on this machine" in output
    assert output.strip().splitlines()[-1].startswith("acceptance not looked at: verifier contract (")
    report = json.loads((tmp_path / "run" / "accept.json").read_text())
    assert report["dump"] == str(path)
    verdicts = [layer["verdict"].split(":")[0] for layer in report["layers"]]
    assert verdicts == ["passed", "not looked at", "passed", "not run"]


def test_without_a_graph_what_it_would_show_is_not_looked_at():
    layer = judge(NOBODY, sample(), silent=[NOBODY])
    assert layer.verdict == f"not looked at: whether {NOBODY} let go of all state"
    assert "1 of 1 samples called tools" in layer.evidence[1]
    # What speaks against the dump does so without a graph, too.
    assert judge(NOBODY, sample(reward=None), silent=[NOBODY]).verdict == "failed"
    both = [layers.services({NOBODY: (False, {})}), layer]
    assert layers.summary(both) == ("failed: services ready; not looked at: model rollout", True)
    assert layers.summary([layers.Layer("training step", runs.NO_TRAINER, [])]) == ("passed", False)


def test_a_gateway_that_is_not_ready_fails_the_services(gateway):
    gateway.pages["/readyz"] = (503, IDLE | {"ready": False, "servers": {"agent": {"up": False}}})
    layer = layers.services({url: net.readyz(url) for url in (gateway.url, NOBODY)})
    assert layer.verdict == "failed" and '"agent"' in layer.evidence[0] and "make gym-up" in layer.evidence[0]
    assert layer.evidence[1].startswith(f"{NOBODY}/readyz: no answer")


@pytest.mark.parametrize("line", ["{", "[]", '{"reward": 1}', "[" * 100_000])
def test_a_broken_dump_is_named_by_file_and_line(tmp_path, line):
    path = write_dump(tmp_path, sample())
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(Failure, match=f"{path}:2: not"):
        runs.of_dump(path)


def test_no_dump_yet_says_what_makes_one(gateway, tmp_path):
    assert "make smoke" in run(gateway, tmp_path)


def test_the_newest_dump_is_taken_and_an_older_run_is_not(tmp_path):
    old, new = write_dump(tmp_path, name="old"), write_dump(tmp_path, name="new")
    os.utime(old, (1000, 1000))
    os.utime(new, (2000, 2000))
    settings = SimpleNamespace(EXP_DIR=tmp_path)
    assert runs.newest_dump(settings) == runs.newest(settings).dumps == new
    assert runs.newest_dump(settings, [new]) == old
    with pytest.raises(Failure, match="no new rollout dump"):
        runs.newest_dump(settings, runs.rehearsals(settings))


def test_a_smoke_run_that_fails_names_what_did_not_run():
    settings = SimpleNamespace(REHEARSAL_POLICY="oracle", MODEL="model", MODEL_URL=None, RAY_ADDRESS=None)
    names = ["data", "graph", "verifier contract", "acceptance"]
    results = [smoke.Result("data", "passed", 0.1), smoke.Result("graph", "failed", 2.0)]
    ended = SimpleNamespace(stages=dict.fromkeys(names), results=results, settings=settings)
    lines = smoke.verdict(ended)
    assert lines[0].endswith("failed") and lines[1].endswith("not run") and lines[2].endswith("not run")
    assert lines[3] == "training step:      not run: rehearsal driver, no trainer on this machine"
    assert len(lines) == 4, "nobody stood in for anybody: no rollout ran"
    table = smoke.final_table(ended, 3).splitlines()
    assert [line.split("  ")[0].strip() for line in table[2:]] == ["set-up", *names, "total"]
    results.append(smoke.Result("Ray job", "failed", 1.0))
    assert "ground truth stood in for the policy model" in smoke.verdict(ended)[4]
