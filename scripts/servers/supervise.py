#!/usr/bin/env python3
"""Run the graph until a signal: private Ray, Gateway, pairs of simple agent and resource server, head server.

NeMo Gym's own launcher (head_server.py) says what to start, its start-up as it is. Its watch ends
the whole graph when one server dies; here a server that dies alone, head server and Ray included,
is started again, with backoff, while the others go on. A server that dies before all have answered
once ends the start. On SIGTERM or SIGINT the Gateway ends first, so that it can clean up after its
trials, then the rest. Started by gym_up.py, and in the image; it does not go to the background.

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
from contextlib import suppress
from pathlib import Path

import yaml

from common import files, net, program
from common.failure import Failure
from common.settings import ROOT, from_command_line
from common.terminal import run
from servers import private_ray, processes
from servers.tree import installed_tree

WATCH_EVERY_S, START_POLL_S = 0.5, 0.1
BACKOFF_S = (0.5, 1, 2, 4, 8, 15, 30)
# A server that lived this long has recovered: its next restart waits the shortest time again.
STEADY_S = 60
# A server's event loop may be held by one long request; beyond HANG_S it is held for good.
LOOK_EVERY_S, LOOK_TIMEOUT_S, HANG_S = 5, 2, 30
# NeMo Gym's names of a pair's servers; those of further pairs end in _2, _3, …
RESOURCE, AGENT = "workplace_assistant", "workplace_assistant_simple_agent"
STARTED = "started"
# The Gateway may need its clean-up time; the others hold nothing worth waiting for.
END_GRACE_S = {"policy_model": 12, "default": 3}


class Server:
    """One server process of the graph and what is needed to start it again."""

    def __init__(self, name, url, command, log, environment, cwd):
        self.name, self.url, self.log = name, url, log
        self._how = (["/bin/bash", "-c", command], log, environment, cwd)
        self.restarts, self.restart_at = 0, None
        self.start()

    def start(self):
        self.started, self.restart_at = time.monotonic(), None
        self.answered, self.next_look = None, 0
        self.process = processes.spawn(*self._how)

    def watch(self, now):
        """Start the server again if it died and its wait is over; end it if it hangs."""
        if self.process.poll() is None:
            self._end_if_hung(now)
            return
        if self.restart_at is None:
            self.end(signal.SIGKILL, 0)  # what the dead shell may have left behind
            self.restarts = 0 if now - self.started > STEADY_S else self.restarts
            wait = BACKOFF_S[min(self.restarts, len(BACKOFF_S) - 1)]
            note(f"{self.name} ended with status {self.process.returncode}; starts again in {wait} s")
            self.restart_at, self.restarts = now + wait, self.restarts + 1
        elif now >= self.restart_at:
            try:
                self.start()
            except Failure as failure:  # a full disk takes no log; later it may
                note(failure)

    def _end_if_hung(self, now):
        """Kill a server that answered once and no longer does: a tool's pathological argument can hold it for ever."""
        if now < self.next_look:
            return
        self.next_look = now + LOOK_EVERY_S
        if net.ask(self.url, timeout=LOOK_TIMEOUT_S).status:
            self.answered = now
        elif self.answered and now - self.answered > HANG_S:
            note(f"{self.name} has not answered at {self.url} for {HANG_S} s; it is ended")
            self.end(signal.SIGKILL, 0)

    def end(self, number, patience_s):
        """Signal the server's whole session; SIGKILL after `patience_s`."""
        for which, patience in ((number, patience_s), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.process.pid, which)
                self.process.wait(timeout=patience)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


