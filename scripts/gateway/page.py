"""The Gateway's page: `/`, which polls `/status.json`, and nothing else.

Both answer GET and HEAD, and change nothing. With a GATEWAY_TOKEN, whoever does not send it sees
no more than /readyz and /metrics tell: counts, latencies, codes of failures, servers; categories
and causes, which are the words of clients and endpoints, need the token. Session and request ids
are not shown to anybody.
"""

import orjson
from aiohttp import web

from pages import inline

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def routes(settings, trusted, trials, health):
    """[(method, path, handler)] of the two routes; `trusted(request)`: it may see all; `health` as for /readyz."""
    text, policy = inline.load("gateway.html", connect="'self'")
    headers = HEADERS | {"Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}

    async def page(request):
        return web.Response(text=text, headers=headers, content_type="text/html")

    async def status(request):
        text = orjson.dumps(shown(settings, trials, health(), trusted(request)))
        return web.Response(body=text, headers=HEADERS, content_type="application/json")

    return [("GET", "/", page), ("GET", "/status.json", status)]


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
