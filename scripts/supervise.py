#!/usr/bin/env python3
"""Run the graph until a signal: private Ray, Gateway, simple agent, resource server, head server.

NeMo Gym's own launcher starts the servers, its start-up as it is. Its watch ends the whole graph
when one server dies; here a server that dies alone is started again, with backoff, while the
others go on. On SIGTERM or SIGINT the Gateway ends first, so that it can clean up after its
trials, then the rest. Started by gym_up.py, and in the image; it does not go to the background.

  scripts/supervise.py
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import local
from apply_patches import installed_tree
from settings import ROOT, from_command_line
from terminal import run

WATCH_EVERY_S = 0.5
BACKOFF_S = (0.5, 1, 2, 4, 8, 15, 30)
# A server that lived this long has recovered: its next restart waits the shortest time again.
STEADY_S = 60
# A server's event loop may be held by one long request; beyond HANG_S it is held for good.
LOOK_EVERY_S, LOOK_TIMEOUT_S, HANG_S = 5, 2, 30
# NeMo Gym's names of the servers, and ours of their ports.
PORT_NAMES = {
    "policy_model": "callbacks",
    "workplace_assistant": "resource",
    "workplace_assistant_simple_agent": "agent",
}
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
        self.process = local.spawn(*self._how)

    def watch(self, now):
        """Start the server again if it died and its wait is over; end it if it hangs."""
        if self.process.poll() is None:
            self._end_if_hung(now)
            return
        if self.restart_at is None:
            self.end(signal.SIGKILL, 0)  # what the dead shell may have left behind
            self.restarts = 0 if now - self.started > STEADY_S else self.restarts
            wait = BACKOFF_S[min(self.restarts, len(BACKOFF_S) - 1)]
            print(f"{self.name} ended with status {self.process.returncode}; starts again in {wait} s", flush=True)
            self.restart_at, self.restarts = now + wait, self.restarts + 1
        elif now >= self.restart_at:
            self.start()

    def _end_if_hung(self, now):
        """Kill a server that answered once and no longer does: a tool's pathological argument can hold it for ever."""
        if now < self.next_look:
            return
        self.next_look = now + LOOK_EVERY_S
        if local.get(self.url, LOOK_TIMEOUT_S)[0]:
            self.answered = now
        elif self.answered and now - self.answered > HANG_S:
            print(f"{self.name} has not answered at {self.url} for {HANG_S} s; it is ended", flush=True)
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
        self.work = settings.RUN_DIR / "work"

    def launch(self, command, directory, server_name="", **_):
        """Takes the place of NeMo Gym's `run_command`: same environment, a session and a log of its own."""
        environment = dict(os.environ, PYTHONPATH=f"{directory.absolute()}", PYTHONUNBUFFERED="1")
        log = self.settings.RUN_DIR / "logs" / f"{server_name}.log"
        url = self.settings.local_url(PORT_NAMES[server_name])
        self.servers[server_name] = Server(server_name, url, command, log, environment, self.work)
        return self.servers[server_name].process

    def start(self):
        self._lay_out()
        os.chdir(self.work)
        # Imported here: the package takes its working folder when it is imported.
        from nemo_gym.cli import env as launcher
        from nemo_gym.global_config import GlobalConfigDictParserConfig
        from omegaconf import OmegaConf

        launcher.run_command = self.launch
        config = GlobalConfigDictParserConfig(
            initial_global_config_dict=OmegaConf.create(self.config()),
            skip_load_from_cli=True,
            skip_load_from_dotenv=True,
        )
        launcher.RunHelper().start(config)

    def _lay_out(self):
        """Working folder in which NeMo Gym finds our Gateway and the one environment of all servers."""
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
        port = self.settings.port

        def at(name):
            return {"host": "127.0.0.1", "port": port(name)}

        return {
            "config_paths": [str(installed_tree() / local_resource() / "configs/workplace_assistant.yaml")],
            "workplace_assistant": {"resources_servers": {"workplace_assistant": at("resource")}},
            "workplace_assistant_simple_agent": {"responses_api_agents": {"simple_agent": at("agent")}},
            "policy_model": {"responses_api_models": {"gateway": {"entrypoint": "app.py", **at("callbacks")}}},
            "head_server": at("head"),
            "ray_head_node_address": self.ray_address,
            "skip_venv_if_present": True,
            "uv_venv_dir": str(self.work / "venvs"),
        }

    def watch(self):
        for server in self.servers.values():
            server.watch(time.monotonic())

    def end(self):
        first = [self.servers.pop("policy_model")] if "policy_model" in self.servers else []
        for server in [*first, *self.servers.values()]:
            server.end(signal.SIGINT, END_GRACE_S.get(server.name, END_GRACE_S["default"]))


def local_resource():
    return "resources_servers/workplace_assistant"


def supervise(settings):
    """Start everything, watch it until a signal comes, end it. Returns the exit status."""
    ray = local.PrivateRay(settings, "gym")
    graph = Graph(settings, ray.address)
    try:
        ray.launch()
        graph.start()
        end_on_signals()  # again: Ray's client sets handlers of its own
        print("graph started", flush=True)
        while ray.process.poll() is None:
            graph.watch()
            time.sleep(WATCH_EVERY_S)
        print("the private Ray ended; the graph needs a new start", flush=True)
        return 1
    finally:
        graph.end()
        with suppress(ProcessLookupError):
            os.killpg(ray.process.pid, signal.SIGKILL)


def end_on_signals():
    def end(*_):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def main():
    settings, _ = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT", "GYM_RAY_PORT", "GYM_BIND_HOST")
    settings.RUN_DIR.mkdir(parents=True, exist_ok=True)
    end_on_signals()
    os.environ.update(settings.texts, **local.environment(settings, "gym"))
    for name in local.PROXY_VARIABLES:
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    return supervise(settings)


if __name__ == "__main__":
    run(main)
