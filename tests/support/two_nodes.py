"""A real Ray cluster of two nodes on this machine: a head without GPUs, and a node with 8 logical ones.

Where this user may make a mount namespace, the second node sees another folder in place of one of ours, like a
node that does not share the others' storage.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import net
from proofs.rig import own_address
from servers import processes

RAY = str(Path(sys.executable).with_name("ray"))
TRIES = 8
START_S = 90
# Ray starts as many workers on each node in advance, each of which takes a second or two.
CPUS = 2


class Cluster:
    """At this machine's outward address where it has one; 100 ports from `base` on, files in a folder of its own."""

    def __init__(self, base, folder=None, shown=None):
        """The second node sees `shown` in the place of `folder`; `differs` tells whether that could be had."""
        self.base, self.view = base, [str(shown), str(folder)]
        probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
        self.differs = bool(folder) and probe.returncode == 0
        # Ray itself takes the outward address, whatever it is told, for nodes that can be several.
        self.host = own_address() or "127.0.0.1"
        self.folder = Path(tempfile.mkdtemp(prefix="two-nodes-"))
        self.address = f"{self.host}:{base}"
        self.dashboard_url = f"http://{self.host}:{base + 1}"
        self.processes = []

    def up(self):
        head = {"head": None, "port": self.base, "dashboard-host": self.host, "dashboard-port": self.base + 1}
        head |= {"num-gpus": 0, "ray-client-server-port": self.base + 2, "temp-dir": self.folder / "ray"}
        self.start("head", head | self.ports(3), [])
        self.start("node", {"address": self.address, "num-gpus": 8} | self.ports(50), self.blinkers())
        self.wait_nodes(2)

    def ports(self, offset):
        names = ("node-manager-port", "object-manager-port", "runtime-env-agent-port", "metrics-export-port")
        names += ("dashboard-agent-listen-port", "dashboard-agent-grpc-port")
        named = {name: self.base + offset + index for index, name in enumerate(names)}
        low = self.base + offset + len(names)
        return named | {"min-worker-port": low, "max-worker-port": low + 35}

    def blinkers(self):
        """Words before a command that give it the other view; none where that is not allowed."""
        mount = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
        return ["unshare", "--mount", "bash", "-c", mount, "bash", *self.view] if self.differs else []

    def start(self, name, options, before):
        fixed = {"node-ip-address": self.host, "num-cpus": CPUS, "object-store-memory": 100_000_000}
        flags = [f"--{key}" if value is None else f"--{key}={value}" for key, value in (options | fixed).items()]
        kept = {k: v for k, v in os.environ.items() if k.lower() not in processes.PROXY_VARIABLES}
        environment = kept | {"RAY_USAGE_STATS_ENABLED": "0"}
        log = self.folder / f"{name}.log"
        for _ in range(TRIES):
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [*before, RAY, "start", "--block", "--disable-usage-stats", *flags],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self.processes.append(process)
            if self.started(process, log):
                return
            self.end(self.processes.pop())
        raise AssertionError(f"Ray did not start: {log.read_text()[-2000:]}")

    def started(self, process, log):
        # A busy machine starts Ray's agents too late for Ray, which then gives up.
        end = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < end:
            if b"Ray runtime started" in log.read_bytes():
                return True
            time.sleep(0.2)
        return False

    def wait_nodes(self, count):
        end = time.monotonic() + START_S
        while net.ask(f"{self.dashboard_url}/nodes?view=summary", timeout=5).text.count('"ALIVE"') < count:
            assert time.monotonic() < end, "the nodes did not show on the dashboard"
            time.sleep(0.3)

    def end(self, process):
        everyone = processes.processes()
        session = [member for member in everyone if member.session == process.pid]
        parents = {member.pid for member in session}
        processes.end(session + [child for child in everyone if child.parent in parents and child not in session])
        process.wait()

    def down(self):
        for process in reversed(self.processes):
            self.end(process)
        shutil.rmtree(self.folder, ignore_errors=True)
