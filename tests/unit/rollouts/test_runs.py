"""Training runs by their record: their own samples, their log, and what acceptance makes of it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import accept
from common.failure import Failure
from rollouts import growth, runs
from support.dumps import append, sample
from support.scripted_dashboard import ScriptedDashboard

# As a trainer of this kind prints it through Ray.
STEP = "(MegatronTrainRayActor pid=7, ip=10.0.0.5) step 3: {'train/loss': 0.0123, 'train/grad_norm': 1.5}"


def newest(folder):
    return runs.newest(SimpleNamespace(EXP_DIR=folder))


def write_run(folder, *log_lines, before=(), samples=None, name="train-1", dashboard="http://127.0.0.1:9"):
    dumps = folder / "Qwen3-4B_mcore_8xgpu" / "rollout_result" / "train"
    append(dumps / "0.jsonl", *before)
    marks = growth.marks(dumps)
    append(dumps / "0.jsonl", *(samples or [sample()]))
    log = folder / f"{name}.log"
    log.write_text("".join(line + "\n" for line in log_lines))
    record = dumps.parents[1] / "runs" / f"{name}.json"
    record.parent.mkdir(exist_ok=True)
    facts = {"submission_id": name, "log": str(log), "dumps": str(dumps), "dumps_before": marks}
    record.write_text(json.dumps(facts | {"gateways": ["http://10.0.0.4:29000"], "dashboard": dashboard}))
    return record


def test_a_run_is_its_own_samples_with_their_lines_and_its_log(tmp_path):
    write_run(tmp_path, STEP, before=[sample(reward=0.5)] * 3, samples=[sample(), sample(reward=0.0)])
    run = newest(tmp_path)
    assert run.id == "train-1" and run.gateways == ["http://10.0.0.4:29000"]
    rewards = {Path(place).name: item["reward"] for place, item in run.samples}
    assert rewards == {"0.jsonl:4": 1.0, "0.jsonl:5": 0.0}
    layer = accept.training_step(run)
    assert layer.verdict == "passed"
    assert layer.evidence == [f"{tmp_path}/train-1.log:1: {STEP}", "1 lines with step metrics"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["Ray job SUCCEEDED"], "no line with the metrics of an optimizer step"),
        ([STEP, "Traceback (most recent call last):"], "train-1.log:2: Traceback"),
        ([STEP, "CUDA out of memory"], "train-1.log:2: CUDA out of memory"),
        (None, "train-1.log: No such file"),
    ],
)
def test_a_step_is_not_claimed(tmp_path, lines, words):
    write_run(tmp_path, *lines or [STEP])
    if lines is None:
        (tmp_path / "train-1.log").unlink()
    layer = accept.training_step(newest(tmp_path))
    assert layer.verdict == "failed" and any(words in line for line in layer.evidence)


def test_a_log_that_was_cut_short_is_completed_from_ray(tmp_path):
    with ScriptedDashboard() as dashboard:
        write_run(tmp_path, "starts", dashboard=dashboard.url)
        dashboard.jobs["train-1"], dashboard.logs["train-1"] = {"status": "RUNNING"}, f"starts\n{STEP}\n"
        run = newest(tmp_path)
        assert accept.complete_log(run, tmp_path / "logs") == "RUNNING"
        assert run.logs == [tmp_path / "logs" / "train-1.whole.log"]
        assert accept.training_step(run).verdict == "passed"
        # Whoever follows the run still writes to the first.
        assert (tmp_path / "train-1.log").read_text() == "starts\n"

        write_run(tmp_path, STEP, STEP, dashboard=dashboard.url)
        run = newest(tmp_path)
        assert accept.complete_log(run, tmp_path / "logs") == "RUNNING" and run.logs == [tmp_path / "train-1.log"]
        dashboard.jobs.clear()
        assert accept.complete_log(run, tmp_path / "logs") is None
    assert accept.complete_log(run, tmp_path / "logs") is None


def test_a_rehearsal_never_has_a_training_step(tmp_path):
    append(tmp_path / "rehearsal" / "rollout_result" / "train" / "a.jsonl", sample())
    assert accept.training_step(newest(tmp_path)).verdict == runs.NO_TRAINER


def test_a_broken_record_is_named(tmp_path):
    write_run(tmp_path, STEP).write_text("{}")
    with pytest.raises(Failure, match=r"train-1\.json: no record of a training run"):
        newest(tmp_path)
    with pytest.raises(Failure, match="make train"):
        newest(tmp_path / "empty")
