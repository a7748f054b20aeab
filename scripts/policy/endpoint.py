"""An OpenAI-compatible endpoint as a policy: asked over its Responses or its chat wire, answered as Responses.

Guarantees: the key goes into one header and into no message, also where the endpoint sends it back;
an answer is bounded in size and, from its first byte on, in time; no redirect is followed, no
cookie kept; the environment's proxies are used for what lies outside this machine, and no netrc.
What the endpoint did wrong is a ModelError that says so and whether another try may help: it is
never taken for an answer of the policy. The chat wire is NeMo Gym's own converter's work; importing it takes
some seconds and 140 MB (it brings Ray and more along, and starts none of it), so that is
done only for that wire.
"""

import json
import random
import re
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from urllib.parse import urlsplit
from uuid import uuid4

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, MaxRetryError, ReadTimeoutError

from policy.model_api import ModelError, answered, message

AGAIN = {429, 500, 502, 503, 504}
RATE_LIMITED = 429
CONNECT_TIMEOUT_S = 10
BACKOFF_S, BACKOFF_LIMIT_S, RETRY_AFTER_LIMIT_S = 0.5, 30, 600
EXCERPT = 200
# Twice what a Gateway takes by default.
ANSWER_LIMIT_BYTES = 16 << 20
PART_BYTES = 1 << 16
# Shorter keys may be words of an answer: "EMPTY" is one that engines tell users to set.
SECRET_LENGTH = 16
# How vLLM, SGLang, llama.cpp and hosted endpoints say that the history no longer fits.
CONTEXT_FULL = re.compile(r"context[ _](length|size|window)|max_tokens must be at least 1", re.IGNORECASE)
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """The Responses wire: what NeMo Gym's agent sends goes out as it is."""

    path = "/v1/responses"

    def request(self, body):
        return dict(body)

    def response(self, raw):
        """The answer, checked. Raises ValueError in words."""
        if not isinstance(raw.get("output"), list):
            raise ValueError("the answer has no list `output`")
        if not all(isinstance(item, dict) for item in raw["output"]):
            raise ValueError("the answer's `output` holds what is no object")
        cut = raw.get("incomplete_details") or {}
        if not isinstance(cut, dict) or not isinstance(cut.get("reason", ""), str):
            raise ValueError("the answer's `incomplete_details` tell no reason")
        return _with_usage(raw, raw.get("usage"), "input_tokens", "output_tokens")

    def finish_reason(self, raw):
        return None


class Chat:
    """The chat wire, through the converter of NeMo Gym's model server for vLLM."""

    path = "/v1/chat/completions"

    def __init__(self):
        from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
        from nemo_gym.responses_converter import VLLMConverter

        self.params = NeMoGymResponseCreateParamsNonStreaming
        self.converter = VLLMConverter(return_token_id_information=False, uses_reasoning_parser=True)

    def request(self, body):
        """The body of a chat call. Raises pydantic's ValidationError, a ValueError."""
        made = self.converter.responses_to_chat_completion_create_params(self.params.model_validate(body))
        sent = made.model_dump(exclude_unset=True, mode="json")
        sent["messages"] = [self._outgoing(item) for item in sent["messages"]]
        return sent

    def _outgoing(self, item):
        """An assistant's message with its thoughts where endpoints with a reasoning parser take them."""
        if not item.get("tool_calls"):
            item.pop("tool_calls", None)
        if item["role"] == "assistant" and isinstance(item.get("content"), str):
            thoughts, rest = self.converter._extract_reasoning_from_content(item["content"])
            if thoughts:
                item |= {"content": rest or None, "reasoning_content": "".join(thoughts)}
        return item

    def response(self, raw):
        """The Responses answer to a chat answer. Raises ValueError in words."""
        try:
            said = {"role": "assistant"} | raw["choices"][0]["message"]
            items = self.converter.postprocess_assistant_message_dict(self._incoming(said))
            output = [item.model_dump(exclude_none=True) for item in items]
            reason = INCOMPLETE.get(self.finish_reason(raw))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"the answer is no chat completion: {type(error).__name__}") from None
        answer = answered(output) | {"model": raw.get("model") or "model"}
        answer = _with_usage(answer, raw.get("usage"), "prompt_tokens", "completion_tokens")
        return answer | ({"status": "incomplete", "incomplete_details": {"reason": reason}} if reason else {})

    def _incoming(self, said):
        thought = said.get("reasoning_content") or said.get("reasoning")
        if thought:
            said["content"] = self.converter._wrap_reasoning_in_think_tags([thought]) + (said.get("content") or "")
        for call in said.get("tool_calls") or []:
            call["id"] = call.get("id") or f"call_{uuid4().hex}"
        return said

    def finish_reason(self, raw):
        return raw["choices"][0].get("finish_reason")


WIRES = {"responses": Responses, "chat": Chat}


