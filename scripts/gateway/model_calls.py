"""One model call of a trial: forwarded to the trainer's model API, its answer made fit for NeMo Gym.

Guarantees:
- A call that the endpoint may have received is not sent again, unless it answered that another try may help.
- No redirect is followed, no cookie kept, no proxy used.
- One deadline, the trial's, covers everything.
- A failure names its kind and the endpoint, never a header.

It raises, and leaves it to its caller what becomes of the trial.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import orjson
from pydantic import ValidationError

from common.settings import Settings
from gateway.payload import ROLLOUT_KEY, Endpoint
from policy.answers import read_responses
from policy.replies import RATE_LIMITED, EndpointFault, Reply, is_first_call

MAX_BACKOFF_S = 30
# Limits the connecting alone: the trial's deadline covers the rest.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)
# Room for a message and some reasoning beside each call.
ITEMS_PER_CALL = 8


class TooManyCalls(Exception):
    """The policy asked for more tool calls in one answer than the bound."""


class ModelCalls:
    """Forwards model calls. `check_answer` raises ValidationError for what the agent would refuse."""

    def __init__(
        self, http: aiohttp.ClientSession, settings: Settings, check_answer: Callable[[dict[str, Any]], object]
    ) -> None:
        self.http, self.settings, self.check_answer = http, settings, check_answer

    async def forward(
        self, endpoint: Endpoint, call_params: dict[str, Any], body: dict[str, Any], deadline: float
    ) -> dict[str, Any]:
        """Send one call, `call_params` over its body, and return the answer. `deadline`: loop time.

        Raises EndpointFault, PolicyFault, TooManyCalls, or TimeoutError at the deadline.
        """
        request = orjson.dumps(outgoing(body, endpoint.model, call_params))
        async with asyncio.timeout_at(deadline):
            answer = await self._insist(endpoint, request, is_first_call(body), deadline)
        self._check_amount(answer["output"])
        try:
            self.check_answer(answer)
            orjson.dumps(answer)  # it parses deeper nesting than it can write
        except orjson.JSONEncodeError as error:
            raise EndpointFault("schema", f"{endpoint.url} gave no Responses answer: {error}") from None
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"] if not str(part)[:1].isupper())
            raise EndpointFault("schema", f"{endpoint.url} gave no Responses answer: {where}: {first['msg']}") from None
        return answer

    def _check_amount(self, output: list[Any]) -> None:
        """Refuse an answer that would keep the agent and the verifier busy at everybody else's cost."""
        allowed = self.settings.GATEWAY_MAX_CALLS_PER_ANSWER
        calls = sum(isinstance(item, dict) and item.get("type") == "function_call" for item in output)
        if calls > allowed:
            raise TooManyCalls(f"{calls} tool calls in one answer; {allowed} allowed")
        if len(output) > allowed * ITEMS_PER_CALL:
            raise TooManyCalls(f"{len(output)} items in one answer; {allowed * ITEMS_PER_CALL} allowed")

    async def _insist(self, endpoint: Endpoint, request: bytes, first_call: bool, deadline: float) -> dict[str, Any]:
        """Send until a reply does not ask for another try: the answer in it. Raises EndpointFault, PolicyFault."""
        attempt = 1
        while True:
            reply = await self._send(endpoint, request)
            try:
                return read_responses(reply, first_call, endpoint.redact)
            except EndpointFault as fault:
                if not fault.again or attempt == self.settings.GATEWAY_MODEL_TRIES:
                    raise
                backoff = min(self.settings.GATEWAY_MODEL_BACKOFF_S * 2 ** (attempt - 1), MAX_BACKOFF_S)
                wanted = fault.retry_after
                if wanted and asyncio.get_running_loop().time() + wanted > deadline:
                    text = f"{fault.message}; it asks to wait {wanted:.0f} s, longer than the trial has left"
                    raise EndpointFault("quota" if fault.status == RATE_LIMITED else fault.kind, text) from None
            await asyncio.sleep(backoff if wanted is None else wanted)
            attempt += 1

    async def _send(self, endpoint: Endpoint, request: bytes) -> Reply:
        headers = {"Content-Type": "application/json", "Accept": "application/json", **endpoint.headers}
        try:
            async with self.http.post(
                endpoint.url, data=request, headers=headers, allow_redirects=False, timeout=TIMEOUT
            ) as answer:
                return Reply(endpoint.url, answer.status, answer.headers, await self._read(endpoint, answer))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise EndpointFault("unreachable", f"{endpoint.url} could not be connected to") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = f"{endpoint.url} broke off: {type(error).__name__}; the call is not sent again"
            raise EndpointFault("connection_broken", reason) from None

    async def _read(self, endpoint: Endpoint, answer: aiohttp.ClientResponse) -> bytes:
        limit, parts, size = self.settings.GATEWAY_MAX_ANSWER_BYTES, [], 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > limit:
                raise EndpointFault("too_large", f"{endpoint.url} answered with more than {limit} bytes")
            parts.append(part)
        return b"".join(parts)


def outgoing(body: dict[str, Any], model: str, call_params: dict[str, Any]) -> dict[str, Any]:
    """The call as the endpoint gets it: the rollout id removed, the row's own metadata kept."""
    sent = {**body, **call_params, "model": model}
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key != ROLLOUT_KEY}
    sent.pop("metadata", None)
    return sent | ({"metadata": metadata} if metadata else {})
