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
from fastapi import FastAPI, Request
from fastapi.exceptions import HTTPException, RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect

from gateway.protocol import ROLLOUT_KEY, ApiError, CreatePayload, parse_json, unfit

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


def with_errors(app):
    """Give an application its one error shape."""

    @app.exception_handler(ApiError)
    async def api_error(request, error):
        return Json(error.body(), error.status, error.headers)

    @app.exception_handler(StarletteHTTPException)
    @app.exception_handler(HTTPException)
    async def http_error(request, error):
        code = {404: "route_unknown", 405: "method_not_allowed"}.get(error.status_code, "http_error")
        return Json(ApiError(error.status_code, code, str(error.detail)).body(), error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def validation_error(request, error):
        first = error.errors()[0]
        return Json(unfit(str(first["loc"][-1]), first["msg"]).body(), 422)

    @app.exception_handler(Exception)
    async def internal_error(request, error):
        traceback.print_exception(error)
        return Json(ApiError(500, "internal_error", "a fault of the Gateway; its log tells more").body(), 500)

    return app


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
    app = with_errors(FastAPI(title="Gateway", version="1", docs_url=None, redoc_url=None, redirect_slashes=False))
    if settings.GATEWAY_TOKEN:
        app.add_middleware(Guard, token=settings.GATEWAY_TOKEN)
    schema = {"requestBody": {"content": {"application/json": {"schema": CreatePayload.model_json_schema()}}}}

    @app.post("/v1/trials", status_code=202, openapi_extra=schema)
    async def create(request: Request):
        payload = parse_json(await read_body(request, settings.GATEWAY_MAX_BODY_BYTES))
        return Json(await trials.create(registry.request(payload, from_loopback(request))), 202)

    @app.get("/v1/trials/{request_id}")
    async def show(request_id: str, wait_s: str = "0"):
        return Json(await trials.show(request_id, wait_seconds(wait_s)))

    @app.post("/v1/trials/{request_id}/renew", status_code=204)
    async def renew(request_id: str):
        await trials.renew(request_id)
        return Response(status_code=204)

    @app.post("/v1/trials/{request_id}/abort", status_code=202)
    async def abort(request_id: str):
        return Json(await trials.abort(request_id), 202)

    @app.get("/healthz")
    async def healthz():
        return Json({key: value for key, value in health().items() if key != "ready"})

    @app.get("/readyz")
    async def readyz():
        state = health()
        return Json(state, 200 if state["ready"] else 503)

    @app.get("/metrics")
    async def metrics():
        state = health()
        text = trials.metrics.text(
            active_trials=state["active_trials"],
            queued_trials=trials.queued(),
            open_sessions=-1 if state["open_sessions"] is None else state["open_sessions"],
            ready=int(state["ready"]),
        )
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


def callbacks(trials):
    """Where the agent sends its model calls. NeMo Gym's launcher asks `/` whether the server lives."""
    app = with_errors(FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False))

    @app.get("/")
    async def live():
        return Json({"status": "ok"})

    @app.post("/v1/responses")
    async def responses(request: Request):
        body = parse_json(await read_body(request, CALLBACK_BODY_BYTES))
        metadata = body.get("metadata")
        rollout_id = str(metadata.get(ROLLOUT_KEY)) if isinstance(metadata, dict) else None
        return Json(await trials.model_call(rollout_id, body))

    return app
