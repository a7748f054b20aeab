"""Processes that the end of a test kills."""

import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from servers import processes

SLEEP = "import time; print('up', flush=True); time.sleep(120)"


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def run(tmp_path):
    """Settings with a run folder of their own."""
    (tmp_path / "run").mkdir()
    return SimpleNamespace(GYM_BASE_PORT=29000, GYM_RAY_PORT=6382, RUN_DIR=tmp_path / "run")


@pytest.fixture
def start(tmp_path):
    """Start Python code as a process of a run's role, or as nobody's: (process, the words it printed by then)."""
    started = []

    def begin(code=SLEEP, run=None, role="gym"):
        command, log = [sys.executable, "-c", textwrap.dedent(code)], tmp_path / f"{len(started)}.log"
        if run:
            started.append(processes.spawn(command, log, processes.environment(run, role), tmp_path))
        else:
            with log.open("wb") as output:
                started.append(subprocess.Popen(command, stdout=output, start_new_session=True))
        until(lambda: log.read_bytes().endswith(b"\n"))
        return started[-1], log.read_text().split()

    yield begin
    for process in started:
        process.kill()
        process.wait()
