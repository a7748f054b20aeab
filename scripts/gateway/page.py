"""The Gateway's page: `/`, which polls `/status.json`, and nothing else.

Both answer GET and HEAD, and change nothing. With a GATEWAY_TOKEN, whoever does not send it sees
no more than /readyz and /metrics tell: counts, latencies, codes of failures, servers; categories
and causes, which are the words of clients and endpoints, need the token. Session and request ids
are not shown to anybody.
"""

import hmac

import orjson
from fastapi import Request
from fastapi.responses import HTMLResponse, Response

import inline_page

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
METHODS = ("GET", "HEAD")


def add(app, settings, trials, health):
    """Add the two routes to the public application; `health` as for /readyz."""
    text, policy = inline_page.load("gateway.html", connect="'self'")
    headers = HEADERS | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}
    token = settings.GATEWAY_TOKEN

    def trusted(request):
        given = request.headers.get("Authorization", "")
        return not token or hmac.compare_digest(given.encode(), f"Bearer {token}".encode())

    @app.api_route("/", methods=METHODS, include_in_schema=False)
    async def page():
        return HTMLResponse(text, headers=headers)

    @app.api_route("/status.json", methods=METHODS, include_in_schema=False)
    async def status(request: Request):
        details = trusted(request)
        text = orjson.dumps(shown(settings, trials, health(), details))
        return Response(text, media_type="application/json", headers=HEADERS)


def shown(settings, trials, state, details):
    """What the page shows of the state that /readyz tells, and of the last minutes."""
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
        "servers": servers(state["servers"]),
    } | trials.metrics.recent.shown(details)


def servers(state):
    """[{"name", "url", "up"}] of the servers that /readyz tells of, however it groups them."""
    found = []
    for name, value in state.items() if isinstance(state, dict) else enumerate(state, 1):
        if isinstance(value, dict) and "up" in value:
            found.append({"name": str(name), "url": value.get("url"), "up": bool(value["up"])})
        elif isinstance(value, (dict, list)):
            found += [each | {"name": f"{name} {each['name']}"} for each in servers(value)]
    return found
