"""NeMo Gym as the Gateway uses it: start a rollout, prove its state gone, know whether the servers live.

The graph has one or more pairs of agent and resource server. `choose` gives a rollout the ready pair with the fewest;
all that concerns the rollout goes to that pair from then on.

Guarantees:
- A rollout is started once and never again.
- A server that refuses connections or came back with another epoch is reported lost, with its pair, within
  WATCH_EVERY_S and its time limit.
- A pair with a server that is down is not chosen.
- `clean` answers None only after the resource server itself said that the rollout's state is gone.
- No cookie is kept from one rollout to the next.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import orjson

from common.failure import printable
from gateway.payload import ROLLOUT_KEY
from gateway.trial import Fault, Outcome, Status, failed

WATCH_EVERY_S = 0.5
WATCH_TIMEOUT_S = 1.5
RETRY_EVERY_S = 0.25
EXCERPT = 300
# How many rollouts of a pair may be before their first model call. Its servers are one thread each: a crowd that
# begins at once would block the agent, its health check included, until all of it has begun.
STARTS = 8


class Unreached(Exception):
    """The agent could not be connected to: the rollout has not begun, and another pair may run it."""


class Environment:
    """The pairs of the graph. `ready` is set while at least one is."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs, self.ready = pairs, asyncio.Event()
        for pair in pairs:
            pair.on_change = self._note

    def _note(self) -> None:
        # In the same step as the pair's own flag: whenever `ready` is set, `choose` finds a pair.
        self.ready.set() if any(pair.ready.is_set() for pair in self.pairs) else self.ready.clear()

    async def choose(self) -> Pair:
        """The ready pair with the fewest trials, once there is one."""
        while not (ready := [pair for pair in self.pairs if pair.ready.is_set()]):
            await self.ready.wait()
        return min(ready, key=lambda pair: pair.trials)

    async def watch(self) -> None:
        """Look at all servers for ever."""
        await asyncio.gather(*(pair.watch() for pair in self.pairs))

    @property
    def open_sessions(self) -> int | None:
        """Sessions open in all resource servers; None if any does not tell."""
        counts = [pair.open_sessions for pair in self.pairs if pair.open_sessions is not None]
        return sum(counts) if len(counts) == len(self.pairs) else None

    def servers(self) -> dict[str, dict[str, Any]]:
        """{name: {"url", "up"}}: agent and resource, agent_2 and resource_2, …"""
        shown = {}
        for nth, pair in enumerate(self.pairs, 1):
            suffix = f"_{nth}" if nth > 1 else ""
            shown[f"agent{suffix}"] = {"url": pair.agent_url, "up": pair.up["agent"]}
            shown[f"resource{suffix}"] = {"url": pair.resource_url, "up": pair.up["resource"]}
        return shown


