"""A training run as it is watched and judged: dumps that grow, the actor's log, records of runs, stalls."""

import json
import threading
import time
from pathlib import Path

import pytest

import accept
from common.failure import Failure
from rollouts import growth, runs
from support.scripted_dashboard import ScriptedDashboard
from training import actor_log
from training import progress as train_watch

TEXT = '<tool_call>\n{"name": "t", "arguments": {}}\n</tool_call>\n<tool_response>\nok\n</tool_response>\nDone.'
# As a trainer of this kind prints it through Ray.
STEP = "(MegatronTrainRayActor pid=7, ip=10.0.0.5) step 3: {'train/loss': 0.0123, 'train/grad_norm': 1.5}"


class Task:
    batch, samples, rollouts, total_samples = 2, 2, 3, 12


def sample(**changes):
    fields = {"rollout_id": 0, "sample_index": 0, "status": "completed", "reward": 1.0, "agent_turns": 2}
    tokens = {"prompt_token_count": 5, "response_token_count": 5, "total_token_count": 10}
    return fields | tokens | {"response": TEXT} | changes


def append(path, *items, end="\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(json.dumps(item) + "\n" for item in items)[: None if end else -1])


# --- the watch -----------------------------------------------------------------------------


def rewards_in(read):
    return [(name, anew, [item["reward"] for item in items]) for name, anew, items in read]


def test_only_what_a_run_adds_is_read_and_only_whole_lines(tmp_path):
    old = tmp_path / "0.jsonl"
    append(old, sample(reward=0.5))
    reader = growth.DumpReader(tmp_path, growth.marks(tmp_path))
    assert reader.read() == []
    append(old, sample(reward=0.25), sample(reward=0.75), end="")
    append(tmp_path / "1.jsonl", sample(reward=0.125))
    assert rewards_in(reader.read()) == [("0.jsonl", False, [0.25]), ("1.jsonl", False, [0.125])]
    with old.open("a") as file:
        file.write("\nnot JSON\n")
    assert rewards_in(reader.read()) == [("0.jsonl", False, [0.75])]
    assert reader.read() == []


@pytest.mark.parametrize("count", [1, 5, 9])
def test_a_dump_written_anew_is_read_from_its_start(tmp_path, count):
    path = tmp_path / "0.jsonl"
    append(path, *[sample(reward=0.25)] * 5)
    reader = growth.DumpReader(tmp_path, growth.marks(tmp_path))
    path.unlink()
    append(path, *[sample(reward=0.5)] * count)
    assert rewards_in(reader.read()) == [("0.jsonl", True, [0.5] * count)]
    path.unlink()
    append(path, *[sample(reward=0.75)] * count)
    progress = train_watch.Progress(Task)
    progress.add([sample(reward=0.5)] * count, "0.jsonl")
    for name, anew, items in reader.read():
        progress.add(items, name, anew)
    assert f"samples {count}/12, mean reward 0.750" in progress.line()


def test_a_dump_that_cannot_be_read_now_is_read_later(tmp_path, monkeypatch):
    append(tmp_path / "0.jsonl", sample())
    reader = growth.DumpReader(tmp_path, {})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(OSError(116, "Stale file handle")))
        assert reader.read() == []
    assert rewards_in(reader.read()) == [("0.jsonl", False, [1.0])]


def test_samples_that_show_late_are_waited_for_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(train_watch, "REDRAW_S", 0.01)
    watch = train_watch.Watch(tmp_path / "log", growth.DumpReader(tmp_path, {}), Task, 1000)
    late = threading.Timer(0.2, append, [tmp_path / "0.jsonl", *[sample()] * 12])
    late.start()
    watch.wait_all()
    assert "samples 12/12" in watch.progress.line()
    monkeypatch.setattr(train_watch, "LATE_S", 0)
    train_watch.Watch(tmp_path / "log", growth.DumpReader(tmp_path / "none", {}), Task, 1000).wait_all()


def test_a_dashboard_that_falls_silent_is_said_once_and_so_is_its_return(tmp_path, capsys):
    watch = train_watch.Watch(tmp_path / "log", growth.DumpReader(tmp_path, {}), Task, 1000)
    for status in ("RUNNING", "unknown", "unknown", "RUNNING"):
        watch.tell(status)
    assert capsys.readouterr().out.splitlines() == [
        "Ray's dashboard does not answer; the job goes on without it, and it is asked again",
        "Ray's dashboard answers again; the job is RUNNING",
    ]