class Graph:
    """The servers, started through NeMo Gym's launcher."""

    def __init__(self, settings, ray_address):
        self.settings, self.ray_address = settings, ray_address
        self.servers = {}
        # NeMo Gym's names of the servers, and ours of their ports.
        self.names = {"policy_model": "callbacks"}
        for suffix in self.suffixes():
            self.names |= {RESOURCE + suffix: f"resource{suffix}", AGENT + suffix: f"agent{suffix}"}
        self.work = settings.RUN_DIR / "work"
        self.asked = self.work / "asked"

    def suffixes(self):
        return ["", *(f"_{nth}" for nth in range(2, self.settings.replicas + 1))]

    def launch(self, command, directory, server_name="", **_):
        """Takes the place of NeMo Gym's `run_command`: same environment, a session and a log of its own."""
        found_in = [str(directory.absolute()), *([str(program.SCRIPTS)] if server_name == "policy_model" else [])]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(found_in), PYTHONUNBUFFERED="1")
        log = self.settings.RUN_DIR / "logs" / f"{server_name}.log"
        url = self.settings.local_url(self.names[server_name])
        self.servers[server_name] = Server(server_name, url, command, log, environment, self.work)

    def start(self):
        """Start the launcher and what it asks for, until all answered. Raises Failure where one dies before."""
        self._lay_out()
        self._start_head()
        while not (self.asked / STARTED).exists():
            self._start_asked()
            if dead := [server for server in self.servers.values() if server.process.poll() is not None]:
                ended = f"{dead[0].name} ended with status {dead[0].process.returncode} at its start"
                raise Failure(f"{ended}; the end of {dead[0].log}:\n{files.tail(dead[0].log)}")
            time.sleep(START_POLL_S)

    def _start_head(self):
        log, url = self.settings.RUN_DIR / "logs" / "head_server.log", self.settings.local_url("head")
        command = f"exec {shlex.join(program.room('servers.head_server'))}"
        environment = dict(os.environ, PYTHONUNBUFFERED="1")
        self.servers["head_server"] = Server("head_server", url, command, log, environment, self.work)

    def _start_asked(self):
        for note in self.asked.glob("*.json"):
            if note.stem not in self.servers:
                wanted = json.loads(note.read_text())
                self.launch(wanted["command"], Path(wanted["directory"]), note.stem)

    def _lay_out(self):
        """Working folder in which NeMo Gym finds our Gateway and the one environment of all servers."""
        shutil.rmtree(self.asked, ignore_errors=True)
        self.asked.mkdir(parents=True)
        gateway = self.work / "responses_api_models" / "gateway"
        links = {gateway: ROOT / "scripts" / "gateway"}
        for server in ("responses_api_models/gateway", "responses_api_agents/simple_agent", local_resource()):
            links[self.work / "venvs" / server / ".venv"] = Path(sys.prefix)
        for link, target in links.items():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def config(self):
        """NeMo Gym's configuration of the graph."""
        path = installed_tree() / local_resource() / "configs/workplace_assistant.yaml"
        upstream = yaml.safe_load(path.read_text())
        pairs = {}
        for suffix in self.suffixes():
            pairs |= self.pair(upstream, suffix)
        return pairs | {
            "policy_model": {"responses_api_models": {"gateway": {"entrypoint": "app.py", **self.at("callbacks")}}},
            "head_server": self.at("head"),
            "ray_head_node_address": self.ray_address,
            "skip_venv_if_present": True,
            "uv_venv_dir": str(self.work / "venvs"),
        }

    def at(self, name):
        return {"host": "127.0.0.1", "port": self.settings.port(name)}

    def pair(self, upstream, suffix):
        """One pair's instances: as NeMo Gym configures them, at our ports, the agent bound to its resource server."""
        resource = upstream[RESOURCE]["resources_servers"]["workplace_assistant"]
        agent = upstream[AGENT]["responses_api_agents"]["simple_agent"]
        bound = {"resources_server": agent["resources_server"] | {"name": RESOURCE + suffix}}
        return {
            RESOURCE + suffix: {"resources_servers": {"workplace_assistant": resource | self.at(f"resource{suffix}")}},
            AGENT + suffix: {"responses_api_agents": {"simple_agent": agent | bound | self.at(f"agent{suffix}")}},
        }

    def watch(self):
        for server in self.servers.values():
            server.watch(time.monotonic())

    def end(self):
        first = [self.servers.pop("policy_model")] if "policy_model" in self.servers else []
        for server in [*first, *self.servers.values()]:
            server.end(signal.SIGINT, END_GRACE_S.get(server.name, END_GRACE_S["default"]))


def note(line):
    """Say it in the log, if the disk has room for it: the graph must not end for a line."""
    with suppress(OSError):
        print(line, flush=True)


def local_resource():
    return "resources_servers/workplace_assistant"


class Ray:
    """NeMo Gym's private Ray: servers join it at their start and leave it once they are set up."""

    def __init__(self, settings):
        self.settings, self.ray = settings, private_ray.PrivateRay(settings, "gym")
        self.failures, self.next_try = 0, 0

    def watch(self, graph, now):
        """Start it again if it died; in vain, then later once more."""
        if self.ray.process.poll() is None or now < self.next_try:
            return
        note(f"the private Ray ended with status {self.ray.process.returncode}; starts again")
        self.end(graph)
        try:
            self.ray.launch()
            self.failures = 0
        except Failure as failure:
            note(failure)
            self.next_try = time.monotonic() + BACKOFF_S[min(self.failures, len(BACKOFF_S) - 1)]
            self.failures += 1

    def end(self, graph):
        """End whatever is left of it: all of ours that belongs neither to a server nor to this process."""
        others = {os.getsid(0), *(server.process.pid for server in graph.servers.values())}
        processes.end([process for process in processes.ours(self.settings, "gym") if process.session not in others], 0)
        self.ray.clear()


def supervise(settings):
    """Start everything, watch it until a signal comes, end it."""
    ray = Ray(settings)
    graph = Graph(settings, ray.ray.address)
    try:
        ray.ray.launch()
        graph.start()
        note("graph started")
        while True:
            ray.watch(graph, time.monotonic())
            graph.watch()
            time.sleep(WATCH_EVERY_S)
    finally:
        graph.end()
        ray.end(graph)


def end_on_signals():
    def end(*_):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def main():
    settings, _ = from_command_line(
        __doc__, "RUN_DIR", "GYM_BASE_PORT", "GYM_RAY_PORT", "GYM_BIND_HOST", "GYM_REPLICAS"
    )
    settings.RUN_DIR.mkdir(parents=True, exist_ok=True)
    processes.allow_many_files()
    end_on_signals()
    os.environ.update(settings.texts, **processes.environment(settings, "gym"))
    # Our rooms' names must hide no package from the servers, and proxies must not stand between them.
    for name in ("PYTHONPATH", *processes.PROXY_VARIABLES, *map(str.upper, processes.PROXY_VARIABLES)):
        os.environ.pop(name, None)
    return supervise(settings)


if __name__ == "__main__":
    run(main)
