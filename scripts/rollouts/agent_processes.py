"""Agent processes as the trainer starts them: `/bin/bash -lc COMMAND`, each in its own process group.

Guarantees:
- an agent that outlives its time gets SIGTERM and, five seconds later, SIGKILL, with its whole group
- processes that an agent leaves behind in its group are ended in the same two steps
- no group is signalled after its leader was reaped, so no stranger's process can be hit
- after `stop` no agent starts
- what an agent wrote is not judged
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from gateway.launch import PREFIX

KILL_AFTER_S = 5
# Agents must not see the driver's credential for a model endpoint.
KEPT_BACK = ("MODEL_API_KEY",)


class Stopping(Exception):
    """No agent starts any more."""


class Agent:
    """One process group, from its start to its end."""

    def __init__(self, process: subprocess.Popen):
        self.process, self.expired = process, False
        self.lock, self.ended = threading.Lock(), threading.Event()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for the end: the exit status, or None if the time ran out first."""
        timer = threading.Timer(timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        # As long as the leader is not reaped, no other group can get its number.
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        with self.lock:
            self.ended.set()
        timer.cancel()
        self._end_rest()
        status = self.process.wait()
        return None if self.expired else status

    def _expire(self) -> None:
        with self.lock:
            self.expired = not self.ended.is_set()
        self.end()

    def end(self) -> None:
        """Send SIGTERM to the group, and SIGKILL if it is still there five seconds later."""
        self._signal(signal.SIGTERM)
        if not self.ended.wait(KILL_AFTER_S):
            self._signal(signal.SIGKILL)

    def _end_rest(self) -> None:
        """End what the leader left in its group; a login shell's start-up gets time to drop its locks."""
        for number, patience_s in ((signal.SIGTERM, KILL_AFTER_S), (signal.SIGKILL, 1)):
            if not _rest(self.process.pid):
                return
            _signal_group(self.process.pid, number)
            deadline = time.monotonic() + patience_s
            while _rest(self.process.pid) and time.monotonic() < deadline:
                time.sleep(0.05)

    def _signal(self, number: int) -> None:
        with self.lock:
            if not self.ended.is_set():
                _signal_group(self.process.pid, number)


def _rest(group: int) -> list[int]:
    """The live processes of a group without its leader."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != group and _in(pid, group)]


def _in(pid: int, group: int) -> bool:
    with suppress(OSError):  # it ended after it was listed
        state, _, number = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[:3]
        return int(number) == group and state != b"Z"
    return False


def _signal_group(group: int, number: int) -> None:
    # If only the unreaped leader is left, it needs no signal.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


class Agents:
    """All agents of a driver: `run` one from any thread, `stop` all."""

    def __init__(self, command: str, cwd: Path | str, environment: dict[str, str], timeout_s: float):
        self.command, self.cwd, self.timeout_s = command, cwd, timeout_s
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX) and k not in KEPT_BACK}
        self.environment = inherited | environment
        self.lock, self.stopping = threading.Lock(), False
        self.running: set[Agent] = set()

    def run(self, variables: dict[str, str], log: IO[bytes]) -> int | None:
        """Run the command to its end, with its output in `log`; returns as Agent.wait. Raises Stopping."""
        with self.lock:
            if self.stopping:
                raise Stopping
            agent = Agent(self._start(variables, log))
            self.running.add(agent)
        try:
            return agent.wait(self.timeout_s)
        finally:
            with self.lock:
                self.running.discard(agent)

    def _start(self, variables: dict[str, str], log: IO[bytes]) -> subprocess.Popen:
        return subprocess.Popen(
            ["/bin/bash", "-lc", self.command],
            cwd=self.cwd,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stop(self) -> None:
        """Begin to end all agents, all at once."""
        with self.lock:
            self.stopping = True
            for agent in self.running:
                threading.Thread(target=agent.end, daemon=True).start()
