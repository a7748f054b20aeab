"""The Gateway's page: `/`, which polls `/status.json`, and nothing else.

Guarantees:
- Both answer GET and HEAD, and change nothing.
- Without the GATEWAY_TOKEN, if there is one, they show what /readyz and /metrics tell: counts, latencies, codes of
  failures, servers. Categories and causes, which clients and endpoints wrote, need the token.
- Session and request ids are shown to nobody.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from common.settings import Settings
from gateway.trials import Trials
from pages import inline

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def routes(
    settings: Settings, trusted: Callable[[web.BaseRequest], bool], trials: Trials, health: Callable[[], dict[str, Any]]
) -> list[tuple[str, str, Callable[..., Awaitable[web.Response]]]]:
    """[(method, path, handler)] of the two routes; `trusted(request)`: it may see all; `health` as for /readyz."""
    text, policy = inline.load("gateway.html", connect="'self'")
    headers = HEADERS | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}

    async def page(request: web.BaseRequest) -> web.Response:
        return web.Response(text=text, headers=headers, content_type="text/html")

    async def status(request: web.BaseRequest) -> web.Response:
        body = orjson.dumps(shown(settings, trials, health(), trusted(request)))
        return web.Response(body=body, headers=HEADERS, content_type="application/json")

    return [("GET", "/", page), ("GET", "/status.json", status)]


def shown(settings: Settings, trials: Trials, state: dict[str, Any], details: bool) -> dict[str, Any]:
    """What the page shows of /readyz's state, and of the last minutes."""
    queued = trials.queued()
    return {
        "ready": state["ready"],
        "details": details,
        "service_epoch": state["service_epoch"],
        "running": state["active_trials"] - queued,
        "queued": queued,
        "slots_of_trials": settings.WORKPLACE_ASSISTANT_MAX_CONCURRENCY,
        "queue_limit": settings.GATEWAY_QUEUE_LIMIT,
        "ended": state["terminal_trials"],
        "open_sessions": state["open_sessions"],
        "servers": [{"name": name} | server for name, server in state["servers"].items()],
    } | trials.metrics.recent.shown(details)
