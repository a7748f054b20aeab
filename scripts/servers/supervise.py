#!/usr/bin/env python3
"""Run the graph until a signal: private Ray, Gateway, pairs of simple agent and resource server, head server.

NeMo Gym's own launcher (head_server.py) says what to start, but its watch would end the whole graph with one server.

Guarantees:
- A server that dies or hangs, head server and Ray included, is started again with backoff while the others go on.
- A server that dies before all have answered once ends the start.
- On SIGTERM or SIGINT the Gateway ends first, so that it can clean up after its trials.

Started by gym_up.py, and in the image; it does not go to the background.

  PYTHONPATH=scripts python -m servers.supervise
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from common import files, net, program
from common.failure import Failure
from common.settings import ROOT, Settings, from_command_line
from common.terminal import run
from servers import private_ray, processes
from servers.tree import WORKPLACE, installed_tree

WATCH_EVERY_S, START_POLL_S = 0.5, 0.1
BACKOFF_S = (0.5, 1, 2, 4, 8, 15, 30)
# A server that lived this long has recovered: its next restart waits the shortest time again.
STEADY_S = 60
# One long request may hold a server's event loop; after HANG_S without an answer it counts as hung.
LOOK_EVERY_S, LOOK_TIMEOUT_S, HANG_S = 5, 2, 30
# NeMo Gym's names of a pair's servers; those of further pairs end in _2, _3, …
RESOURCE, AGENT = "workplace_assistant", "workplace_assistant_simple_agent"
STARTED = "started"
# The Gateway needs time to clean up; the others hold nothing worth waiting for.
END_GRACE_S = {"policy_model": 12, "default": 3}


class Server:
    """One server process of the graph and what is needed to start it again."""

    def __init__(self, name: str, url: str, command: str, log: Path, environment: Mapping[str, str], cwd: Path) -> None:
        self.name, self.url, self.log = name, url, log
        self._how = (["/bin/bash", "-c", command], log, environment, cwd)
        self._restarts = 0
        self.start()

    def start(self) -> None:
        self._started: float = time.monotonic()
        self._restart_at: float | None = None
        self.answered: float | None = None
        self._next_probe: float = 0
        self.process = processes.spawn(*self._how)

    def watch(self, now: float) -> None:
        """Start the server again if it died and its wait is over; end it if it hangs."""
        if self.process.poll() is None:
            self._end_if_hung(now)
            return
        if self._restart_at is None:
            self.end(signal.SIGKILL, 0)  # children that the dead process left behind
            self._restarts = 0 if now - self._started > STEADY_S else self._restarts
            wait = BACKOFF_S[min(self._restarts, len(BACKOFF_S) - 1)]
            note(f"{self.name} ended with status {self.process.returncode}; starts again in {wait} s")
            self._restart_at, self._restarts = now + wait, self._restarts + 1
        elif now >= self._restart_at:
            try:
                self.start()
            except Failure as failure:  # the disk may be full for a while
                note(failure)

    def _end_if_hung(self, now: float) -> None:
        """Kill a server that answered before and no longer does: one odd argument of a tool can block it for ever."""
        if now < self._next_probe:
            return
        self._next_probe = now + LOOK_EVERY_S
        if net.ask(self.url, timeout=LOOK_TIMEOUT_S).status:
            self.answered = now
        elif self.answered and now - self.answered > HANG_S:
            note(f"{self.name} has not answered at {self.url} for {HANG_S} s; it is ended")
            self.end(signal.SIGKILL, 0)

    def end(self, number: int, patience_s: float) -> None:
        """Signal the server's whole session; SIGKILL after `patience_s`."""
        for which, patience in ((number, patience_s), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.process.pid, which)
                self.process.wait(timeout=patience)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


