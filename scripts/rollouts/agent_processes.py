"""Agent processes as the trainer starts them: `/bin/bash -lc COMMAND`, each in a process group of its own.

Guarantees: an agent that outlives its time gets SIGTERM and, five seconds later, SIGKILL, its
whole group with it; whatever an agent leaves behind in its group ends when it does, in the
same two steps; no group is signalled after its leader was reaped, so no stranger's process
can be hit; after `stop` none starts. It does not judge what an agent wrote.
"""

import os
import signal
import subprocess
import threading
import time

KILL_AFTER_S = 5
# The driver's own credential for a model endpoint is nobody else's.
KEPT_BACK = ("MODEL_API_KEY",)


class Stopping(Exception):
    """No agent starts any more."""


class Agent:
    """One process group, from its start to its end."""

    def __init__(self, process):
        self.process, self.expired = process, False
        self.lock, self.ended = threading.Lock(), threading.Event()

    def wait(self, timeout_s):
        """Wait for the end: the exit status, or None if the time ran out first."""
        timer = threading.Timer(timeout_s, self._expire)
        timer.daemon = True
        timer.start()
        # The leader is not reaped yet: as long as it is there, its group's number is not given away.
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        with self.lock:
            self.ended.set()
        timer.cancel()
        self._end_rest()
        status = self.process.wait()
        return None if self.expired else status

    def _expire(self):
        with self.lock:
            self.expired = not self.ended.is_set()
        self.end()

    def end(self):
        """SIGTERM to the group; SIGKILL if it is still there five seconds later."""
        self._signal(signal.SIGTERM)
        if not self.ended.wait(KILL_AFTER_S):
            self._signal(signal.SIGKILL)

    def _end_rest(self):
        """End what the leader left in its group, with time for a login shell's start-up to drop its locks."""
        for number, patience_s in ((signal.SIGTERM, KILL_AFTER_S), (signal.SIGKILL, 1)):
            if not _rest(self.process.pid):
                return
            _signal_group(self.process.pid, number)
            deadline = time.monotonic() + patience_s
            while _rest(self.process.pid) and time.monotonic() < deadline:
                time.sleep(0.05)

    def _signal(self, number):
        with self.lock:
            if not self.ended.is_set():
                _signal_group(self.process.pid, number)


def _rest(group):
    """Live processes of a group, its leader apart."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != group and _in(pid, group)]


def _in(pid, group):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, _, number = file.read().rpartition(b")")[2].split()[:3]
    except OSError:
        # It ended since the listing.
        return False
    return int(number) == group and state != b"Z"


def _signal_group(group, number):
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        # Only the unreaped leader is left, which needs no signal.
        return


class Agents:
    """All agents of a driver: `run` one from any thread, `stop` all."""

    def __init__(self, command, cwd, environment, timeout_s):
        self.command, self.cwd, self.timeout_s = command, cwd, timeout_s
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RELAX_") and k not in KEPT_BACK}
        self.environment = inherited | environment
        self.lock, self.running, self.stopping = threading.Lock(), set(), False

    def run(self, variables, log):
        """Run the command to its end, its output into the open file `log`: as Agent.wait. Raises Stopping."""
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

    def _start(self, variables, log):
        return subprocess.Popen(
            ["/bin/bash", "-lc", self.command],
            cwd=self.cwd,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stop(self):
        """End all agents, side by side; does not wait for it."""
        with self.lock:
            self.stopping = True
            for agent in self.running:
                threading.Thread(target=agent.end, daemon=True).start()
