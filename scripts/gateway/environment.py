"""NeMo Gym as the Gateway uses it: start a rollout, prove its state gone, know whether the servers live.

Guarantees: a rollout is started once and never again; a server that refuses connections or came
back with another epoch is reported lost within WATCH_EVERY_S and its time limit; `clean` answers
None only after the resource server itself said that the rollout's state is gone. No cookie is
kept from one rollout to the next.
"""

import asyncio
import math

import aiohttp
import orjson

from gateway.protocol import ROLLOUT_KEY
from gateway.trial import Fault, Outcome, Status, failed

WATCH_EVERY_S = 0.5
WATCH_TIMEOUT_S = 1.5
RETRY_EVERY_S = 0.25
EXCERPT = 300


class Environment:
    """The agent and the resource server behind their URLs. `on_lost(Outcome)`: their rollouts are gone."""

    def __init__(self, http, agent_url, resource_url, cleanup_timeout_s, on_lost):
        self.http, self.agent_url, self.resource_url = http, agent_url, resource_url
        self.cleanup_timeout_s, self.on_lost = cleanup_timeout_s, on_lost
        self.up = {"agent": False, "resource": False}
        self.open_sessions, self.epoch = None, None
        self.ready = asyncio.Event()

    # --- rollouts --------------------------------------------------------------------------

    async def run(self, rollout_id, run_request):
        """Have the agent run one rollout to its reward. Returns its Outcome; the caller cancels it in time."""
        url = f"{self.agent_url}/run"
        body = orjson.dumps(_with_id(run_request, rollout_id))
        try:
            async with self.http.post(url, data=body, headers={"Content-Type": "application/json"}) as answer:
                status, text = answer.status, await answer.read()
        except aiohttp.ClientError as error:
            return failed("agent_error", "agent_lost", f"POST {url}: {type(error).__name__}")
        if status != 200:
            shown = text[:EXCERPT].decode(errors="replace")
            return failed("agent_error", "run_failed", f"POST {url} answered {status}: {shown}")
        return graded(orjson.loads(text), url)

    async def clean(self, rollout_id, asked_first):
        """Prove that nothing of the rollout is left: None, or the Fault of the proof that failed.

        With `asked_first` the rollout is ended before the proof; after a verified rollout the
        resource server has done so itself.
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

    async def _ask(self, method, url, deadline):
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

    async def watch(self):
        """Look at both servers for ever."""
        while True:
            await asyncio.gather(self._look_at_agent(), self._look_at_resource())
            self.ready.set() if all(self.up.values()) else self.ready.clear()
            await asyncio.sleep(WATCH_EVERY_S)

    async def _look_at_agent(self):
        answer = await self._probe(f"{self.agent_url}/")
        self.up["agent"] = answer is not None and answer is not REFUSED

    async def _look_at_resource(self):
        url = f"{self.resource_url}/sessions"
        answer = await self._probe(url)
        known = isinstance(answer, dict) and {"open", "epoch"} <= answer.keys()
        if answer is REFUSED and self.up["resource"]:
            self.on_lost(failed("agent_error", "resource_server_lost", f"GET {url}: connection refused"))
        elif known and self.epoch not in (None, answer["epoch"]):
            self.on_lost(failed("agent_error", "resource_server_lost", f"{self.resource_url} was started anew"))
        self.epoch = answer["epoch"] if known else self.epoch
        self.open_sessions = answer["open"] if known else None
        self.up["resource"] = known

    async def _probe(self, url):
        """JSON of a GET; REFUSED where nobody listens; None for no answer in time or an odd one."""
        try:
            async with asyncio.timeout(WATCH_TIMEOUT_S), self.http.get(url) as answer:
                return await answer.json(content_type=None)
        except aiohttp.ClientConnectorError:
            return REFUSED
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None


REFUSED = object()


def _with_id(run_request, rollout_id):
    """The run request with the rollout id where the resource server and the model calls find it."""
    params = run_request["responses_create_params"]
    metadata = {**(params.get("metadata") or {}), ROLLOUT_KEY: rollout_id}
    return {**run_request, "rollout_id": rollout_id, "responses_create_params": {**params, "metadata": metadata}}


def graded(answer, url):
    """Outcome of a rollout that reached its verdict: completed, or truncated where the model hit a limit."""
    reward, response = answer.get("reward"), answer.get("response") or {}
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        return failed("agent_error", "no_reward", f"POST {url} answered without a finite reward")
    metrics = count_items(response.get("output") or [])
    if limit := response.get("incomplete_details"):
        fault = Fault("response_incomplete", str(limit.get("reason") or "unknown")[:100])
        return Outcome(Status.TRUNCATED, float(reward), metrics, fault)
    return Outcome(Status.COMPLETED, float(reward), metrics)


def count_items(output):
    """Counts over a rollout's items: {"tool_calls", "tool_outputs", "assistant_messages", "model_output_items"}."""
    kinds = [item.get("type") for item in output]
    outputs = kinds.count("function_call_output")
    return {
        "tool_calls": kinds.count("function_call"),
        "tool_outputs": outputs,
        "assistant_messages": sum(item.get("type") == "message" and item.get("role") == "assistant" for item in output),
        "model_output_items": len(kinds) - outputs,
    }
