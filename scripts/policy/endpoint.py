"""An OpenAI-compatible endpoint as a policy: called over its Responses or chat API, answered as Responses.

Guarantees:
- the key goes into one header and into no message, even if the endpoint sends it back
- an answer is bounded in size and, from its first byte on, in time
- no redirect is followed, no cookie is kept, no netrc is read
- the environment's proxies are used, but not for this machine
- a fault of the endpoint is a ModelError that says whether another try may help, never the policy's answer
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from threading import Event
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, MaxRetryError, ReadTimeoutError

from common.net import LOOPBACK
from policy.model_api import Body, ModelError, answered, message

AGAIN = {429, 500, 502, 503, 504}
RATE_LIMITED = 429
CONNECT_TIMEOUT_S = 10
BACKOFF_S, BACKOFF_LIMIT_S, RETRY_AFTER_LIMIT_S = 0.5, 30, 600
EXCERPT = 200
# Twice a Gateway's default limit.
ANSWER_LIMIT_BYTES = 16 << 20
PART_BYTES = 1 << 16
# A shorter key may be a word of an answer: engines tell users to set "EMPTY".
SECRET_LENGTH = 16
# The words of vLLM, SGLang, llama.cpp and hosted endpoints for a history that no longer fits.
CONTEXT_FULL = re.compile(r"context[ _](length|size|window)|max_tokens must be at least 1", re.IGNORECASE)
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """The Responses API: a call of NeMo Gym's agent is sent as it is."""

    path = "/v1/responses"

    def request(self, body: Body) -> Body:
        return body

    def response(self, raw: Body) -> Body:
        """The answer, checked. Raises ValueError in words."""
        if not isinstance(raw.get("output"), list):
            raise ValueError("the answer has no list `output`")
        if not all(isinstance(item, dict) for item in raw["output"]):
            raise ValueError("the answer's `output` holds what is no object")
        cut = raw.get("incomplete_details") or {}
        if not isinstance(cut, dict) or not isinstance(cut.get("reason", ""), str):
            raise ValueError("the answer's `incomplete_details` tell no reason")
        return _with_usage(raw, raw.get("usage"), "input_tokens", "output_tokens")

    def finish_reason(self, raw: Body) -> Any:
        return None


class Chat:
    """The chat API, through the converter of NeMo Gym's model server for vLLM."""

    path = "/v1/chat/completions"

    def __init__(self):
        # Imported late: only this API needs it, and it takes seconds and 140 MB (Ray comes along).
        from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
        from nemo_gym.responses_converter import VLLMConverter

        self.params = NeMoGymResponseCreateParamsNonStreaming
        self.converter = VLLMConverter(return_token_id_information=False, uses_reasoning_parser=True)

    def request(self, body: Body) -> Body:
        """The body of a chat call. Raises pydantic's ValidationError, a ValueError."""
        params = self.converter.responses_to_chat_completion_create_params(self.params.model_validate(body))
        call = params.model_dump(exclude_unset=True, mode="json")
        call["messages"] = [self._outgoing(item) for item in call["messages"]]
        return call

    def _outgoing(self, item):
        """A message; an assistant's reasoning goes where endpoints with a reasoning parser expect it."""
        if not item.get("tool_calls"):
            item.pop("tool_calls", None)
        if item["role"] == "assistant" and isinstance(item.get("content"), str):
            thoughts, rest = self.converter._extract_reasoning_from_content(item["content"])
            if thoughts:
                item |= {"content": rest or None, "reasoning_content": "".join(thoughts)}
        return item

    def response(self, raw: Body) -> Body:
        """The Responses answer to a chat answer. Raises ValueError in words."""
        try:
            reply = {"role": "assistant"} | raw["choices"][0]["message"]
            items = self.converter.postprocess_assistant_message_dict(self._incoming(reply))
            output = [item.model_dump(exclude_none=True) for item in items]
            reason = INCOMPLETE.get(self.finish_reason(raw))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"the answer is no chat completion: {type(error).__name__}") from None
        answer = answered(output) | {"model": raw.get("model") or "model"}
        answer = _with_usage(answer, raw.get("usage"), "prompt_tokens", "completion_tokens")
        return answer | ({"status": "incomplete", "incomplete_details": {"reason": reason}} if reason else {})

    def _incoming(self, reply):
        if thoughts := reply.get("reasoning_content") or reply.get("reasoning"):
            reply["content"] = self.converter._wrap_reasoning_in_think_tags([thoughts]) + (reply.get("content") or "")
        for call in reply.get("tool_calls") or []:
            call["id"] = call.get("id") or f"call_{uuid4().hex}"
        return reply

    def finish_reason(self, raw: Body) -> Any:
        return raw["choices"][0].get("finish_reason")


