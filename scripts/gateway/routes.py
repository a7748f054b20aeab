"""The HTTP surface: routes, who may use them, how large a body may be, and errors in one shape.

Two applications: `public` speaks the trial protocol on the network, `callbacks` takes the agent's
model calls on loopback. Every error of either is `{"error": {"code", "message", "field"?}}`.
"""

import asyncio
import hmac
import ipaddress
import re
import traceback
from urllib.parse import unquote

from aiohttp import web

from common.settings import read_token
from gateway import page
from gateway.http1 import json_answer, refusal
from gateway.openapi import document
from gateway.payload import ROLLOUT_KEY, ApiError, parse_json, unfit

MAX_WAIT_S = 60
BODY_TIMEOUT_S = 30
# A model call carries the rollout's whole history; only the agent sends one.
CALLBACK_BODY_BYTES = 64 << 20


class Application:
    """Answers requests by `routes` (method, path, handler), and every error in the one shape.

    A path may hold {request_id}, which `handler` gets after the request. Under /v1 nothing is answered
    that is not `trusted`.
    """

    def __init__(self, *routes, trusted=lambda request: True):
        self.routes, self._trusted = routes, trusted
        self._handlers = {}  # path as a pattern -> {method: handler}
        for method, path, handler in routes:
            pattern = re.compile(re.escape(path).replace(r"\{request_id\}", "([!-.0-~]+)"))
            self._handlers.setdefault(pattern, {})[method] = handler

    async def __call__(self, request):
        try:
            if request.path.startswith("/v1") and not self._trusted(request):
                raise ApiError(401, "token_missing", "Authorization: Bearer <GATEWAY_TOKEN> is needed")
            handler, found = self._find(request)
            return await handler(request, *found)
        except ApiError as error:
            return refusal(error)
        except Exception as error:
            traceback.print_exception(error)
            return refusal(ApiError(500, "internal_error", "a fault of the Gateway; its log tells more"))

    def _find(self, request):
        """(handler, [the path's request_id]). Raises ApiError 404 or 405."""
        for pattern, handlers in self._handlers.items():
            # An encoded slash is part of an id and ends no segment.
            if found := pattern.fullmatch(request.rel_url.raw_path):
                method = "GET" if request.method == "HEAD" else request.method
                if method not in handlers:
                    allowed = ", ".join(handlers).replace("GET", "GET, HEAD")
                    raise ApiError(405, "method_not_allowed", f"allowed: {allowed}", headers={"Allow": allowed})
                return handlers[method], map(unquote, found.groups())
        raise ApiError(404, "route_unknown", "no such route; /openapi.json lists them")


def bearer_of(token):
    """Whether a request bears the token, as a function of the request; without a token each does."""
    expected = f"Bearer {token}".encode()

    def trusted(request):
        given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        return not token or hmac.compare_digest(given, expected)

    return trusted


async def read_body(request, limit):
    """The request's body. Raises ApiError: 413 beyond `limit` bytes, 408 where it is slow, 400 where it breaks off."""
    if (request.content_length or 0) > limit:
        raise too_large(limit)
    if request.content.is_eof() and request.content.total_bytes <= limit and not request.content.exception():
        return request.content.read_nowait()  # what came with the head, as most do, needs no clock
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
        parts.clear()  # the exception, which stays with the request, holds them until a collection
        raise ApiError(400, "body_broken", "the body broke off") from None
    return b"".join(parts)


def too_large(limit):
    return ApiError(413, "body_too_large", f"more than {limit} bytes (GATEWAY_MAX_BODY_BYTES)")


def from_loopback(request):
    """Whether the peer is this machine; what proxies say in headers counts for nothing."""
    try:
        address = ipaddress.ip_address(request.remote)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def wait_seconds(text):
    """`wait_s` of a long poll: 0..60. Raises ApiError 422."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= MAX_WAIT_S:
        raise unfit("wait_s", f"is not a number from 0 to {MAX_WAIT_S}")
    return value


def public(settings, trials, registry, health):
    """The trial protocol. `health()` gives the keys of /healthz; `ready` among them decides /readyz."""
    token = read_token(settings)
    trusted, described = bearer_of(token), document(bool(token))

    async def openapi(request):
        return json_answer(described)

    async def create(request):
        payload = parse_json(await read_body(request, settings.GATEWAY_MAX_BODY_BYTES))
        await trials.admit(str(payload.get("request_id")))
        return json_answer(await trials.create(registry.request(payload, from_loopback(request))), 202)

    async def show(request, request_id):
        wait_s = wait_seconds(request.query.get("wait_s", "0"))
        return json_answer(await trials.show(request_id, wait_s))

    async def trajectory(request, request_id):
        return json_answer(await trials.trajectory(request_id))

    async def renew(request, request_id):
        await trials.renew(request_id)
        return web.Response(status=204)

    async def abort(request, request_id):
        return json_answer(await trials.abort(request_id), 202)

    async def healthz(request):
        return json_answer({key: value for key, value in health().items() if key != "ready"})

    async def readyz(request):
        state = health()
        return json_answer(state, 200 if state["ready"] else 503)

    async def metrics(request):
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


def callbacks(trials):
    """Where the agent sends its model calls. NeMo Gym's launcher asks `/` whether the server lives."""

    async def live(request):
        return json_answer({"status": "ok"})

    async def responses(request):
        body = parse_json(await read_body(request, CALLBACK_BODY_BYTES))
        metadata = body.get("metadata")
        rollout_id = str(metadata.get(ROLLOUT_KEY)) if isinstance(metadata, dict) else None
        return json_answer(await trials.model_call(rollout_id, body))

    return Application(("GET", "/", live), ("POST", "/v1/responses", responses))
