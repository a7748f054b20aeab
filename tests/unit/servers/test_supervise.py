"""A server of the graph as the supervisor watches it: dead or hung, it is started again; healthy, it is left alone."""

import signal
import socket
import sys
import time

import pytest

from common import settings as variables
from common.failure import Failure
from servers import processes, supervise

# Answers until it is told to hang, then keeps its port and says nothing more.
SCRIPT = """
import http.server, os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for name, value in {"LOOK_EVERY_S": 0, "LOOK_TIMEOUT_S": 0.5, "HANG_S": 1, "BACKOFF_S": (0,)}.items():
        monkeypatch.setattr(supervise, name, value)
    program = tmp_path / "server.py"
    program.write_text(SCRIPT)
    settings = variables.load({"RUN_DIR": str(tmp_path)}, environment={}, dotenv=tmp_path / "none")
    environment = processes.environment(settings, "gym")
    command = f"exec {sys.executable} {program} {port}"
    started = supervise.Server("it", f"http://127.0.0.1:{port}", command, tmp_path / "log", environment, tmp_path)
    yield started
    started.end(signal.SIGKILL, 0)


def watch_until(server, condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the supervisor did not get there"
        server.watch(time.monotonic())
        time.sleep(0.1)


def test_a_healthy_server_is_left_alone(server):
    first = server.process.pid
    watch_until(server, lambda: server.answered)
    began = time.monotonic()
    watch_until(server, lambda: time.monotonic() > began + 2)
    assert server.process.pid == first


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1], ids=["dead", "hung"])
def test_a_dead_or_hung_server_is_ended_and_started_again(server, number):
    first = server.process
    watch_until(server, lambda: server.answered)
    first.send_signal(number)
    watch_until(server, lambda: server.process.pid != first.pid and server.answered)
    assert first.returncode == -signal.SIGKILL


def test_a_server_that_never_answered_is_still_starting(server):
    server.process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    watch_until(server, lambda: time.monotonic() > began + 2)
    assert server.process.poll() is None


def test_a_server_that_cannot_be_started_now_is_tried_again(server, monkeypatch, capsys):
    """A full disk takes neither the log nor the record of a new process."""
    first, spawn = server.process, processes.spawn
    refusals = []

    def refuse(*_):
        refusals.append(1)
        raise Failure("RUN_DIR: no space left")

    monkeypatch.setattr(processes, "spawn", refuse)
    first.kill()
    first.wait()
    watch_until(server, lambda: len(refusals) > 2)
    monkeypatch.setattr(processes, "spawn", spawn)
    watch_until(server, lambda: server.process.pid != first.pid and server.answered)
    assert "no space left" in capsys.readouterr().out


def test_a_line_that_the_log_does_not_take_ends_nothing(monkeypatch):
    class Full:
        def write(self, text):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    supervise.note("anything")