class Pair:
    """An agent and its resource server behind their URLs. `on_lost` is called when their rollouts are gone.

    `trials` is the caller's count of its trials here, `starts` bounds those that begin; `ready` is set while both
    servers are up.
    """

    def __init__(
        self, http: aiohttp.ClientSession, agent_url: str, resource_url: str,
        cleanup_timeout_s: float, on_lost: Callable[[Pair, Outcome], None],
    ) -> None:  # fmt: skip
        self.http, self.agent_url, self.resource_url = http, agent_url, resource_url
        self.cleanup_timeout_s, self.on_lost = cleanup_timeout_s, on_lost
        self.on_change: Callable[[], None] = lambda: None
        self.up = {"agent": False, "resource": False}
        self.open_sessions: int | None = None
        self.epoch: Any = None
        self.trials, self.ready, self.starts = 0, asyncio.Event(), asyncio.Semaphore(STARTS)

    # --- rollouts --------------------------------------------------------------------------

    async def run(self, rollout_id: str, run_request: dict[str, Any]) -> Outcome:
        """Have the agent run one rollout to its reward. It has no time limit of its own: the caller cancels it.

        Raises Unreached, and the pair is down until it is looked at again.
        """
        url = f"{self.agent_url}/run"
        body = orjson.dumps(for_agent(run_request, rollout_id))
        try:
            async with self.http.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                status, text = answer.status, await answer.read()
        except aiohttp.ClientConnectorError:
            self._mark("agent", False)
            raise Unreached from None
        except aiohttp.ClientError as error:
            return failed("agent_error", "agent_lost", f"POST {url}: {type(error).__name__}")
        if status != 200:
            shown = printable(text[:EXCERPT].decode(errors="replace"))
            return failed("agent_error", "run_failed", f"POST {url} answered {status}: {shown}")
        return graded(orjson.loads(text), url)

    async def clean(self, rollout_id: str, asked_first: bool) -> Fault | None:
        """Prove that nothing of the rollout is left: None, or the Fault of the proof that failed.

        With `asked_first` the rollout is ended before the proof. After a verdict the resource server has already
        ended it.
        """
        url = f"{self.resource_url}/cleanup/{rollout_id}"
        steps = [("POST", "cleanup_failed"), ("GET", "cleanup_probe_failed")]
        deadline = asyncio.get_running_loop().time() + self.cleanup_timeout_s
        for method, code in steps if asked_first else [steps[1], *steps]:
            clean, reason = await self._ask(method, url, deadline)
            if clean is None:
                return Fault(code, None, f"{method} {url} {reason}")
            if clean and method == "GET":
                return None
        return Fault("cleanup_unverified", None, f"GET {url} says that state is left")

    async def _ask(self, method: str, url: str, deadline: float) -> tuple[bool | None, str]:
        """Ask until the resource server answers: (whether it says clean, ""), or (None, why not) at the deadline."""
        reason = "gave no answer in time"
        try:
            async with asyncio.timeout_at(deadline):
                while True:
                    try:
                        async with self.http.request(method, url) as answer:
                            if answer.status == 200 and isinstance(body := await answer.json(), dict):
                                return body.get("clean") is True, ""
                            reason = f"answered {answer.status}" if answer.status != 200 else "answered no object"
                    except (aiohttp.ClientError, OSError, ValueError) as error:
                        reason = f"failed: {type(error).__name__}"
                    await asyncio.sleep(RETRY_EVERY_S)
        except TimeoutError:
            return None, reason

    # --- health ----------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at both servers for ever."""
        while True:
            await asyncio.gather(self._look_at_agent(), self._look_at_resource())
            await asyncio.sleep(WATCH_EVERY_S)

    def _mark(self, server: str, up: bool) -> None:
        self.up[server] = up
        self.ready.set() if all(self.up.values()) else self.ready.clear()
        self.on_change()

    async def _look_at_agent(self) -> None:
        answer = await self._probe(f"{self.agent_url}/")
        self._mark("agent", answer is not None and answer is not REFUSED)

    async def _look_at_resource(self) -> None:
        url = f"{self.resource_url}/sessions"
        answer = await self._probe(url)
        state = answer if isinstance(answer, dict) and {"open", "epoch"} <= answer.keys() else None
        if answer is REFUSED and self.up["resource"]:
            self.on_lost(self, failed("agent_error", "resource_server_lost", f"GET {url}: connection refused"))
        elif state and self.epoch not in (None, state["epoch"]):
            self.on_lost(self, failed("agent_error", "resource_server_lost", f"{self.resource_url} was started anew"))
        self.epoch = state["epoch"] if state else self.epoch
        self.open_sessions = state["open"] if state else None
        self._mark("resource", state is not None)

    async def _probe(self, url: str) -> Any:
        """JSON of a GET; REFUSED if nobody listens; None for no answer in time, or one that is no JSON."""
        try:
            async with asyncio.timeout(WATCH_TIMEOUT_S), self.http.get(url) as answer:
                return await answer.json(content_type=None)
        except aiohttp.ClientConnectorError:
            return REFUSED
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None


REFUSED = object()


def for_agent(run_request: dict[str, Any], rollout_id: str) -> dict[str, Any]:
    """The run request with the rollout id where the resource server and the model calls find it, and tools by name.

    Only the model needs a tool's full schema; ModelCalls adds it back. It is most of a row, and would be parsed and
    written in each of the nine messages between the servers.
    """
    params = dict(run_request["responses_create_params"])
    params["metadata"] = {**(params.get("metadata") or {}), ROLLOUT_KEY: rollout_id}
    if params.get("tools"):
        params["tools"] = [_name_only(tool) for tool in params["tools"]]
    return {**run_request, "rollout_id": rollout_id, "responses_create_params": params}


def _name_only(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        return tool
    return {"type": "function", "name": tool["name"], "parameters": None, "strict": None}


def graded(answer: dict[str, Any], url: str) -> Outcome:
    """Outcome of a rollout that reached its verdict: completed, or truncated if the model hit a limit."""
    reward, response = answer.get("reward"), answer.get("response") or {}
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        return failed("agent_error", "no_reward", f"POST {url} answered without a finite reward")
    output = response.get("output") or []
    metrics = count_items(output)
    if limit := response.get("incomplete_details"):
        fault = Fault("response_incomplete", str(limit.get("reason") or "unknown")[:100])
        return Outcome(Status.TRUNCATED, float(reward), metrics, fault, output)
    return Outcome(Status.COMPLETED, float(reward), metrics, output=output)


def count_items(output: list[dict[str, Any]]) -> dict[str, int]:
    """Counts over a rollout's items: {"tool_calls", "tool_outputs", "assistant_messages", "model_output_items"}."""
    kinds = [item.get("type") for item in output]
    outputs = kinds.count("function_call_output")
    return {
        "tool_calls": kinds.count("function_call"),
        "tool_outputs": outputs,
        "assistant_messages": sum(item.get("type") == "message" and item.get("role") == "assistant" for item in output),
        "model_output_items": len(kinds) - outputs,
    }
