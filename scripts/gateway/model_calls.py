"""One model call of a trial: forwarded to the trainer's model API, its answer made fit for NeMo Gym.

Guarantees:
- A call that the endpoint may have received is not sent again, unless it answered 429, 500, 502, 503 or 504.
- No redirect is followed, no cookie kept, no proxy used.
- One deadline, the trial's, covers everything.
- A failure names its kind and the endpoint, never a header.

It raises, and leaves it to its caller what becomes of the trial.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import aiohttp
import orjson
from pydantic import ValidationError

from common.failure import printable
from common.settings import Settings
from gateway.payload import ROLLOUT_KEY, Endpoint

RETRIED = {429, 500, 502, 503, 504}
MAX_BACKOFF_S = 30
# Limits the connecting alone: the trial's deadline covers the rest.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)
EXCERPT = 200
# Room for a message and some reasoning beside each call.
ITEMS_PER_CALL = 8
MAX_TOKENS = 2**40


class EndpointFault(Exception):
    """The policy's endpoint did not do its part: `kind` for programs, the message for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


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

        Raises EndpointFault, TooManyCalls, or TimeoutError at the deadline.
        """
        request = orjson.dumps(outgoing(body, endpoint.model, call_params))
        async with asyncio.timeout_at(deadline):
            status, text = await self._insist(endpoint, request)
        answer = complete(self._parse(endpoint, status, text))
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

    async def _insist(self, endpoint: Endpoint, request: bytes) -> tuple[int, bytes]:
        """Send until an answer does not ask for another try. Returns status and body."""
        attempt = 1
        while True:
            status, text, retry_after = await self._send(endpoint, request)
            if status not in RETRIED or attempt == self.settings.GATEWAY_MODEL_TRIES:
                return status, text
            backoff = min(self.settings.GATEWAY_MODEL_BACKOFF_S * 2 ** (attempt - 1), MAX_BACKOFF_S)
            await asyncio.sleep(backoff if retry_after is None else retry_after)
            attempt += 1

    async def _send(self, endpoint: Endpoint, request: bytes) -> tuple[int, bytes, float | None]:
        headers = {"Content-Type": "application/json", "Accept": "application/json", **endpoint.headers}
        try:
            async with self.http.post(
                endpoint.url, data=request, headers=headers, allow_redirects=False, timeout=TIMEOUT
            ) as answer:
                text = await self._read(endpoint, answer)
                return answer.status, text, _seconds(answer.headers.get("Retry-After"))
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

    def _parse(self, endpoint: Endpoint, status: int, text: bytes) -> dict[str, Any]:
        """The answer's JSON object; raises EndpointFault for anything else."""

        def fault(kind: str, what: str) -> EndpointFault:
            return EndpointFault(kind, f"{endpoint.url} answered {status}{what}{_excerpt(endpoint, text)}")

        if status != 200:
            raise fault("redirect" if 300 <= status < 400 else "status", "")
        try:
            answer = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise fault("not_json", " without JSON") from None
        if not isinstance(answer, dict) or not isinstance(answer.get("output"), list):
            kind = "error_body" if isinstance(answer, dict) and answer.get("error") else "schema"
            raise fault(kind, " without an output list")
        if answer.get("error") or answer.get("status") in ("failed", "cancelled"):
            raise fault("error_body", " with an error")
        return answer


def _excerpt(endpoint: Endpoint, text: bytes) -> str:
    # Redact before cutting: a cut secret would no longer be recognised.
    shown = printable(" ".join(endpoint.redact(text.decode(errors="replace")).split())[:EXCERPT])
    return f": {shown}" if shown else ""


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isdecimal() and len(text) < 7 else None


def outgoing(body: dict[str, Any], model: str, call_params: dict[str, Any]) -> dict[str, Any]:
    """The call as the endpoint gets it: the rollout id removed, the row's own metadata kept."""
    sent = {**body, **call_params, "model": model}
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key != ROLLOUT_KEY}
    sent.pop("metadata", None)
    return sent | ({"metadata": metadata} if metadata else {})


def complete(answer: dict[str, Any]) -> dict[str, Any]:
    """Fill in what NeMo Gym's response model needs and the trainer's API may leave out."""
    answer.setdefault("id", f"resp_{uuid4().hex}")
    answer.setdefault("created_at", time.time())
    answer.setdefault("model", "model")
    answer.setdefault("object", "response")
    # The agent never reads them, and they are large: the row's tools would come back with each answer.
    answer["tools"] = []
    answer["tool_choice"] = answer.get("tool_choice") or "auto"
    answer["parallel_tool_calls"] = bool(answer.get("parallel_tool_calls"))
    if isinstance(usage := answer.get("usage"), dict):
        _complete_usage(usage)
    answer["output"] = [_complete_item(item) for item in answer["output"]]
    return answer


def _complete_usage(usage: dict[str, Any]) -> None:
    for name in ("input_tokens", "output_tokens"):
        usage[name] = _count(usage.get(name))
    usage["total_tokens"] = _count(usage.get("total_tokens")) or usage["input_tokens"] + usage["output_tokens"]
    for name, inner in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
        details = usage.get(name)
        kept = details.items() if isinstance(details, dict) else ()
        usage[name] = {inner: 0} | {key: value for key, value in kept if value is not None}


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def _complete_item(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    kind = item.setdefault("type", "message")
    if kind in ("message", "reasoning") and not item.get("id"):
        item["id"] = f"{kind[:3]}_{uuid4().hex}"
    if kind == "function_call" and not item.get("call_id"):
        item["call_id"] = item.get("id") or f"call_{uuid4().hex}"
    if kind == "reasoning" and not item.get("summary"):
        content = item.get("content")
        parts = content if isinstance(content, list) else []
        texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        item["summary"] = [{"type": "summary_text", "text": text} for text in texts]
    if kind == "message" and isinstance(item.get("content"), list):
        for part in item["content"]:
            if isinstance(part, dict) and part.get("type") == "output_text":
                part["annotations"] = part.get("annotations") or []
    return item
