"""Pairs of agent and resource server: how many, at which ports, how they are bound, which one a trial gets."""

import asyncio
import json
from pathlib import Path

import pytest

from common import settings as variables
from gateway.app import graph_urls
from gateway.environment import Environment, Pair, for_agent
from gateway.payload import ROLLOUT_KEY
from servers import graph, supervise


def load(**changes):
    return variables.load(changes, environment={}, dotenv=Path("/nonexistent/.env"))


@pytest.mark.parametrize(
    ("cores", "quota", "expected"),
    [
        (1, "max 100000", 1),
        (2, "max 100000", 1),
        (8, "max 100000", 7),
        (256, "max 100000", variables.MOST_REPLICAS),
        (64, "400000 100000", 3),
        (64, "50000 100000", 1),
        (4, None, 3),
    ],
)
def test_by_default_one_core_is_left_to_all_the_rest(monkeypatch, cores, quota, expected):
    def read_text(path):
        if quota is None:
            raise FileNotFoundError(path)
        return quota

    given = load()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(variables, "Path", lambda path: type("File", (), {"read_text": lambda self: read_text(path)})())
    assert given.replicas == expected


def test_the_most_pairs_have_ports_of_their_own_below_rays():
    settings = load(GYM_REPLICAS=str(variables.MOST_REPLICAS))
    ports = settings.servers()
    assert len(ports) == len(set(ports.values())) == 5 + 2 * (variables.MOST_REPLICAS - 1)
    assert (ports["agent_2"], ports["resource_2"], max(ports.values())) == (29005, 29006, 29038)
    assert variables.declared()["GYM_REPLICAS"].bounds == f"0..{variables.MOST_REPLICAS}"
    assert load(GYM_REPLICAS="1").servers() == {name: 29000 + n for name, n in variables.PORT_OFFSETS.items()}


def test_each_agent_is_bound_to_its_own_resource_server_and_all_to_the_gateway():
    settings = load(GYM_REPLICAS="3")
    config = supervise.Servers(settings, "127.0.0.1:1").config()
    urls = [
        tuple(settings.local_url(f"{kind}{suffix}") for kind in ("agent", "resource")) for suffix in ("", "_2", "_3")
    ]
    assert graph_urls(config) == urls
    agents = [
        config[f"workplace_assistant_simple_agent{s}"]["responses_api_agents"]["simple_agent"] for s in ("", "_3")
    ]
    assert all(agent["model_server"]["name"] == "policy_model" and agent["max_steps"] == 6 for agent in agents)
    assert {agent["host"] for agent in agents} == {"127.0.0.1"}


def test_another_number_of_pairs_is_another_graph_and_the_same_one_is_not():
    def fingerprint(number):
        return graph.graph_fingerprint(load(GYM_REPLICAS=number))

    assert fingerprint("1") != fingerprint("2")
    assert fingerprint("0") == fingerprint(str(load().replicas))


def made(count):
    pairs = [Pair(None, f"http://a{n}", f"http://r{n}", 1, lambda *_: None) for n in range(count)]
    environment = Environment(pairs)
    for pair in pairs:
        mark(pair, True)
    return environment, pairs


def mark(pair, up):
    for server in pair.up:
        pair._mark(server, up)


def test_the_ready_pair_with_the_fewest_trials_is_chosen():
    async def main():
        environment, (first, second, third) = made(3)
        first.trials, second.trials, third.trials = 2, 1, 3
        assert await environment.choose() is second
        second._mark("agent", False)
        assert await environment.choose() is first and environment.ready.is_set()
        mark(first, False)
        assert await environment.choose() is third

    asyncio.run(main())


def test_without_a_ready_pair_the_choice_waits_for_the_first_that_is():
    async def main():
        environment, pairs = made(2)
        for pair in pairs:
            pair._mark("resource", False)
        assert not environment.ready.is_set()
        choice = asyncio.create_task(environment.choose())
        await asyncio.sleep(0.02)
        assert not choice.done()
        pairs[1]._mark("resource", True)
        assert await choice is pairs[1]

    asyncio.run(main())


def test_open_sessions_are_the_sum_where_every_server_tells():
    environment, (first, second) = made(2)
    first.open_sessions, second.open_sessions = 2, 3
    assert environment.open_sessions == 5
    second.open_sessions = None
    assert environment.open_sessions is None
    assert list(environment.servers()) == ["agent", "resource", "agent_2", "resource_2"]


def test_the_agent_gets_the_rollout_id_and_of_a_function_its_name_alone():
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
    params = for_agent(row, "r")["responses_create_params"]
    assert params["tools"] == [{"type": "function", "name": "a", "parameters": None, "strict": None}, other]
    assert params["metadata"] == {"mine": "kept", ROLLOUT_KEY: "r"} and for_agent(row, "r")["rollout_id"] == "r"
    assert json.dumps(row) == before
    without = for_agent({"responses_create_params": {"input": "x"}}, "r")["responses_create_params"]
    assert without == {"input": "x", "metadata": {ROLLOUT_KEY: "r"}}