def test_progress_counts_by_rollout_and_prompt():
    progress = train_watch.Progress(Task)
    progress.add([sample(sample_index=index, reward=reward) for index, reward in enumerate([1.0, 0.0, 1.0, 1.0])])
    progress.add(
        [sample(rollout_id=1, status="truncated", reward=0.0), sample(rollout_id=1, sample_index=1, reward=None)]
    )
    assert progress.line() == (
        "rollouts 1/3, samples 6/12, mean reward 0.600, mixed groups 50%, truncated 1, failed 1, tokens 60"
    )
    assert progress.left() >= 0
    assert (
        train_watch.Progress(Task).line().startswith("rollouts 0/3, samples 0/12, mean reward none, mixed groups none")
    )


def test_a_stall_raises_one_alarm_and_a_sign_of_life_ends_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_watch, "REDRAW_S", 0)
    dumps = tmp_path / "dumps"
    dumps.mkdir()
    watch = train_watch.Watch(tmp_path / "log", growth.DumpReader(dumps, {}), Task, 0.05)
    for _ in range(3):
        time.sleep(0.06)
        watch.tell("RUNNING")
    assert capsys.readouterr().out.count("alarm: no output and no sample for") == 1
    append(dumps / "0.jsonl", sample())
    watch.tell("RUNNING")
    time.sleep(0.06)
    watch.tell("RUNNING")
    out = capsys.readouterr().out
    assert out.count("alarm:") == 1 and "samples 1/12" in out
    watch.show("a line\n")
    watch.close()
    assert (tmp_path / "log").read_text() == "a line\n"


def test_a_full_disk_does_not_end_the_watch(tmp_path, capsys):
    watch = train_watch.Watch(tmp_path / "log", growth.DumpReader(tmp_path, {}), Task, 1000)
    watch.log.close()
    with open("/dev/full", "w") as watch.log:
        watch.show("one\n")
        watch.show("two\n")
        watch.close()
    assert capsys.readouterr().out.count(f"alarm: {tmp_path}/log: No space left on device") == 1


def test_nothing_is_drawn_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train_watch, "REDRAW_S", 0)
    train_watch.Watch(tmp_path / "log", growth.DumpReader(tmp_path, {}), Task, 1000).tell("RUNNING")
    assert capsys.readouterr() == ("", "")


# --- the actor's log -----------------------------------------------------------------------


def found_in(tmp_path, *lines):
    path = tmp_path / "actor.log"
    path.write_text("".join(line + "\n" for line in lines))
    return actor_log.read(path)


@pytest.mark.parametrize(
    "line",
    [
        STEP,
        "\x1b[36m(Actor pid=1)\x1b[0m step=12 loss=-0.5",
        "[2026] train step 0 | grad_norm: 2.1e-05",
        "Step: 4, pg_loss: tensor(0.25)",
        " iteration       10/     100 | consumed samples:     320 | elapsed time per iteration (ms): 5123.4 | "
        "learning rate: 1.000000E-06 | lm loss: 1.234567E+00 | loss scale: 1.0 | grad norm: 0.512 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
        '{"train/step": 7, "train/loss": 0.01, "train/grad_norm": 1.5}',
        "step:3 - actor/pg_loss:0.012 - actor/grad_norm:0.2 - perf/mfu:0.4",
        "global_step=8 loss=np.float64(0.25)",
        "{'loss': 0.5, 'grad_norm': tensor(1.25, device='cuda:0'), 'learning_rate': 1e-06}",
    ],
)
def test_what_shows_a_step(tmp_path, line):
    found = found_in(tmp_path, "starting", line)
    assert [number for number, _ in found.steps] == [2] and not found.faults


