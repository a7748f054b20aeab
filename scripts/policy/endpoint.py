"""An OpenAI-compatible endpoint as a policy: called over its Responses or chat API, answered as Responses.

Guarantees:
- the key goes into one header and into no message, even if the endpoint sends it back
- an answer is bounded in size and, from its first byte on, in time
- no redirect is followed, no cookie is kept, no netrc is read
- the environment's proxies are used, but not for this machine
- a fault of the endpoint is an EndpointFault that says whether another try may help, never the policy's answer
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from http.cookiejar import DefaultCookiePolicy
from threading import Event
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, MaxRetryError, ReadTimeoutError

from common.net import LOOPBACK
from policy.answers import read_chat, read_responses
from policy.model_api import Body, ModelError
from policy.replies import EXCERPT, RATE_LIMITED, EndpointFault, PolicyFault, Reply, is_first_call, object_in

CONNECT_TIMEOUT_S = 10
# What to do about an exchange that never began, by a word of the library's reason.
CURES = {
    "getaddrinfo": "; is the host's name right, and known here?",
    "NameResolution": "; is the host's name right, and known here?",
    "CERTIFICATE_VERIFY": "; REQUESTS_CA_BUNDLE names the certificates to trust",
    "WRONG_VERSION": "; it speaks no TLS: is it http:// instead of https://?",
    "RemoteDisconnected": "; it hung up without an answer: is it https:// instead of http://, or overloaded?",
    "SOCKS": "; a SOCKS proxy is set (ALL_PROXY), which needs: pip install 'requests[socks]'",
    "Connection refused": "; is it up, and is that its port?",
}
BACKOFF_S, BACKOFF_LIMIT_S = 0.5, 30
# Twice a Gateway's default limit.
ANSWER_LIMIT_BYTES = 16 << 20
PART_BYTES = 1 << 16
# A shorter key may be a word of an answer: engines tell users to set "EMPTY".
SECRET_LENGTH = 16
# What the model API answers for an endpoint that gave up: the Gateway asks no second time.
GAVE_UP = 424


class Responses:
    """The Responses API: a call of NeMo Gym's agent is sent as it is."""

    path = "/v1/responses"

    def request(self, body: Body) -> Body:
        return body

    def read(self, reply: Reply, first_call: bool, redact: Callable[[str], str]) -> Body:
        return read_responses(reply, first_call, redact)


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

    def read(self, reply: Reply, first_call: bool, redact: Callable[[str], str]) -> Body:
        return read_chat(reply, first_call, self._items, redact)

    def _items(self, message: Body) -> list[Body]:
        """A clean assistant message as Responses items."""
        if thoughts := message.pop("reasoning_content", None):
            message["content"] = self.converter._wrap_reasoning_in_think_tags([thoughts]) + message["content"]
        items = self.converter.postprocess_assistant_message_dict(message)
        return [item.model_dump(exclude_none=True) for item in items]


WIRES = {"responses": Responses, "chat": Chat}


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
        """The Responses answer to a Responses call, sent once. Raises EndpointFault, PolicyFault."""
        return self.read(self.ask(body), is_first_call(body))

    def ask(self, body: Body) -> Reply:
        """Send a Responses call once; returns the endpoint's reply as it came. Raises EndpointFault."""
        try:
            # Some servers stream their answer by default.
            call = self.wire.request(body | self.sampling) | self.extra | {"model": self.model, "stream": False}
        except ValueError as error:
            reason = " ".join(str(error).split())[:EXCERPT]
            raise EndpointFault("wire", f"the call does not fit the chat wire: {reason}", status=400) from None
        return self._exchange("POST", self.wire.path, call)

    def read(self, reply: Reply, first_call: bool = True) -> Body:
        """The Responses answer in a reply. Raises EndpointFault, PolicyFault."""
        return self.wire.read(reply, first_call, self._redact)

    def models(self) -> list[str]:
        """Names of the models that the endpoint lists; [] if it has no list."""
        try:
            listed = object_in(self._exchange("GET", "/v1/models"), True, self._redact).get("data")
        except EndpointFault:
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
            raise EndpointFault(_broken(error), f"{url}: {_in_words(error)}", again=True) from None
        if self.key and len(self.key) >= SECRET_LENGTH:
            data = data.replace(self.key.encode(), b"***")
        return Reply(url, reply.status_code, reply.headers, data)

    def _body(self, url, reply):
        """The bytes of an answer. Raises EndpointFault if it is too large or too slow, OSError, HTTPError."""
        parts, size, end = [], 0, time.monotonic() + self.timeout_s
        while part := reply.raw.read1(PART_BYTES, decode_content=True):
            parts.append(part)
            size += len(part)
            if size > ANSWER_LIMIT_BYTES:
                raise EndpointFault("too_large", f"{url}: an answer of more than {ANSWER_LIMIT_BYTES} bytes")
            if time.monotonic() > end:
                raise EndpointFault("timeout", f"{url}: the answer was not whole within {self.timeout_s:g} s")
        return b"".join(parts)

    def _redact(self, text: str) -> str:
        return text.replace(self.key, "***") if self.key else text


