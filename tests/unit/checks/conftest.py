"""What the checks' tests share: processes that end with a test, and an engine's API."""

import os
import subprocess
import sys
import textwrap

import pytest

from servers import processes
from support.doctor_case import Pages


@pytest.fixture
def start():
    """start(code, *arguments): a Python process that has run `code` and sleeps until the end of the test."""
    started = []

    def begin(code="", *arguments, name=sys.executable, **environment):
        code = f"import socket, time\n{textwrap.dedent(code)}\nprint('up', flush=True); time.sleep(120)"
        # On one line, as programs have their command lines.
        command, environment = [name, "-c", f"exec({code!r})", *arguments], os.environ | environment
        started.append(subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE, env=environment))
        assert started[-1].stdout.readline() == b"up\n"
        return started[-1]

    yield begin
    pids = {process.pid for process in started}
    processes.end([process for process in processes.processes() if pids & {process.pid, process.parent}])
    for process in started:
        process.communicate()


@pytest.fixture
def engine(monkeypatch):
    """An engine's API as far as it is asked, without images and containers; `engine.put(path, page)` adds to it."""
    with Pages({"/version": {"ApiVersion": "1.44", "Version": "27"}, "/v1.44/_ping": "OK"}) as api:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{api.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        api.put = lambda path, page: api.pages.update({f"/v1.44/{path}": page})
        api.put("containers/json", [])
        api.put("images/json", [])
        yield api


@pytest.fixture
def no_engine(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