@pytest.mark.parametrize(
    "line",
    [
        "job SUCCEEDED",
        "step 3 of the installation is done",
        "rollout 3: {'rollout/reward': 1.0}",
        "loss 0.5",
        "stepping: loss=0.5",
        "arguments: log_probs_chunk_size=1024 loss_mask=True",
        "iteration 3 took 5 s, loss scale: 1.0, kl_loss_coef=0.0",
        "{'rollout/loss': 0.5, 'eval/loss': 0.25}",
    ],
)
def test_what_shows_none(tmp_path, line):
    found = found_in(tmp_path, line)
    assert not found.steps and not found.faults


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate",
        "(raylet) 1 Workers (tasks / actors) killed due to memory pressure (OOM)",
        "step 4: {'train/loss': nan, 'train/grad_norm': 1.0}",
        "step 4: {'train/loss': 0.1, 'train/grad_norm': inf}",
        " iteration       11/     100 | lm loss: NaN | grad norm: 0.1 |",
    ],
)
def test_what_speaks_against_a_step(tmp_path, line):
    assert [number for number, _ in found_in(tmp_path, STEP, line).faults] == [2]


# --- acceptance of a training run ----------------------------------------------------------


class Settings:
    def __init__(self, folder):
        self.EXP_DIR = folder


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
    run = runs.newest(Settings(tmp_path))
    assert run.id == "train-1" and run.gateways == ["http://10.0.0.4:29000"]
    assert [(Path(place).name, item["reward"]) for place, item in run.samples] == [
        ("0.jsonl:4", 1.0),
        ("0.jsonl:5", 0.0),
    ]
    layer = accept.training_step(run)
    assert layer.verdict == "passed"
    assert layer.evidence == [f"{tmp_path}/train-1.log:1: {STEP}", "1 lines with step metrics"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["Ray job SUCCEEDED"], "no line with the metrics of an optimizer step"),
        ([STEP, "Traceback (most recent call last):"], "train-1.log:2: Traceback"),
        ([STEP, "CUDA out of memory"], "train-1.log:2: CUDA out of memory"),
    ],
)
def test_a_step_is_not_claimed(tmp_path, lines, said):
    write_run(tmp_path, *lines)
    layer = accept.training_step(runs.newest(Settings(tmp_path)))
    assert layer.verdict == "failed" and any(said in line for line in layer.evidence)


def test_a_log_that_is_gone_proves_nothing(tmp_path):
    write_run(tmp_path, STEP)
    (tmp_path / "train-1.log").unlink()
    layer = accept.training_step(runs.newest(Settings(tmp_path)))
    assert layer.verdict == "failed" and "train-1.log: No such file" in layer.evidence[0]


def test_a_log_that_was_cut_short_is_completed_from_ray(tmp_path):
    with ScriptedDashboard() as dashboard:
        write_run(tmp_path, "starts", dashboard=dashboard.url)
        dashboard.jobs["train-1"], dashboard.logs["train-1"] = {"status": "RUNNING"}, f"starts\n{STEP}\n"
        run = runs.newest(Settings(tmp_path))
        assert accept.complete_log(run, tmp_path / "logs") == "RUNNING"
        assert run.logs == [tmp_path / "logs" / "train-1.whole.log"]
        assert accept.training_step(run).verdict == "passed"
        # Whoever follows the run still writes to the first.
        assert (tmp_path / "train-1.log").read_text() == "starts\n"

        write_run(tmp_path, STEP, STEP, dashboard=dashboard.url)
        run = runs.newest(Settings(tmp_path))
        assert accept.complete_log(run, tmp_path / "logs") == "RUNNING" and run.logs == [tmp_path / "train-1.log"]
        dashboard.jobs.clear()
        assert accept.complete_log(run, tmp_path / "logs") is None
    assert accept.complete_log(run, tmp_path / "logs") is None


def test_a_rehearsal_never_has_a_training_step(tmp_path):
    path = tmp_path / "rehearsal" / "rollout_result" / "train" / "a.jsonl"
    append(path, sample())
    assert accept.training_step(runs.newest(Settings(tmp_path))).verdict == runs.NO_TRAINER


def test_a_broken_record_is_named(tmp_path):
    record = write_run(tmp_path, STEP)
    record.write_text("{}")
    with pytest.raises(Failure, match=r"train-1\.json: no record of a training run"):
        runs.newest(Settings(tmp_path))
    with pytest.raises(Failure, match="make train"):
        runs.newest(Settings(tmp_path / "empty"))