WIRES = {"responses": Responses, "chat": Chat}


def _with_usage(answer, usage, read, written):
    """The answer with the token counts that the endpoint gave under these names, if they are counts."""
    usage = usage if isinstance(usage, dict) else {}
    named = {"input_tokens": usage.get(read), "output_tokens": usage.get(written)}
    counts = {name: count for name, count in named.items() if type(count) is int and count >= 0}
    rest = {key: value for key, value in answer.items() if key != "usage"}
    return rest | ({"usage": counts} if counts else {})


class _Http(requests.Session):
    def get_redirect_target(self, resp):
        # To learn where a redirect leads, requests would read its body, however large.
        return None


class Endpoint:
    """The endpoint at `url` (up to /v1, with or without it). One object serves many threads."""

    def __init__(
        self,
        url: str,
        model: str,
        key: str | None,
        timeout_s: float,
        wire: str = "responses",
        sampling: Body | None = None,
        extra: Body | None = None,
        connections: int = 10,
    ):
        """`sampling` replaces parameters of the Responses call, `extra` those of the request that is sent."""
        self.url, self.model, self.key, self.timeout_s = url.removesuffix("/v1"), model, key, timeout_s
        self.wire: Responses | Chat = WIRES[wire]()
        self.sampling, self.extra = sampling or {}, extra or {}
        self.http = _Http()
        self.http.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # A proxy would look for the endpoint on its own machine.
        self.http.trust_env = urlsplit(url).hostname not in LOOPBACK
        # Set even without a key; requests would read a netrc otherwise.
        self.http.auth = self._authorize
        for scheme in ("http://", "https://"):
            self.http.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=connections))

    def _authorize(self, request):
        if self.key:
            request.headers["Authorization"] = f"Bearer {self.key}"
        return request

    def answer(self, body: Body) -> Body:
        """The Responses answer to a Responses call, sent once. Raises ModelError."""
        return self.read(self.ask(body))

    def ask(self, body: Body) -> Body:
        """Send a Responses call once; returns the endpoint's raw answer. Raises ModelError."""
        try:
            # Some servers stream their answer by default.
            call = self.wire.request(body | self.sampling) | self.extra | {"model": self.model, "stream": False}
        except ValueError as error:
            reason = " ".join(str(error).split())[:EXCERPT]
            raise ModelError(400, f"the call does not fit the chat wire: {reason}", kind="wire") from None
        return self._exchange("POST", self.wire.path, call)

    def read(self, raw: Body) -> Body:
        """The Responses answer in a raw one. Raises ModelError."""
        try:
            return self.wire.response(raw)
        except ValueError as error:
            raise ModelError(502, f"{self.url}: {error}", kind="schema") from None

    def models(self) -> list[str]:
        """Names of the models that the endpoint lists; [] if it has no list."""
        try:
            listed = self._exchange("GET", "/v1/models").get("data")
        except ModelError:
            return []
        listed = listed if isinstance(listed, list) else []
        return [str(item["id"]) for item in listed if isinstance(item, dict) and item.get("id")]

    def _exchange(self, method, path, body=None):
        url, timeouts = self.url + path, (CONNECT_TIMEOUT_S, self.timeout_s)
        try:
            with self.http.request(
                method, url, json=body, timeout=timeouts, allow_redirects=False, stream=True
            ) as reply:
                data = self._body(url, reply)
        # A broken chunk may be a ValueError to the libraries below.
        except (OSError, HTTPError, ValueError) as error:
            raise ModelError(502, f"{url}: {type(error).__name__}", again=True, kind=_broken(error)) from None
        if reply.status_code != 200:
            return self._refused(url, reply, data.decode(errors="replace"))
        if self.key and len(self.key) >= SECRET_LENGTH:
            data = data.replace(self.key.encode(), b"***")
        try:
            raw = json.loads(data)
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict):
            raise ModelError(502, f"{url}: the answer is not a JSON object", kind="not_json")
        if raw.get("error"):
            excerpt = self._excerpt(data.decode(errors="replace"))
            raise ModelError(502, f"{url}: 200 with an error{excerpt}", kind="error_body")
        return raw

    def _body(self, url, reply):
        """The bytes of an answer. Raises ModelError if it is too large or too slow, OSError, HTTPError."""
        parts, size, end = [], 0, time.monotonic() + self.timeout_s
        while part := reply.raw.read1(PART_BYTES, decode_content=True):
            parts.append(part)
            size += len(part)
            if size > ANSWER_LIMIT_BYTES:
                raise ModelError(502, f"{url}: an answer of more than {ANSWER_LIMIT_BYTES} bytes", kind="too_large")
            if time.monotonic() > end:
                raise ModelError(502, f"{url}: the answer was not whole within {self.timeout_s:g} s", kind="timeout")
        return b"".join(parts)

    def _refused(self, url, reply, text):
        """The answer of NeMo Gym's own model server if the context is full; raises ModelError otherwise."""
        status = reply.status_code
        if status == 400 and CONTEXT_FULL.search(text):
            return self._out_of_context()
        kept = {name: reply.headers[name] for name in ("Retry-After",) if name in reply.headers}
        shown, kind = status if status >= 400 else 502, "redirect" if 300 <= status < 400 else "status"
        raise ModelError(shown, f"{url}: {status}{self._excerpt(text)}", kept, status in AGAIN, kind)

    def _out_of_context(self):
        if isinstance(self.wire, Chat):
            return {"choices": [{"finish_reason": "length", "message": {"content": ""}}]}
        return answered([message("")]) | {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}

    def _excerpt(self, text):
        text = text.replace(self.key, "***") if self.key else text
        excerpt = " ".join(text.split())[:EXCERPT]
        return f": {excerpt}" if excerpt else ""


