"""The Gateway as a server of NeMo Gym's graph: puts the parts together and runs them in one process.

It is the model server (`policy_model`) that the simple agent calls. NeMo Gym starts it in its
folder with the graph's configuration in NEMO_GYM_CONFIG_DICT; its variables, and the place of our
rooms, come from the supervisor's environment. It listens on loopback for callbacks and the trial protocol, and on
GYM_BIND_HOST for the trial protocol alone. It joins no Ray.
"""

import asyncio
import gc
import json
import os
import secrets
import signal

import aiohttp
import uvloop
import yaml
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

from common import settings as variables
from gateway import routes
from gateway.environment import Environment, Pair
from gateway.http1 import serve
from gateway.model_calls import ModelCalls
from gateway.payload import PROTOCOL, VERSION, Registry
from gateway.store import Store, Unreadable
from gateway.trials import Trials
from servers.tree import fingerprint, installed_tree


class Gateway:
    """One process's Gateway, from its configuration to its end."""

    def __init__(self, settings, pairs):
        """`pairs`: [(agent's URL, resource server's URL)], at least one."""
        self.settings, self.pairs = settings, pairs
        self.epoch = secrets.token_hex(8)
        self.fingerprint = fingerprint(installed_tree())

    async def run(self):
        await self.startup()
        try:
            await self.serve()
        finally:
            await self.shutdown()

    async def startup(self):
        # Shorter than servers keep idle connections (5 s is common): a call on one that its peer just
        # closed would look like a broken one, which is never sent again.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        self.http = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None)
        )
        self.store = Store(self.settings.RUN_DIR / "trials.sqlite")
        model_calls = ModelCalls(self.http, self.settings, NeMoGymResponse.model_validate)
        self.trials = Trials(self.settings, self.store, model_calls)
        timeout_s, on_lost = self.settings.GATEWAY_CLEANUP_TIMEOUT_S, self.trials.settle_lost
        self.environment = Environment([Pair(self.http, *urls, timeout_s, on_lost) for urls in self.pairs])
        await self.trials.start(self.environment)
        self.watch = asyncio.create_task(self.environment.watch())
        # What is there now stays; a collection need not look at it again. What comes is JSON, which goes
        # without a collection: one for each 700 objects of it, the default, is time lost.
        gc.freeze()
        gc.set_threshold(100_000)

    async def serve(self):
        """Answer until a signal; then end the trials while their servers still live, and the listeners after them."""
        loop, signalled = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signalled.set)
        listeners = [
            await serve(routes.callbacks(self.trials), ["127.0.0.1"], self.settings.port("callbacks")),
            await serve(self.public(), self.hosts(), self.settings.port("gateway")),
        ]
        await signalled.wait()
        await self.trials.stop()
        await asyncio.gather(*(each.cleanup() for each in listeners))

    def public(self):
        registry = Registry(
            self.settings.NEMO_GYM_CALLBACK_ALLOWED_NETWORKS,
            set(self.settings.servers().values()),
            NeMoGymResponseCreateParamsNonStreaming.model_validate,
            self.store.salt,
        )
        return routes.public(self.settings, self.trials, registry, self.health)

    def hosts(self):
        """Where the trial protocol is spoken: the bind host, and loopback unless that covers it."""
        bind_host = self.settings.GYM_BIND_HOST
        return [bind_host] if bind_host in ("0.0.0.0", "::", "127.0.0.1") else [bind_host, "127.0.0.1"]

    def health(self):
        trials, environment = self.trials, self.environment
        active = len(trials.live)
        return {
            "ready": environment.ready.is_set() and trials.janitor_healthy and not trials.stopping,
            "protocol_version": PROTOCOL,
            "gateway_version": VERSION,
            "service_epoch": self.epoch,
            "gym_commit": self.fingerprint["gym_commit"],
            "config_fingerprint": os.environ.get("WORKPLACE_FINGERPRINT", ""),
            "trials": active + trials.ended_count,
            "active_trials": active,
            "terminal_trials": trials.ended_count,
            "janitor_healthy": trials.janitor_healthy,
            "open_sessions": environment.open_sessions,
            "environment": self.fingerprint,
            "servers": environment.servers(),
        }

    async def shutdown(self):
        self.watch.cancel()
        await self.http.close()
        self.store.close()


def graph_urls(config):
    """[(agent's URL, its resource server's URL)] of NeMo Gym's configuration."""

    def servers(kind):
        named = {name: instance.get(kind) for name, instance in config.items() if isinstance(instance, dict)}
        return {name: next(iter(found.values())) for name, found in named.items() if isinstance(found, dict)}

    def url(server):
        return f"http://{server['host']}:{server['port']}"

    agents, resources = servers("responses_api_agents"), servers("resources_servers")
    pairs = [(url(agent), url(resources[agent["resources_server"]["name"]])) for agent in agents.values()]
    if not pairs:
        raise SystemExit("error: NEMO_GYM_CONFIG_DICT has no agent; the Gateway is started by the supervisor")
    return pairs


def main():
    config = yaml.safe_load(os.environ.get("NEMO_GYM_CONFIG_DICT") or json.dumps({}))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(Gateway(variables.load(), graph_urls(config)).run(), loop_factory=uvloop.new_event_loop)
    except Unreadable as fault:
        raise SystemExit(f"Error: {fault}; what it holds would be lost: move it away, then start again") from None


if __name__ == "__main__":
    main()
