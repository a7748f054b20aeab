"""Load for a Gateway: trials with a scripted policy, N of them, C at a time, in one asyncio process.

`Bench` serves the model API (a search, a reply, a closing message; stateless, it reads the turn
off the history) and, for a Gateway that runs alone, an agent that does nothing but call the
model, and a resource server that is always clean. `load` gives each trial's latency. It counts
faults; it does not judge rewards beyond that. It spends little: it shares the cores with what it loads.
"""

import asyncio
import json
import secrets
import time
from contextlib import asynccontextmanager
from functools import cache

import aiohttp
import orjson
from aiohttp import web

from gateway.trial_request import create_payload
from inputs import rows
from policy import model_api
from servers.verifier import REPLY, SEARCH, example_row

ENDED = ("completed", "truncated", "aborted", "failed")
CALLS = [json.dumps(arguments) for _, arguments in (SEARCH, REPLY)]
NAMES = [name for name, _ in (SEARCH, REPLY)]
WAIT_S = 20


def scripted(body):
    """The policy: what turn it is stands in the history."""
    turn = sum(item.get("type") == "function_call_output" for item in body["input"])
    if turn < len(CALLS):
        return model_api.answered([model_api.function_call(NAMES[turn], CALLS[turn])])
    return model_api.answered([model_api.message("I have replied.")])


def answer_of(content, status=200):
    return web.Response(body=orjson.dumps(content), status=status, content_type="application/json")


class Servers:
    """The model API of the load and, at `callbacks_url`, an agent and a resource server that do nothing."""

    def __init__(self, callbacks_url=""):
        self.callbacks_url, self.created, self.http = callbacks_url, asyncio.Event(), None
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

    async def model(self, request):
        return answer_of(scripted(await request.json(loads=orjson.loads)))

    async def live(self, request):
        return answer_of({})

    async def sessions(self, request):
        return answer_of({"open": 0, "epoch": "bench"})

    async def clean(self, request):
        return answer_of({"clean": True})

    async def trial(self, request):
        """A Gateway that only notes when it was asked."""
        self.created.set()
        return answer_of({"status": "completed", "reward": 1.0, "metrics": {}, "error": None}, 202)

    async def run(self, request):
        """Three model calls with a growing history, and a verdict."""
        row = await request.json(loads=orjson.loads)
        params, output = row["responses_create_params"], []
        for turn in range(3):
            body = {**params, "input": [*params["input"], *output]}
            async with self.http.post(f"{self.callbacks_url}/v1/responses", data=orjson.dumps(body)) as answer:
                output += (await answer.json(loads=orjson.loads))["output"]
            if turn < 2:
                call_id = output[-1]["call_id"]
                output.append({"type": "function_call_output", "call_id": call_id, "output": "x" * 2000})
        return answer_of({**row, "response": {"output": output}, "reward": 1.0})


@asynccontextmanager
async def serving(servers):
    """Serve on a free port of loopback; gives its URL."""
    runner = web.AppRunner(servers.app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as servers.http:
        try:
            yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        finally:
            await runner.cleanup()


@cache
def example_task():
    return rows.to_relax(example_row())


def payload(settings, model_url):
    task = example_task()
    session = {
        "SESSION_IO_DIR": secrets.token_hex(8),
        "BASE_URL": f"{model_url}{model_api.BASE_PATH}",
        "SESSION_ID": secrets.token_hex(16),
        "ROLLOUT_MODE": "eval",
        "GROUP_ID": "bench",
    }
    made = create_payload(settings, session, {"messages": task["input"], "metadata": task["metadata"]})
    return made | {"deadline_s": 1800, "lease_s": 1800}


async def trial(http, url, body):
    """Seconds from creation to the end, and the terminal snapshot."""
    started = time.monotonic()
    async with http.post(f"{url}/v1/trials", data=orjson.dumps(body)) as answer:
        snapshot = await answer.json()
    while snapshot.get("status") in ("queued", "running"):
        async with http.get(f"{url}/v1/trials/{body['request_id']}", params={"wait_s": WAIT_S}) as answer:
            snapshot = await answer.json()
    return time.monotonic() - started, snapshot


async def load(settings, url, trials, concurrency, callbacks_url="", on_trial=lambda: None):
    """Run `trials` trials: {"seconds": wall time, "latencies": [s], "failed": count without reward 1}."""
    connector = aiohttp.TCPConnector(limit=0)
    left = iter(range(trials))
    latencies, failed = [], 0
    servers = Servers(callbacks_url)
    async with serving(servers) as model_url, aiohttp.ClientSession(connector=connector) as http:

        async def client():
            nonlocal failed
            for _ in left:
                seconds, snapshot = await trial(http, url, payload(settings, model_url))
                latencies.append(seconds)
                failed += snapshot.get("reward") != 1.0
                on_trial()

        started = time.monotonic()
        await asyncio.gather(*(client() for _ in range(min(concurrency, trials))))
        return {"seconds": time.monotonic() - started, "latencies": latencies, "failed": failed}
