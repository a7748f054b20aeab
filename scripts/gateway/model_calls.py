"""One model call of a trial: forwarded to the trainer's model API, its answer made fit for NeMo Gym.

Guarantees: a call that the endpoint may have received is not sent again, only an explicit 429,
500, 502, 503 or 504 is; no redirect is followed, no cookie kept, no proxy used; one deadline, the
trial's, lies over everything. A failure says its kind and the endpoint, never a header. It does
not decide what becomes of the trial: it raises.
"""

import asyncio
import time
from uuid import uuid4

import aiohttp
import orjson
from pydantic import ValidationError

from common.failure import printable
from gateway.payload import ROLLOUT_KEY

RETRIED = {429, 500, 502, 503, 504}
MAX_BACKOFF_S = 30
# Only of the connection: the trial's deadline lies over the rest.
TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=10)
EXCERPT = 200
# Room for a message and some reasoning beside each call.
ITEMS_PER_CALL = 8
MAX_TOKENS = 2**40


class EndpointFault(Exception):
    """The policy's endpoint did not do its part: `kind` for programs, the message for people."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


class TooManyCalls(Exception):
    """The policy asked for more tool calls in one answer than the bound."""


class ModelCalls:
    """Forwards model calls. `check_answer(dict)` raises ValidationError for what the agent would refuse."""

    def __init__(self, http, settings, check_answer):
        self.http, self.settings, self.check_answer = http, settings, check_answer

    async def forward(self, endpoint, call_params, body, deadline):
        """Send one call, `call_params` over its body, and return the answer (dict). `deadline`: loop time.

        Raises EndpointFault, TooManyCalls, or TimeoutError at the deadline.
        """
        request = orjson.dumps(outgoing(body, endpoint.model, call_params))
        async with asyncio.timeout_at(deadline):
            status, text = await self._insist(endpoint, request)
        answer = complete(self._parse(endpoint, status, text))
        self._check_amount(answer["output"])
        try:
            self.check_answer(answer)
            orjson.dumps(answer)  # reads deeper than it writes
        except orjson.JSONEncodeError as error:
            raise EndpointFault("schema", f"{endpoint.url} gave no Responses answer: {error}") from None
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"] if not str(part)[:1].isupper())
            raise EndpointFault("schema", f"{endpoint.url} gave no Responses answer: {where}: {first['msg']}") from None
        return answer

    def _check_amount(self, output):
        """Refuse an answer that would keep the agent and the verifier from everybody else."""
        allowed = self.settings.GATEWAY_MAX_CALLS_PER_ANSWER
        calls = sum(isinstance(item, dict) and item.get("type") == "function_call" for item in output)
        if calls > allowed:
            raise TooManyCalls(f"{calls} tool calls in one answer; {allowed} allowed")
        if len(output) > allowed * ITEMS_PER_CALL:
            raise TooManyCalls(f"{len(output)} items in one answer; {allowed * ITEMS_PER_CALL} allowed")

    async def _insist(self, endpoint, request):
        """Send until an answer is not one that asks for another try. Returns status and body."""
        for attempt in range(1, self.settings.GATEWAY_MODEL_TRIES + 1):
            status, text, retry_after = await self._send(endpoint, request)
            if status not in RETRIED or attempt == self.settings.GATEWAY_MODEL_TRIES:
                return status, text
            backoff = min(self.settings.GATEWAY_MODEL_BACKOFF_S * 2 ** (attempt - 1), MAX_BACKOFF_S)
            await asyncio.sleep(backoff if retry_after is None else retry_after)

    async def _send(self, endpoint, request):
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

    async def _read(self, endpoint, answer):
        limit, parts, size = self.settings.GATEWAY_MAX_ANSWER_BYTES, [], 0
        async for part in answer.content.iter_any():
            size += len(part)
            if size > limit:
                raise EndpointFault("too_large", f"{endpoint.url} answered with more than {limit} bytes")
            parts.append(part)
        return b"".join(parts)

    def _parse(self, endpoint, status, text):
        """The answer's JSON object; raises EndpointFault for whatever else came."""
        if status != 200:
            kind = "redirect" if 300 <= status < 400 else "status"
            raise EndpointFault(kind, f"{endpoint.url} answered {status}{_excerpt(endpoint, text)}")
        try:
            answer = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise EndpointFault(
                "not_json", f"{endpoint.url} answered 200 without JSON{_excerpt(endpoint, text)}"
            ) from None
        if not isinstance(answer, dict) or not isinstance(answer.get("output"), list):
            kind = "error_body" if isinstance(answer, dict) and answer.get("error") else "schema"
            raise EndpointFault(kind, f"{endpoint.url} answered 200 without an output list{_excerpt(endpoint, text)}")
        if answer.get("error") or answer.get("status") in ("failed", "cancelled"):
            raise EndpointFault("error_body", f"{endpoint.url} answered 200 with an error{_excerpt(endpoint, text)}")
        return answer


def _excerpt(endpoint, text):
    # Redacted before it is cut: a cut secret would no longer be recognised.
    shown = printable(" ".join(endpoint.redact(text.decode(errors="replace")).split())[:EXCERPT])
    return f": {shown}" if shown else ""


def _seconds(text):
    return float(text) if text and text.isdecimal() and len(text) < 7 else None


def outgoing(body, model, call_params):
    """The call as the endpoint gets it: the rollout id taken out, the row's own metadata kept."""
    sent = {**body, **call_params, "model": model}
    metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key != ROLLOUT_KEY}
    sent.pop("metadata", None)
    return sent | ({"metadata": metadata} if metadata else {})


def complete(answer):
    """Fill in what NeMo Gym's response model wants and the trainer's API may leave out."""
    answer.setdefault("id", f"resp_{uuid4().hex}")
    answer.setdefault("created_at", time.time())
    answer.setdefault("model", "model")
    answer.setdefault("object", "response")
    # Never read again by the agent, and large: the row's tools would travel with each answer.
    answer["tools"] = []
    answer["tool_choice"] = answer.get("tool_choice") or "auto"
    answer["parallel_tool_calls"] = bool(answer.get("parallel_tool_calls"))
    if isinstance(usage := answer.get("usage"), dict):
        _complete_usage(usage)
    answer["output"] = [_complete_item(item) for item in answer["output"]]
    return answer


def _complete_usage(usage):
    for name in ("input_tokens", "output_tokens"):
        usage[name] = _count(usage.get(name))
    usage["total_tokens"] = _count(usage.get("total_tokens")) or usage["input_tokens"] + usage["output_tokens"]
    for name, inner in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
        details = usage.get(name) if isinstance(usage.get(name), dict) else {}
        usage[name] = {inner: 0} | {key: value for key, value in details.items() if value is not None}


def _count(value):
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else 0


def _complete_item(item):
    if not isinstance(item, dict):
        return item
    kind = item.setdefault("type", "message")
    if kind in ("message", "reasoning") and not item.get("id"):
        item["id"] = f"{kind[:3]}_{uuid4().hex}"
    if kind == "function_call" and not item.get("call_id"):
        item["call_id"] = item.get("id") or f"call_{uuid4().hex}"
    if kind == "reasoning" and not item.get("summary"):
        parts = item.get("content") if isinstance(item.get("content"), list) else []
        texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
        item["summary"] = [{"type": "summary_text", "text": text} for text in texts]
    if kind == "message" and isinstance(item.get("content"), list):
        for part in item["content"]:
            if isinstance(part, dict) and part.get("type") == "output_text":
                part["annotations"] = part.get("annotations") or []
    return item
