"""The HTTP surface: routes, who may use them, how large a body may be, and errors in one shape.

Two applications: `public` speaks the trial protocol on the network, `callbacks` takes the agent's model calls on
loopback.

Guarantees: every error of either is `{"error": {"code", "message", "field"?}}`; under /v1 nobody is answered without
the GATEWAY_TOKEN, if there is one.
"""

import asyncio
import hmac
import ipaddress
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from common.settings import Settings, read_token
from gateway import page
from gateway.http1 import json_answer, refusal
from gateway.openapi import document
from gateway.payload import ROLLOUT_KEY, ApiError, Registry, parse_json, unfit
from gateway.trials import Trials

Handler = Callable[..., Awaitable[web.Response]]

MAX_WAIT_S = 60
BODY_TIMEOUT_S = 30
# A model call carries the rollout's whole history; only the agent sends one.
CALLBACK_BODY_BYTES = 64 << 20


class Application:
    """Answers requests by `routes` (method, path, handler), and every error in the one shape.

    A path may hold {request_id}, which its handler gets after the request. Under /v1 a request must be `trusted`.
    """

    def __init__(
        self, *routes: tuple[str, str, Handler], trusted: Callable[[web.BaseRequest], bool] = lambda request: True
    ) -> None:
        self.routes, self._trusted = routes, trusted
        self._handlers: dict[re.Pattern[str], dict[str, Handler]] = {}
        for method, path, handler in routes:
            pattern = re.compile(re.escape(path).replace(r"\{request_id\}", "([!-.0-~]+)"))
            self._handlers.setdefault(pattern, {})[method] = handler

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        try:
            if request.path.startswith("/v1") and not self._trusted(request):
                raise ApiError(401, "token_missing", "Authorization: Bearer <GATEWAY_TOKEN> is needed")
            handler, request_ids = self._find(request)
            return await handler(request, *request_ids)
        except ApiError as error:
            return refusal(error)
        except Exception as error:
            traceback.print_exception(error)
            return refusal(ApiError(500, "internal_error", "a fault of the Gateway; its log tells more"))

    def _find(self, request: web.BaseRequest) -> tuple[Handler, Iterable[str]]:
        """(handler, [the path's request_id]). Raises ApiError 404 or 405."""
        for pattern, handlers in self._handlers.items():
            # Match the raw path: an encoded slash is part of an id and ends no segment.
            if match := pattern.fullmatch(request.rel_url.raw_path):
                method = "GET" if request.method == "HEAD" else request.method
                if method not in handlers:
                    allowed = ", ".join(handlers).replace("GET", "GET, HEAD")
                    raise ApiError(405, "method_not_allowed", f"allowed: {allowed}", headers={"Allow": allowed})
                return handlers[method], map(unquote, match.groups())
        raise ApiError(404, "route_unknown", "no such route; /openapi.json lists them")


def bearer_of(token: str | None) -> Callable[[web.BaseRequest], bool]:
    """A function that tells whether a request carries the token; without a token every request is trusted."""
    expected = f"Bearer {token}".encode()

    def trusted(request: web.BaseRequest) -> bool:
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        return not token or hmac.compare_digest(given, expected)

    return trusted


async def read_body(request: web.BaseRequest, limit: int) -> bytes:
    """The request's body. Raises ApiError: 413 beyond `limit` bytes, 408 if it is slow, 400 if it breaks off."""
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    if request.content.is_eof() and request.content.total_bytes <= limit and not request.content.exception():
        return request.content.read_nowait()  # most bodies come with the head, and need no time limit
    parts, size = [], 0
    try:
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.content.iter_any():
                parts.append(part)
                if (size := size + len(part)) > limit:
                    raise too_large(limit)
    except TimeoutError:
        raise ApiError(408, "body_too_slow", f"the body took more than {BODY_TIMEOUT_S} s") from None
    except (web.RequestPayloadError, ConnectionError):
        parts.clear()  # the exception would hold them until the next garbage collection
        raise ApiError(400, "body_broken", "the body broke off") from None
    return b"".join(parts)


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"more than {limit} bytes (GATEWAY_MAX_BODY_BYTES)")