def _with_usage(answer, usage, read, written):
    """The answer with the token counts that the endpoint gave under these names; what is no count is left out."""
    told = usage if isinstance(usage, dict) else {}
    named = {"input_tokens": told.get(read), "output_tokens": told.get(written)}
    counts = {name: count for name, count in named.items() if type(count) is int and count >= 0}
    rest = {key: value for key, value in answer.items() if key != "usage"}
    return rest | ({"usage": counts} if counts else {})


class Endpoint:
    """The endpoint at `url` (up to /v1, with or without it). One object serves many threads."""

    def __init__(self, url, model, key, timeout_s, wire="responses", sampling=None, extra=None, connections=10):
        """`sampling` replaces parameters of the Responses call, `extra` goes into what is sent, over all else."""
        self.url, self.model, self.key, self.timeout_s = url.removesuffix("/v1"), model, key, timeout_s
        self.wire, self.sampling, self.extra = WIRES[wire](), sampling or {}, extra or {}
        self.http = requests.Session()
        self.http.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        # The environment's proxies lead outside; an endpoint on this machine is not out there.
        self.http.trust_env = urlsplit(url).hostname not in ("127.0.0.1", "localhost", "::1")
        # A library that looks where a redirect leads reads its body first, however large.
        self.http.get_redirect_target = lambda reply: None
        # Said even without a key, since a netrc would be asked otherwise.
        self.http.auth = self._authorize
        for scheme in ("http://", "https://"):
            self.http.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=connections))

    def _authorize(self, request):
        if self.key:
            request.headers["Authorization"] = f"Bearer {self.key}"
        return request

    def answer(self, body):
        """The Responses answer to a Responses call, asked once. Raises ModelError."""
        return self.read(self.ask(body))

    def ask(self, body):
        """Send a Responses call once over the wire: the raw answer, a dict. Raises ModelError."""
        try:
            # Some servers stream their answer unless they are told otherwise.
            sent = self.wire.request(body | self.sampling) | self.extra | {"model": self.model, "stream": False}
        except ValueError as error:
            said = " ".join(str(error).split())[:EXCERPT]
            raise ModelError(400, f"the call does not fit the chat wire: {said}", kind="wire") from None
        return self._exchange("POST", self.wire.path, sent)

    def read(self, raw):
        """The Responses answer in a raw one. Raises ModelError."""
        try:
            return self.wire.response(raw)
        except ValueError as error:
            raise ModelError(502, f"{self.url}: {error}", kind="schema") from None

    def models(self):
        """Names of the models that the endpoint lists; [] where it has no list."""
        try:
            listed = self._exchange("GET", "/v1/models").get("data")
        except ModelError:
            return []
        listed = listed if isinstance(listed, list) else []
        return [str(item["id"]) for item in listed if isinstance(item, dict) and item.get("id")]

    def _exchange(self, method, path, body=None):
        url = self.url + path
        kept = {"timeout": (CONNECT_TIMEOUT_S, self.timeout_s), "allow_redirects": False, "stream": True}
        try:
            with self.http.request(method, url, json=body, **kept) as reply:
                data = self._body(url, reply)
        # What a broken chunk is to the libraries below differs: a ValueError, too.
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
            said = self._excerpt(data.decode(errors="replace"))
            raise ModelError(502, f"{url}: 200 with an error{said}", kind="error_body")
        return raw

    def _body(self, url, reply):
        """The bytes of an answer. Raises ModelError where it is too large or comes too slowly, OSError, HTTPError."""
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
        """An answer in place of a full context, as NeMo Gym's own model server gives it; else raises ModelError."""
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
        said = " ".join(text.split())[:EXCERPT]
        return f": {said}" if said else ""


def _broken(error):
    """The kind of a fault for an exchange that ended in an exception of the libraries below."""
    # They try to connect once, which is as often as they may: an answer that breaks off is raised as it is.
    if error.args and isinstance(error.args[0], MaxRetryError):
        return "unreachable"
    return "timeout" if isinstance(error, (requests.Timeout, ReadTimeoutError)) else "connection_broken"


def insist(ask, tries, ended):
    """Call `ask()` until it answers; a fault that another try may cure is tried `tries` times, a rate limit for ever.

    Waits as long as the endpoint says, else longer each time; `ended` (an Event) cuts it short.
    Raises ModelError.
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
        told = retry_after(fault.headers.get("Retry-After"))
        pause = min(BACKOFF_S * 2 ** min(attempt - 1, 10), BACKOFF_LIMIT_S) * random.uniform(0.5, 1)
        if ended.wait(pause if told is None else told):
            raise ModelError(fault.status, f"{fault.message}; the time was up", kind=fault.kind)


def retry_after(text):
    """Seconds that a Retry-After header asks for (a number or a date), within bounds; None without a usable one."""
    with suppress(TypeError, ValueError):
        return max(0.0, min(float(text), RETRY_AFTER_LIMIT_S))
    with suppress(TypeError, ValueError):
        return max(0.0, min(parsedate_to_datetime(text).timestamp() - time.time(), RETRY_AFTER_LIMIT_S))
    return None
