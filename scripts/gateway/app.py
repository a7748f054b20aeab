"""The Gateway as a server of NeMo Gym's graph: puts the parts together and runs them in one process.

It is the model server (`policy_model`) that the simple agent calls. NeMo Gym starts it in its folder with the graph's
configuration in NEMO_GYM_CONFIG_DICT; the supervisor's environment holds its variables and the path of our rooms. It
listens on loopback for callbacks and the trial protocol, and on GYM_BIND_HOST for the trial protocol alone. It joins
no Ray.
"""

import asyncio
import gc
import os
import secrets
import signal
from typing import Any

import aiohttp
import uvloop
import yaml
from nemo_gym.openai_utils import NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming

from common.settings import Settings, load
from gateway import routes
from gateway.environment import Environment, Pair
from gateway.http1 import serve
from gateway.model_calls import ModelCalls
from gateway.payload import VERSION, Registry
from gateway.store import Store, Unreadable
from gateway.trial_request import PROTOCOL
from gateway.trials import Trials
from servers.tree import fingerprint, installed_tree


class Gateway:
    """One process's Gateway, from its configuration to its end."""

    def __init__(self, settings: Settings, pairs: list[tuple[str, str]]) -> None:
        """`pairs`: [(agent's URL, resource server's URL)], at least one."""
        self.settings, self.pairs = settings, pairs
        self.epoch = secrets.token_hex(8)
        self.fingerprint = fingerprint(installed_tree())

    async def run(self) -> None:
        await self.startup()
        try:
            await self.serve()
        finally:
            await self.shutdown()

    async def startup(self) -> None:
        # Drop idle connections before their servers do (after 5 s, commonly): a call on a connection that its peer
        # has just closed looks like a broken call, which is never sent again.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)
        self.http = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None)
        )
        self.store = Store(self.settings.RUN_DIR / "trials.sqlite")
        model_calls = ModelCalls(self.http, self.settings, NeMoGymResponse.model_validate)
        self.trials = Trials(self.settings, self.store, model_calls)
        timeout_s, on_lost = self.settings.GATEWAY_CLEANUP_TIMEOUT_S, self.trials.settle_lost
        pairs = [Pair(self.http, agent, resource, timeout_s, on_lost) for agent, resource in self.pairs]
        self.environment = Environment(pairs)
        await self.trials.start(self.environment)
        self.watch = asyncio.create_task(self.environment.watch())
        # What exists now stays: exempt it from collections. What comes later is JSON, which is freed without them:
        # a collection for each 700 new objects, the default, would be lost time.
        gc.freeze()
        gc.set_threshold(100_000)

    async def serve(self) -> None:
        """Answer until a signal; then end the trials while their servers still live, and the listeners after them."""
        loop, signalled = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, signalled.set)
        listeners = [
            await serve(routes.callbacks(self.trials), ["127.0.0.1"], self.settings.port("callbacks")),
            await serve(self._public(), self._hosts(), self.settings.port("gateway")),
        ]
        await signalled.wait()
        await self.trials.stop()
        await asyncio.gather(*(listener.cleanup() for listener in listeners))

    def _public(self) -> routes.Application:
        registry = Registry(
            self.settings.NEMO_GYM_CALLBACK_ALLOWED_NETWORKS,
            set(self.settings.servers().values()),
            NeMoGymResponseCreateParamsNonStreaming.model_validate,
            self.store.salt,
        )
        return routes.public(self.settings, self.trials, registry, self.health)

    def _hosts(self) -> list[str]:
        """Where the trial protocol is spoken: the bind host, and loopback unless that covers it."""
        bind_host = self.settings.GYM_BIND_HOST
        return [bind_host] if bind_host in ("0.0.0.0", "::", "127.0.0.1") else [bind_host, "127.0.0.1"]

    def health(self) -> dict[str, Any]:
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

    async def shutdown(self) -> None:
        self.watch.cancel()
        await self.http.close()
        self.store.close()


def graph_urls(config: dict[str, Any]) -> list[tuple[str, str]]:
    """[(agent's URL, its resource server's URL)] of NeMo Gym's configuration."""

    def servers(kind: str) -> dict[str, Any]:
        kinds = {name: instance.get(kind) for name, instance in config.items() if isinstance(instance, dict)}
        return {name: next(iter(types.values())) for name, types in kinds.items() if isinstance(types, dict)}

    def url(server: dict[str, Any]) -> str:
        return f"http://{server['host']}:{server['port']}"

    agents, resources = servers("responses_api_agents"), servers("resources_servers")
    pairs = [(url(agent), url(resources[agent["resources_server"]["name"]])) for agent in agents.values()]
    if not pairs:
        raise SystemExit("error: NEMO_GYM_CONFIG_DICT has no agent; the Gateway is started by the supervisor")
    return pairs


def main() -> None:
    config = yaml.safe_load(os.environ.get("NEMO_GYM_CONFIG_DICT") or "{}")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        asyncio.run(Gateway(load(), graph_urls(config)).run(), loop_factory=uvloop.new_event_loop)
    except Unreadable as fault:
        raise SystemExit(f"Error: {fault}; what it holds would be lost: move it away, then start again") from None


if __name__ == "__main__":
    main()
