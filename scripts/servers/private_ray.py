"""A one-node Ray of our own on loopback, for NeMo Gym's servers or for a rehearsal.

Guarantees:
- Its ports are checked before a start.
- It listens on loopback alone.
- Only one Ray of this user starts at a time.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from common.failure import Failure
from common.files import tail
from common.net import ask
from common.settings import Settings
from servers.ports import beyond_loopback, check_ports, connects
from servers.processes import end, environment, forget_sessions, ours, spawn

# Ports of one Ray, as offsets from its block's first port.
RAY_OFFSETS = {
    "node-manager-port": 2,
    "object-manager-port": 3,
    "runtime-env-agent-port": 4,
    "dashboard-agent-listen-port": 5,
    "dashboard-agent-grpc-port": 6,
    "metrics-export-port": 7,
    "ray-client-server-port": 8,
}
RAY_WORKER_PORTS = (20, 59)
RAY_TRIES = 3


@contextmanager
def _turn_to_start() -> Iterator[None]:
    """Let one Ray of this user start at a time: on few cores several at once exceed Ray's own limit of 30 s."""
    path = Path(tempfile.gettempdir()) / f"gym-ray-start-{os.getuid()}.lock"
    with open(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class PrivateRay:
    """The Ray of one role: "gym" (NeMo Gym's servers) or "rehearsal" (the job).

    They are never one: the trainer's entrypoint stops all jobs and Serve on the cluster it is given.
    """

    process: subprocess.Popen[bytes]  # set by `spawn`

    def __init__(self, settings: Settings, role: str) -> None:
        self.settings, self.role = settings, role
        self.base = settings.GYM_BASE_PORT + (40 if role == "gym" else 100)
        self.port = settings.GYM_RAY_PORT if role == "gym" else self.base
        self.dashboard_port = self.base + 1
        self.address = f"127.0.0.1:{self.port}"
        self.dashboard_url = f"http://127.0.0.1:{self.dashboard_port}"
        self.log = settings.RUN_DIR / "logs" / f"ray-{role}.log"

    def ports(self) -> list[int]:
        low, high = RAY_WORKER_PORTS
        named = [self.base + offset for offset in RAY_OFFSETS.values()]
        return [self.port, self.dashboard_port, *named, *range(self.base + low, self.base + high + 1)]

    def command(self) -> list[str]:
        low, high = RAY_WORKER_PORTS
        options = {"port": self.port, "dashboard-port": self.dashboard_port, "dashboard-host": "127.0.0.1"}
        options |= {name: self.base + offset for name, offset in RAY_OFFSETS.items()}
        options |= {"min-worker-port": self.base + low, "max-worker-port": self.base + high}
        options |= {"node-ip-address": "127.0.0.1", "num-gpus": 0, "object-store-memory": 100_000_000}
        options |= {"include-dashboard": str(self.role == "rehearsal").lower(), "temp-dir": self._temp_dir()}
        ray = str(Path(sys.executable).with_name("ray"))
        return [ray, "start", "--head", "--block", "--disable-usage-stats", *(f"--{k}={v}" for k, v in options.items())]

    def _temp_dir(self) -> str:
        # Ray puts sockets into it, whose paths are limited to 107 bytes: a folder in the clone could be too deep.
        note = self._temp_note()
        if not note.exists():
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(tempfile.mkdtemp(prefix="gym-ray-"))
        return note.read_text()

    def _temp_note(self) -> Path:
        return self.settings.RUN_DIR / f"ray-{self.role}.tmpdir"

    def spawn(self) -> None:
        """Start Ray without waiting for it."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = spawn(self.command(), self.log, environment(self.settings, self.role), self.settings.RUN_DIR)

    def answers(self) -> bool:
        """Whether its node is up; for the rehearsal, whether it takes jobs too."""
        needed = ["node-manager-port"] + (["dashboard-agent-listen-port"] if self.role == "rehearsal" else [])
        if not all(map(connects, [self.port, *(self.base + RAY_OFFSETS[name] for name in needed)])):
            return False
        return self.role == "gym" or '"ALIVE"' in ask(f"{self.dashboard_url}/nodes?view=summary", timeout=5).text

    def start(self, detail: Callable[[str], None] = lambda text: None) -> None:
        """Start it unless it runs, and wait until it answers. Raises Failure with the log's end."""
        running = ours(self.settings, self.role)
        if running and self.answers():
            return
        end(running)
        self.clear()
        check_ports(self.ports(), "GYM_RAY_PORT" if self.role == "gym" else "GYM_BASE_PORT")
        self.launch(detail)

    def launch(self, detail: Callable[[str], None] = lambda text: None) -> None:
        """Spawn it and wait; again if it gave up, as it does when a busy machine starts its agent late."""
        began = time.monotonic()
        with _turn_to_start():
            for tries_left in reversed(range(RAY_TRIES)):
                self.spawn()
                try:
                    return self._wait(detail)
                except Failure:
                    if not tries_left or time.monotonic() - began > self.settings.GYM_START_TIMEOUT_S:
                        raise

    def _says_started(self) -> bool:
        """Whether the Ray spawned here logged its start; its ports listen before that, even if it gives up later."""
        return b"Ray runtime started" in self.log.read_bytes()[self._log_start :]

    def _wait(self, detail: Callable[[str], None]) -> None:
        """Wait until it answers, then check that it listens on loopback alone."""
        deadline = time.monotonic() + self.settings.GYM_START_TIMEOUT_S
        while not (self._says_started() and self.answers()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self._end_spawned()
                raise Failure(f"the {self.role} Ray did not start; the end of {self.log}:\n{tail(self.log)}")
            detail(f"waiting for Ray on {self.address}")
            time.sleep(0.2)
        everyone, gateway = ours(self.settings, self.role), self.settings.port("gateway")
        if exposed := beyond_loopback(everyone, allowed={gateway}):
            self._end_spawned()
            raise Failure(f"the {self.role} Ray listens on {exposed[0][0]}:{exposed[0][1]}, not on loopback alone")

    def _end_spawned(self) -> None:
        """End the Ray spawned here; the graph's servers, which have its role too, go on."""
        end([process for process in ours(self.settings, self.role) if process.session == self.process.pid])

    def clear(self) -> None:
        """Remove the temporary folder of an ended Ray."""
        if self._temp_note().exists():
            shutil.rmtree(self._temp_note().read_text(), ignore_errors=True)
            self._temp_note().unlink()

    def stop(self) -> int:
        """End it and what runs on it. Returns the number of processes ended."""
        running = ours(self.settings, self.role)
        end(running)
        self.clear()
        forget_sessions(self.settings)
        return len(running)
