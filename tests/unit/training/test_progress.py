"""A training run as it is watched: figures of its dump, late samples, stalls, a silent dashboard, a full disk."""

import threading
import time
from pathlib import Path

import pytest

from rollouts import growth
from support.dumps import append, sample
from training import progress
from training.arguments import Task

TASK = Task(Path("rows.jsonl"), 6, batch=2, samples=2, rollouts=3, global_batch=4)


@pytest.fixture
def watch(tmp_path):
    return watching(tmp_path)


def watching(folder, stall_s=1000):
    return progress.Watch(folder / "log", growth.DumpReader(folder / "dumps", {}), TASK, stall_s)


def test_figures_are_counted_by_rollout_and_prompt():
    figures = progress.Progress(TASK)
    assert figures.line().startswith("rollouts 0/3, samples 0/12, mean reward none, mixed groups none")
    assert figures.left() is None
    figures.add([sample(sample_index=index, reward=reward) for index, reward in enumerate([1.0, 0.0, 1.0, 1.0])])
    figures.add(
        [sample(rollout_id=1, status="truncated", reward=0.0), sample(rollout_id=1, sample_index=1, reward=None)]
    )
    assert figures.line() == (
        "rollouts 1/3, samples 6/12, mean reward 0.600, mixed groups 50%, truncated 1, failed 1, tokens 60"
    )
    assert figures.left() >= 0
    # A file that was written anew loses its samples, and only its own.
    for anew in (False, True):
        figures.add([sample(rollout_id=2)] * 2, "2.jsonl", anew)
    assert "samples 8/12" in figures.line()


def test_samples_that_show_late_are_waited_for_at_the_end(watch, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "REDRAW_S", 0.01)
    threading.Timer(0.2, append, [tmp_path / "dumps" / "0.jsonl", *[sample()] * 12]).start()
    watch.wait_all()
    assert "samples 12/12" in watch.progress.line()
    monkeypatch.setattr(progress, "LATE_S", 0)
    watching(tmp_path / "none").wait_all()


def test_a_dashboard_that_falls_silent_is_said_once_and_so_is_its_return(watch, capsys):
    for status in ("RUNNING", "unknown", "unknown", "RUNNING"):
        watch.tell(status)
    assert capsys.readouterr().out.splitlines() == [
        "Ray's dashboard does not answer; the job goes on without it, and it is asked again",
        "Ray's dashboard answers again; the job is RUNNING",
    ]


def test_a_stall_raises_one_alarm_and_a_sign_of_life_ends_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "REDRAW_S", 0)
    watch = watching(tmp_path, 0.05)
    for _ in range(3):
        time.sleep(0.06)
        watch.tell("RUNNING")
    assert capsys.readouterr().out.count("alarm: no output and no sample for") == 1
    append(tmp_path / "dumps" / "0.jsonl", sample())
    watch.tell("RUNNING")
    time.sleep(0.06)
    watch.tell("RUNNING")
    out = capsys.readouterr().out
    assert out.count("alarm:") == 1 and "samples 1/12" in out
    watch.show("a line\n")
    watch.close()
    assert (tmp_path / "log").read_text() == "a line\n"


def test_a_full_disk_does_not_end_the_watch(watch, tmp_path, capsys):
    watch.log.close()
    with open("/dev/full", "w") as watch.log:
        watch.show("one\n")
        watch.show("two\n")
        watch.close()
    assert capsys.readouterr().out.count(f"alarm: {tmp_path}/log: No space left on device") == 1


def test_nothing_is_drawn_where_there_is_no_terminal(watch, monkeypatch, capsys):
    monkeypatch.setattr(progress, "REDRAW_S", 0)
    watch.tell("RUNNING")
    assert capsys.readouterr() == ("", "")