class Servers:
    """All servers of the graph, started through NeMo Gym's launcher."""

    def __init__(self, settings: Settings, ray_address: str) -> None:
        self.settings, self.ray_address = settings, ray_address
        self.running: dict[str, Server] = {}
        self._suffixes = ["", *(f"_{nth}" for nth in range(2, settings.replicas + 1))]
        # NeMo Gym's names of the servers -> our names of their ports.
        self._ports = {"policy_model": "callbacks", "head_server": "head"}
        for suffix in self._suffixes:
            self._ports |= {RESOURCE + suffix: f"resource{suffix}", AGENT + suffix: f"agent{suffix}"}
        self.work = settings.RUN_DIR / "work"
        self.asked = self.work / "asked"

    def _launch(self, name: str, command: str, **variables: str) -> None:
        environment = dict(os.environ, PYTHONUNBUFFERED="1", **variables)
        log, url = self.settings.RUN_DIR / "logs" / f"{name}.log", self.settings.local_url(self._ports[name])
        self.running[name] = Server(name, url, command, log, environment, self.work)

    def start(self) -> None:
        """Start the launcher and what it asks for, until all answered. Raises Failure if a server dies before."""
        self._lay_out()
        self._launch("head_server", f"exec {shlex.join(program.room('servers.head_server'))}")
        while not (self.asked / STARTED).exists():
            self._start_asked()
            if dead := [server for server in self.running.values() if server.process.poll() is not None]:
                ended = f"{dead[0].name} ended with status {dead[0].process.returncode} at its start"
                raise Failure(f"{ended}; the end of {dead[0].log}:\n{files.tail(dead[0].log)}")
            time.sleep(START_POLL_S)

    def _start_asked(self) -> None:
        """Start what the launcher asked for as it would have, but in sessions and with logs of their own."""
        for request in self.asked.glob("*.json"):
            if request.stem not in self.running:
                wanted = json.loads(request.read_text())
                path = [wanted["directory"], *([str(program.SCRIPTS)] if request.stem == "policy_model" else [])]
                self._launch(request.stem, wanted["command"], PYTHONPATH=os.pathsep.join(path))

    def _lay_out(self) -> None:
        """Prepare the working folder in which NeMo Gym finds our Gateway and the one environment of all servers."""
        shutil.rmtree(self.asked, ignore_errors=True)
        self.asked.mkdir(parents=True)
        gateway = self.work / "responses_api_models" / "gateway"
        links = {gateway: ROOT / "scripts" / "gateway"}
        for server in ("responses_api_models/gateway", "responses_api_agents/simple_agent", WORKPLACE):
            links[self.work / "venvs" / server / ".venv"] = Path(sys.prefix)
        for link, target in links.items():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def config(self) -> dict[str, Any]:
        """NeMo Gym's configuration of the graph."""
        path = installed_tree() / WORKPLACE / "configs/workplace_assistant.yaml"
        upstream = yaml.safe_load(path.read_text())
        pairs = {}
        for suffix in self._suffixes:
            pairs |= self._pair(upstream, suffix)
        return pairs | {
            "policy_model": {"responses_api_models": {"gateway": {"entrypoint": "app.py", **self._at("callbacks")}}},
            "head_server": self._at("head"),
            "ray_head_node_address": self.ray_address,
            "skip_venv_if_present": True,
            "uv_venv_dir": str(self.work / "venvs"),
        }

    def _at(self, name: str) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.settings.port(name)}

    def _pair(self, upstream: dict[str, Any], suffix: str) -> dict[str, Any]:
        """One pair's instances: as NeMo Gym configures them, at our ports, the agent bound to its resource server."""
        resource = upstream[RESOURCE]["resources_servers"]["workplace_assistant"]
        agent = upstream[AGENT]["responses_api_agents"]["simple_agent"]
        bound = {"resources_server": agent["resources_server"] | {"name": RESOURCE + suffix}}
        return {
            RESOURCE + suffix: {"resources_servers": {"workplace_assistant": resource | self._at(f"resource{suffix}")}},
            AGENT + suffix: {"responses_api_agents": {"simple_agent": agent | bound | self._at(f"agent{suffix}")}},
        }

    def watch(self) -> None:
        for server in self.running.values():
            server.watch(time.monotonic())

    def end(self) -> None:
        gateway = [self.running.pop("policy_model")] if "policy_model" in self.running else []
        for server in [*gateway, *self.running.values()]:
            server.end(signal.SIGINT, END_GRACE_S.get(server.name, END_GRACE_S["default"]))


def note(line: object) -> None:
    """Log a line; a full disk must not end the graph."""
    with suppress(OSError):
        print(line, flush=True)


class Ray:
    """NeMo Gym's private Ray: servers join it at their start and leave it once they are set up."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.ray = settings, private_ray.PrivateRay(settings, "gym")
        self._failures, self._next_try = 0, 0.0

    def watch(self, servers: Iterable[Server], now: float) -> None:
        """Start it again if it died; retry with backoff if that fails."""
        if self.ray.process.poll() is None or now < self._next_try:
            return
        note(f"the private Ray ended with status {self.ray.process.returncode}; starts again")
        self.end(servers)
        try:
            self.ray.launch()
            self._failures = 0
        except Failure as failure:
            note(failure)
            self._next_try = time.monotonic() + BACKOFF_S[min(self._failures, len(BACKOFF_S) - 1)]
            self._failures += 1

    def end(self, servers: Iterable[Server]) -> None:
        """End whatever is left of it: all of ours that belongs neither to a server nor to this process."""
        others = {os.getsid(0), *(server.process.pid for server in servers)}
        processes.end([process for process in processes.ours(self.settings, "gym") if process.session not in others], 0)
        self.ray.clear()


def supervise(settings: Settings) -> None:
    """Start everything, watch it until a signal comes, end it."""
    ray = Ray(settings)
    servers = Servers(settings, ray.ray.address)
    try:
        ray.ray.launch()
        servers.start()
        note("graph started")
        while True:
            ray.watch(servers.running.values(), time.monotonic())
            servers.watch()
            time.sleep(WATCH_EVERY_S)
    finally:
        servers.end()
        ray.end(servers.running.values())


def end_on_signals() -> None:
    """Have SIGTERM and SIGINT unwind this process, and ignore further ones."""

    def end(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def main() -> None:
    settings, _ = from_command_line(
        __doc__, "RUN_DIR", "GYM_BASE_PORT", "GYM_RAY_PORT", "GYM_BIND_HOST", "GYM_REPLICAS"
    )
    settings.RUN_DIR.mkdir(parents=True, exist_ok=True)
    processes.allow_many_files()
    end_on_signals()
    os.environ.update(settings.texts, **processes.environment(settings, "gym"))
    # Our rooms' names must hide no package from the servers, and no proxy may stand between them.
    for name in ("PYTHONPATH", *processes.PROXY_VARIABLES, *map(str.upper, processes.PROXY_VARIABLES)):
        os.environ.pop(name, None)
    supervise(settings)


if __name__ == "__main__":
    run(main)