def _broken(error):
    """The kind of the fault when an exchange ended in an exception of the libraries below."""
    # They wrap only a failed connection so; an answer that breaks off is raised as it is.
    if error.args and isinstance(error.args[0], MaxRetryError):
        return "unreachable"
    return "timeout" if isinstance(error, (requests.Timeout, ReadTimeoutError)) else "connection_broken"


def insist(ask: Callable[[], Body], tries: int, ended: Event) -> Body:
    """Call `ask()` until it answers: `tries` times if another try may help, without end for a rate limit.

    Waits as long as the endpoint asks, or longer each time, until `ended` is set. Raises ModelError.
    """
    attempt = faults = 0
    while True:
        try:
            return ask()
        except ModelError as error:
            fault = error
        attempt += 1
        faults += fault.status != RATE_LIMITED
        if not fault.again or faults >= tries:
            tried = f" ({attempt} tries)" if attempt > 1 else ""
            raise ModelError(fault.status, fault.message + tried, fault.headers, fault.again, fault.kind)
        wanted = retry_after(fault.headers.get("Retry-After"))
        backoff = min(BACKOFF_S * 2 ** min(attempt - 1, 10), BACKOFF_LIMIT_S) * random.uniform(0.5, 1)
        if ended.wait(backoff if wanted is None else wanted):
            raise ModelError(fault.status, f"{fault.message}; the time was up", kind=fault.kind)


def retry_after(text: str | None) -> float | None:
    """Seconds that a Retry-After header asks for (a number or a date), within bounds; None if unusable."""
    if not text:
        return None
    with suppress(ValueError):
        return max(0.0, min(float(text), RETRY_AFTER_LIMIT_S))
    with suppress(TypeError, ValueError):
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - time.time(), RETRY_AFTER_LIMIT_S))
    return None