def from_loopback(request: web.BaseRequest) -> bool:
    """Whether the peer is this machine; headers of proxies do not count."""
    try:
        address = ipaddress.ip_address(request.remote or "")
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def wait_seconds(text: str) -> float:
    """`wait_s` of a long poll: 0..60. Raises ApiError 422."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_WAIT_S:
        raise unfit("wait_s", f"is not a number from 0 to {MAX_WAIT_S}")
    return value


def public(settings: Settings, trials: Trials, registry: Registry, health: Callable[[], dict[str, Any]]) -> Application:
    """The trial protocol. `health()` gives the keys of /healthz; `ready` among them decides /readyz."""
    token = read_token(settings)
    trusted, described = bearer_of(token), document(bool(token))

    async def openapi(request: web.BaseRequest) -> web.Response:
        return json_answer(described)

    async def create(request: web.BaseRequest) -> web.Response:
        payload = parse_json(await read_body(request, settings.GATEWAY_MAX_BODY_BYTES))
        await trials.admit(str(payload.get("request_id")))
        return json_answer(await trials.create(registry.request(payload, from_loopback(request))), 202)

    async def show(request: web.BaseRequest, request_id: str) -> web.Response:
        wait_s = wait_seconds(request.query.get("wait_s", "0"))
        return json_answer(await trials.show(request_id, wait_s))

    async def trajectory(request: web.BaseRequest, request_id: str) -> web.Response:
        return json_answer(await trials.trajectory(request_id))

    async def renew(request: web.BaseRequest, request_id: str) -> web.Response:
        await trials.renew(request_id)
        return web.Response(status=204)

    async def abort(request: web.BaseRequest, request_id: str) -> web.Response:
        return json_answer(await trials.abort(request_id), 202)

    async def healthz(request: web.BaseRequest) -> web.Response:
        return json_answer({key: value for key, value in health().items() if key != "ready"})

    async def readyz(request: web.BaseRequest) -> web.Response:
        state = health()
        return json_answer(state, 200 if state["ready"] else 503)

    async def metrics(request: web.BaseRequest) -> web.Response:
        state = health()
        text = trials.metrics.text(
            active_trials=state["active_trials"],
            queued_trials=trials.queued(),
            open_sessions=-1 if state["open_sessions"] is None else state["open_sessions"],
            ready=int(state["ready"]),
        )
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    return Application(
        ("POST", "/v1/trials", create),
        ("GET", "/v1/trials/{request_id}", show),
        ("GET", "/v1/trials/{request_id}/trajectory", trajectory),
        ("POST", "/v1/trials/{request_id}/renew", renew),
        ("POST", "/v1/trials/{request_id}/abort", abort),
        ("GET", "/healthz", healthz),
        ("GET", "/readyz", readyz),
        ("GET", "/metrics", metrics),
        ("GET", "/openapi.json", openapi),
        *page.routes(settings, trusted, trials, health),
        trusted=trusted,
    )


def callbacks(trials: Trials) -> Application:
    """Where the agent sends its model calls. NeMo Gym's launcher asks `/` whether the server lives."""

    async def live(request: web.BaseRequest) -> web.Response:
        return json_answer({"status": "ok"})

    async def responses(request: web.BaseRequest) -> web.Response:
        body = parse_json(await read_body(request, CALLBACK_BODY_BYTES))
        metadata = body.get("metadata")
        rollout_id = str(metadata.get(ROLLOUT_KEY)) if isinstance(metadata, dict) else ""
        return json_answer(await trials.model_call(rollout_id, body))

    return Application(("GET", "/", live), ("POST", "/v1/responses", responses))
