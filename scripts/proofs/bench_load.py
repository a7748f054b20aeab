"""Load for a Gateway: N trials with a scripted policy, C at a time, in one asyncio process.

Guarantees:
- the scripted policy (a search, a reply, a closing message) is stateless: the history tells the turn
- a Gateway that runs alone gets an agent that only calls the model, and a resource server that is always clean
- trials without reward 1 are counted; nothing else is judged
- it spends little, because it shares the cores with what it loads
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypedDict

import aiohttp
import orjson
from aiohttp import web

from common.settings import Settings
from gateway import launch
from gateway.trial_request import create_payload
from policy import model_api
from servers.verifier import REPLY, SEARCH, example_row

CALLS = [json.dumps(arguments) for _, arguments in (SEARCH, REPLY)]
NAMES = [name for name, _ in (SEARCH, REPLY)]
WAIT_S = 20


class Round(TypedDict):
    """What a load gives: wall time, each trial's latency in seconds, and how many had no reward 1."""

    seconds: float
    latencies: list[float]
    failed: int


def scripted(body: dict[str, Any]) -> dict[str, Any]:
    """The policy's answer to a model call."""
    turn = sum(item.get("type") == "function_call_output" for item in body["input"])
    if turn < len(CALLS):
        return model_api.answered([model_api.function_call(NAMES[turn], CALLS[turn])])
    return model_api.answered([model_api.message("I have replied.")])


def answer_of(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


class Servers:
    """The load's model API, and an agent and a resource server that do nothing, for the Gateway at `callbacks_url`."""

    http: aiohttp.ClientSession

    def __init__(self, callbacks_url: str = ""):
        self.callbacks_url, self.created = callbacks_url, asyncio.Event()
        self.app = web.Application(client_max_size=64 << 20)
        self.app.add_routes(
            [
                web.post(f"{model_api.BASE_PATH}/v1/responses", self.model),
                web.post("/run", self.run),
                web.get("/", self.live),
                web.get("/sessions", self.sessions),
                web.route("*", "/cleanup/{id}", self.clean),
                web.post("/v1/trials", self.trial),
            ]
        )

    async def model(self, request: web.Request) -> web.Response:
        return answer_of(scripted(await request.json(loads=orjson.loads)))

    async def live(self, request: web.Request) -> web.Response:
        return answer_of({})

    async def sessions(self, request: web.Request) -> web.Response:
        return answer_of({"open": 0, "epoch": "bench"})

    async def clean(self, request: web.Request) -> web.Response:
        return answer_of({"clean": True})

    async def trial(self, request: web.Request) -> web.Response:
        """A Gateway that only notes that it was asked."""
        self.created.set()
        return answer_of({"status": "completed", "reward": 1.0, "metrics": {}, "error": None}, 202)

    async def run(self, request: web.Request) -> web.Response:
        """Three model calls with a growing history, and a verdict."""
        row = await request.json(loads=orjson.loads)
        params, output = row["responses_create_params"], list[dict[str, Any]]()
        for turn in range(3):
            body = {**params, "input": [*params["input"], *output]}
            async with self.http.post(f"{self.callbacks_url}/v1/responses", data=orjson.dumps(body)) as answer:
                output += (await answer.json(loads=orjson.loads))["output"]
            if turn < 2:
                call_id = output[-1]["call_id"]
                output.append({"type": "function_call_output", "call_id": call_id, "output": "x" * 2000})
        return answer_of({**row, "response": {"output": output}, "reward": 1.0})


@asynccontextmanager
async def serving(servers: Servers) -> AsyncIterator[str]:
    """Serve on a free port of loopback, whose URL is given."""
    runner = web.AppRunner(servers.app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as servers.http:
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


@cache
def example_task() -> dict[str, Any]:
    return launch.task_of(example_row())


def payload(settings: Settings, model_url: str) -> dict[str, Any]:
    base_url, session_id = f"{model_url}{model_api.BASE_PATH}", secrets.token_hex(16)
    session = launch.session(secrets.token_hex(8), base_url, session_id, "bench", "eval")
    return create_payload(settings, session, example_task()) | {"deadline_s": 1800, "lease_s": 1800}


async def trial(http: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Seconds from creation to the end, and the terminal snapshot."""
    started = time.monotonic()
    async with http.post(f"{url}/v1/trials", data=orjson.dumps(body)) as answer:
        snapshot = await answer.json()
    while snapshot.get("status") in ("queued", "running"):
        async with http.get(f"{url}/v1/trials/{body['request_id']}", params={"wait_s": WAIT_S}) as answer:
            snapshot = await answer.json()
    return time.monotonic() - started, snapshot


async def load(
    settings: Settings,
    url: str,
    trials: int,
    concurrency: int,
    callbacks_url: str = "",
    on_trial: Callable[[], None] = lambda: None,
) -> Round:
    """Run `trials` trials through the Gateway at `url`."""
    connector = aiohttp.TCPConnector(limit=0)
    left = iter(range(trials))
    latencies, failed = [], 0
    servers = Servers(callbacks_url)
    async with serving(servers) as model_url, aiohttp.ClientSession(connector=connector) as http:

        async def client() -> None:
            nonlocal failed
            for _ in left:
                seconds, snapshot = await trial(http, url, payload(settings, model_url))
                latencies.append(seconds)
                failed += snapshot.get("reward") != 1.0
                on_trial()

        started = time.monotonic()
        await asyncio.gather(*(client() for _ in range(min(concurrency, trials))))
        return {"seconds": time.monotonic() - started, "latencies": latencies, "failed": failed}
