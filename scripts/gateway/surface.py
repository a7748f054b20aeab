"""The HTTP surface: routes, who may use them, how large a body may be, and errors in one shape.

Two applications: `public` speaks the trial protocol on the network, `callbacks` takes the agent's
model calls on loopback. Every error of either is `{"error": {"code", "message", "field"?}}`.
"""

import asyncio
import hmac
import ipaddress
import traceback
from contextlib import suppress

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from gateway import page
from gateway.openapi import document
from gateway.protocol import ROLLOUT_KEY, ApiError, parse_json, unfit
from gateway_client import read_token

MAX_WAIT_S = 60
BODY_TIMEOUT_S = 30
# What is still read of a body that was refused for its size.
DRAIN_S, DRAIN_BYTES = 2, 64 << 20
# A model call carries the rollout's whole history; only the agent sends one.
CALLBACK_BODY_BYTES = 64 << 20


class Json(Response):
    media_type = "application/json"

    def render(self, content):
        return orjson.dumps(content)


def refusal(error):
    """The response of an ApiError."""
    return Json(error.body(), error.status, error.headers)


def application(*routes):
    """An application of routes (method, path, handler) with the one error shape."""
    handlers = {ApiError: api_error, HTTPException: http_error, Exception: internal_error}
    made = [Route(path, handler, methods=[method]) for method, path, handler in routes]
    app = Starlette(routes=made, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return app


async def api_error(request, error):
    return refusal(error)


async def http_error(request, error):
    code = {404: "route_unknown", 405: "method_not_allowed"}.get(error.status_code, "http_error")
    return Json(ApiError(error.status_code, code, str(error.detail)).body(), error.status_code, error.headers)


async def internal_error(request, error):
    traceback.print_exception(error)
    return Json(ApiError(500, "internal_error", "a fault of the Gateway; its log tells more").body(), 500)


async def read_body(request, limit):
    """The request's body. Raises ApiError 413 beyond `limit` bytes, 408 if it comes too slowly."""
    declared = request.headers.get("content-length", "")
    parts, size = [], int(declared) if declared.isdecimal() and int(declared) > limit else 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            stream = request.stream()
            if size <= limit:
                async for part in stream:
                    size += len(part)
                    parts.append(part)
                    if size > limit:
                        break
            if size > limit:
                await drain(stream)
                raise ApiError(413, "body_too_large", f"more than {limit} bytes (GATEWAY_MAX_BODY_BYTES)")
    except TimeoutError:
        raise ApiError(408, "body_too_slow", f"the body took more than {BODY_TIMEOUT_S} s") from None
    return b"".join(parts)


async def drain(stream):
    """Read on for a while: a client that is still sending would see a broken connection, not its answer."""
    read = 0
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(DRAIN_S):
            async for part in stream:
                read += len(part)
                if read > DRAIN_BYTES:
                    return


def from_loopback(request):
    """Whether the peer is this machine; what proxies say in headers counts for nothing."""
    try:
        address = ipaddress.ip_address(request.client.host)
    except (AttributeError, ValueError):
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


class Guard:
    """ASGI middleware: nothing under /v1 without the token."""

    def __init__(self, app, token):
        self.app, self.expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope, receive, send):
        answer = self.app
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                error = ApiError(401, "token_missing", "Authorization: Bearer <GATEWAY_TOKEN> is needed")
                answer = Json(error.body(), 401)
        await answer(scope, receive, send)


def public(settings, trials, registry, health):
    """The trial protocol. `health()` gives the keys of /healthz; `ready` among them decides /readyz."""
    token = read_token(settings)
    described = document(bool(token))

    async def openapi(request):
        return Json(described)

    async def create(request):
        payload = parse_json(await read_body(request, settings.GATEWAY_MAX_BODY_BYTES))
        return Json(await trials.create(registry.request(payload, from_loopback(request))), 202)

    async def show(request):
        wait_s = wait_seconds(request.query_params.get("wait_s", "0"))
        return Json(await trials.show(request.path_params["request_id"], wait_s))

    async def trajectory(request):
        return Json(await trials.trajectory(request.path_params["request_id"]))

    async def renew(request):
        await trials.renew(request.path_params["request_id"])
        return Response(status_code=204)

    async def abort(request):
        return Json(await trials.abort(request.path_params["request_id"]), 202)

    async def healthz(request):
        return Json({key: value for key, value in health().items() if key != "ready"})

    async def readyz(request):
        state = health()
        return Json(state, 200 if state["ready"] else 503)

    async def metrics(request):
        state = health()
        text = trials.metrics.text(
            active_trials=state["active_trials"],
            queued_trials=trials.queued(),
            open_sessions=-1 if state["open_sessions"] is None else state["open_sessions"],
            ready=int(state["ready"]),
        )
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    app = application(
        ("POST", "/v1/trials", create),
        ("GET", "/v1/trials/{request_id}", show),
        ("GET", "/v1/trials/{request_id}/trajectory", trajectory),
        ("POST", "/v1/trials/{request_id}/renew", renew),
        ("POST", "/v1/trials/{request_id}/abort", abort),
        ("GET", "/healthz", healthz),
        ("GET", "/readyz", readyz),
        ("GET", "/metrics", metrics),
        ("GET", "/openapi.json", openapi),
        *page.routes(settings, token, trials, health),
    )
    if token:
        app.add_middleware(Guard, token=token)
    return app


def callbacks(trials):
    """Where the agent sends its model calls. NeMo Gym's launcher asks `/` whether the server lives."""

    async def live(request):
        return Json({"status": "ok"})

    async def responses(request):
        body = parse_json(await read_body(request, CALLBACK_BODY_BYTES))
        metadata = body.get("metadata")
        rollout_id = str(metadata.get(ROLLOUT_KEY)) if isinstance(metadata, dict) else None
        return Json(await trials.model_call(rollout_id, body))

    return application(("GET", "/", live), ("POST", "/v1/responses", responses))