def _broken(error):
    """The kind of the fault when an exchange ended in an exception of the libraries below."""
    # They wrap only a failed connection so; an answer that breaks off is raised as it is.
    if error.args and isinstance(error.args[0], MaxRetryError):
        return "unreachable"
    return "timeout" if isinstance(error, (requests.Timeout, ReadTimeoutError)) else "connection_broken"


def _in_words(error: BaseException) -> str:
    """What broke an exchange: the innermost reason, without the addresses that libraries put around it."""
    while (inner := getattr(error, "reason", None) or error.__cause__ or error.__context__) and inner is not error:
        if not isinstance(inner, BaseException):
            break
        error = inner
    text = " ".join(str(getattr(error, "strerror", None) or error).split())
    for word, cure in CURES.items():
        if word in text or word in type(error).__name__:
            return f"{text[:EXCERPT]}{cure}"
    return f"{type(error).__name__}: {text[:EXCERPT]}" if text else type(error).__name__


def insist[Answer](
    ask: Callable[[], Answer],
    tries: int,
    ended: Event,
    seconds: float = math.inf,
    limited: Callable[[bool], None] = lambda begins: None,
) -> Answer:
    """Call `ask()` until it answers: `tries` times if another try may help, without end for a rate limit.

    Waits as long as the endpoint asks, or longer each time, until `ended` is set; an endpoint that asks for more
    than `seconds` in all is given up at once. `limited` is told when a wait for a rate limit begins and ends.
    Raises EndpointFault, PolicyFault.
    """
    attempt = faults = 0
    end = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except EndpointFault as error:
            fault = error
        attempt += 1
        is_limit = fault.status == RATE_LIMITED
        faults += not is_limit
        if not fault.again or faults >= tries:
            tried = f" ({attempt} tries)" if attempt > 1 else ""
            raise EndpointFault(fault.kind, fault.message + tried, status=fault.status)
        backoff = min(BACKOFF_S * 2 ** min(attempt - 1, 10), BACKOFF_LIMIT_S) * random.uniform(0.5, 1)
        pause = backoff if fault.retry_after is None else fault.retry_after
        if fault.retry_after and time.monotonic() + pause > end:
            raise EndpointFault(
                "quota" if is_limit else fault.kind,
                f"{fault.message}; it asks to wait {pause:.0f} s, longer than the sample has left",
                status=fault.status,
            )
        if is_limit:
            limited(True)
        is_over = ended.wait(pause)
        if is_limit:
            limited(False)
        if is_over:
            raise EndpointFault(fault.kind, f"{fault.message}; the time was up", status=fault.status)


def as_policy(
    endpoint: Endpoint,
    body: Body,
    tries: int,
    ended: Event,
    seconds: float = math.inf,
    limited: Callable[[bool], None] = lambda begins: None,
) -> Body:
    """The endpoint's answer for a model API, asked for as `insist` does. Raises ModelError."""
    try:
        return insist(lambda: endpoint.answer(body), tries, ended, seconds, limited)
    except (EndpointFault, PolicyFault) as fault:
        raise in_answer(fault, GAVE_UP) from None


def in_answer(fault: EndpointFault | PolicyFault, status: int | None = None) -> ModelError:
    """The model API's answer to a fault: it tells the Gateway whose fault it is, and (without `status`) what came."""
    if isinstance(fault, PolicyFault):
        return ModelError(400, fault.message, {"x-should-retry": "false"}, code=fault.reason)
    wait = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:.0f}"}
    return ModelError(status or fault.status, fault.message, wait, fault.kind)
