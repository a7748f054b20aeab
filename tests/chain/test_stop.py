"""`make stop` (runs last): nothing of ours is left, nothing else is touched, a second call finds nothing."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from proofs.rig import run_script
from servers import ports, processes

SLEEP = "import time; time.sleep(300)"


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Processes that are not ours: a sleeper, one that looks like Ray's, one that another run folder marked."""
    ray = tmp_path_factory.mktemp("other") / "raylet"
    ray.symlink_to(sys.executable)
    other_run = os.environ | {processes.MARK: str(ray.parent), processes.ROLE: "gym"}
    unmarked = {name: text for name, text in os.environ.items() if name not in (processes.MARK, processes.ROLE)}
    started = [
        subprocess.Popen([sys.executable, "-c", SLEEP], env=unmarked),
        subprocess.Popen([str(ray), "-c", SLEEP, "ray::IDLE", "servers.supervise", "gcs_server"], env=unmarked),
        subprocess.Popen([sys.executable, "-c", SLEEP, "servers.supervise"], env=other_run),
    ]
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def stopped(graph_started, strangers, models):
    """What was there before a stop while a trial ran, and the result of the stop."""
    graph_started.wait_ready()
    graph_started.wait_running(graph_started.start(graph_started.payload(models.hanging())))
    ours, ray = processes.ours(graph_started.settings), (graph_started.run_dir / "ray-gym.tmpdir").read_text().strip()
    before = {"processes": ours, "ray": Path(ray), "sockets": open_ports(ours), "shared": shared_memory(ours)}
    return before, graph_started.stop()


def open_ports(held_by):
    inodes = set().union(*(ports.sockets_of(process) for process in held_by))
    return {port for _, port, inode in ports.listening() if inode in inodes}


def shared_memory(held_by):
    """Files under /dev/shm that these processes hold mapped."""
    paths = set()
    for process in held_by:
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:
            continue
        paths |= {line.split()[5] for line in maps.splitlines() if "/dev/shm/" in line}
    return paths


def test_stop_says_what_it_ended_and_nothing_of_ours_is_left(stopped, graph_started):
    before, result = stopped
    assert result.returncode == 0 and result.stderr == "", result.stderr
    assert result.stdout.startswith("Stopped: ") and "none left" in result.stdout
    assert len(before["processes"]) > 5
    assert not [process for process in before["processes"] if process.alive()]
    assert not processes.ours(graph_started.settings)
    listening = {port for _, port, _ in ports.listening()}
    assert len(before["sockets"]) > 8 and not before["sockets"] & listening
    assert not before["ray"].exists()
    assert not [path for path in before["shared"] if Path(path).exists()]


def test_nothing_else_was_ended_and_a_second_stop_finds_nothing(stopped, graph_started, strangers):
    assert [process.poll() for process in strangers] == [None] * len(strangers)
    again = graph_started.stop()
    assert (again.returncode, again.stdout, again.stderr) == (0, "Stopped: nothing was running\n", "")
    assert [process.poll() for process in strangers] == [None] * len(strangers)


def test_the_trial_that_ran_is_on_record_as_ended(stopped, graph_started):
    with sqlite3.connect(graph_started.run_dir / "trials.sqlite") as store:
        unfinished = store.execute("SELECT count(*) FROM trials WHERE snapshot IS NULL").fetchone()[0]
        last = store.execute("SELECT snapshot FROM trials ORDER BY created DESC LIMIT 1").fetchone()[0]
    assert unfinished == 0 and "service_shutdown" in last


def test_stop_needs_no_graph_and_no_run_folder(graph_started, tmp_path):
    env = graph_started.env | {"RUN_DIR": str(tmp_path / "never")}
    result = run_script("stop.py", env)
    assert (result.returncode, result.stdout) == (0, "Stopped: nothing was running\n")
