"""Pairs of agent and resource server: which one a trial gets, what they tell, and what an agent is sent."""

import asyncio
import json
from contextlib import ExitStack

import aiohttp
import pytest

from gateway.environment import Environment, Pair, for_agent
from gateway.payload import ROLLOUT_KEY
from support.scripted_environment import ScriptedEnvironment

pytestmark = pytest.mark.anyio


@pytest.fixture
async def graph(monkeypatch):
    """Three pairs with scripted servers, watched: (Environment, [ScriptedEnvironment])."""
    monkeypatch.setattr("gateway.environment.WATCH_EVERY_S", 0.02)
    with ExitStack() as stack:
        servers = [stack.enter_context(ScriptedEnvironment()) for _ in range(3)]
        urls = [f"http://127.0.0.1:{server.port}" for server in servers]
        async with aiohttp.ClientSession() as http:
            environment = Environment([Pair(http, url, url, 1, lambda *_: None) for url in urls])
            watch = asyncio.create_task(environment.watch())
            await until(lambda: all(pair.ready.is_set() for pair in environment.pairs))
            yield environment, servers
            watch.cancel()


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.01)


async def break_down(pair, server):
    server.sessions = lambda: (500, {})
    await until(lambda: not pair.ready.is_set())


async def test_the_ready_pair_with_the_fewest_trials_is_chosen_and_without_one_the_first_that_is_ready(graph):
    environment, servers = graph
    first, second, third = environment.pairs
    first.trials, second.trials, third.trials = 2, 1, 3
    assert await environment.choose() is second
    await break_down(second, servers[1])
    assert await environment.choose() is first and environment.ready.is_set()
    await break_down(first, servers[0])
    assert await environment.choose() is third
    await break_down(third, servers[2])
    assert not environment.ready.is_set()
    choice = asyncio.create_task(environment.choose())
    await asyncio.sleep(0.05)
    assert not choice.done()
    servers[1].sessions = lambda: (200, {"open": 0, "epoch": "first"})
    assert await asyncio.wait_for(choice, 10) is second


async def test_open_sessions_are_the_sum_if_every_server_tells(graph):
    environment, servers = graph
    for number, server in enumerate(servers):
        server.sessions = lambda number=number: (200, {"open": number + 1, "epoch": "first"})
    await until(lambda: environment.open_sessions == 6)
    servers[1].sessions = lambda: (200, {"epoch": "first"})
    await until(lambda: environment.open_sessions is None)
    shown = environment.servers()
    assert list(shown) == ["agent", "resource", "agent_2", "resource_2", "agent_3", "resource_3"]
    assert [server["up"] for server in shown.values()] == [True, True, True, False, True, True]


async def test_the_agent_gets_the_rollout_id_and_of_a_function_its_name_alone():
    function = {
        "type": "function",
        "name": "a",
        "description": "long",
        "parameters": {"type": "object"},
        "strict": True,
    }
    other = {"type": "custom", "name": "b", "description": "whole"}
    row = {"id": 7, "responses_create_params": {"input": "x", "metadata": {"mine": "kept"}, "tools": [function, other]}}
    before = json.dumps(row)
    sent = for_agent(row, "r")
    params = sent["responses_create_params"]
    assert params["tools"] == [{"type": "function", "name": "a", "parameters": None, "strict": None}, other]
    assert params["metadata"] == {"mine": "kept", ROLLOUT_KEY: "r"} and sent["rollout_id"] == "r"
    assert json.dumps(row) == before
    without = for_agent({"responses_create_params": {"input": "x"}}, "r")["responses_create_params"]
    assert without == {"input": "x", "metadata": {ROLLOUT_KEY: "r"}}
