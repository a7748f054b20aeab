"""HTTP/1 on the Gateway's sockets: what a connection must do before a request is one, and how connections end.

Guarantees:
- A client has HEAD_TIMEOUT_S for the head of each request, waiting included, so that idle and slow ones cannot pile up.
- Heads are bounded. An ambiguous head is refused in the one error shape, and nothing after it is read, since a proxy
  may have read it the other way. No log holds a word of it.
- A request goes on when its client leaves: what it began has an end of its own.
- The rest of a refused body is read for a while: a client that is still sending would see a broken connection, not its
  answer. The bounds of bodies are in routes.py.
"""

import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson
from aiohttp import web
from aiohttp.web_protocol import _ErrInfo

from gateway.payload import ApiError

HEAD_TIMEOUT_S = 30
DRAIN_S = 2
Answering = Callable[[Any], Awaitable[web.StreamResponse]]
# A trial's id has at most 200 characters; each header has aiohttp's 8,190 bytes.
LINE_BYTES, HEADERS = 16 << 10, 64
BACKLOG = 2048
# Requests in progress when the server ends are answered within this time.
END_TIMEOUT_S = 1


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, headers=headers, content_type="application/json")


def refusal(error: ApiError) -> web.Response:
    """The response of an ApiError."""
    return json_answer(error.body(), error.status, error.headers)


class Connection(web.RequestHandler):
    """aiohttp's connection, with our answer to what is no request."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # aiohttp queues bytes it cannot parse as a request of its own; the request whose body they are waits for ever.
        if self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            self._break_body()

    def _break_body(self) -> None:
        """End the body that was coming in, if any, as a broken body."""
        if len(self._messages) > 1:
            body = self._messages[-2][1]
        elif self._current_request:
            body = self._current_request.content
        else:
            return
        if not body.is_eof():
            body.set_exception(web.RequestPayloadError("malformed"))
            body.feed_eof()

    def handle_error(
        self, request: Any, status: int = 500, exc: Any = None, message: str | None = None
    ) -> web.Response:
        reason = (message or "").partition(":\n")[0]  # the client's bytes follow
        if "Content-Length" in reason and "Transfer-Encoding" in reason:
            error = ApiError(400, "ambiguous_length", "Content-Length and Transfer-Encoding exclude one another")
        else:
            error = ApiError(400, "malformed_request", "this is no HTTP request, or its head is too large")
        answer = refusal(error)
        answer.force_close()
        return answer


class Request(web.BaseRequest):
    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        del response.headers["Server"]  # do not tell which versions run here
        if self.content.exception():
            response.force_close()  # it is unknown where the body ends and the next request begins
            response.headers["Connection"] = "close"


class Connections(web.Server):
    """The connections to one application, which answers each Request and raises nothing."""

    def __init__(self, application: Answering) -> None:
        super().__init__(application, request_factory=self._request)

    def _request(self, *parts: Any) -> Request:
        message, payload, protocol, writer, task = parts
        return Request(message, payload, protocol, writer, task, self._loop)

    def __call__(self) -> Connection:
        options: dict[str, Any] = {
            "access_log": None,
            "auto_decompress": False,
            "keepalive_timeout": HEAD_TIMEOUT_S,
            "lingering_time": DRAIN_S,
            "max_line_size": LINE_BYTES,
            "max_headers": HEADERS,
        }
        return Connection(self, loop=self._loop, **options)


async def serve(application: Answering, hosts: Iterable[str], port: int) -> web.ServerRunner:
    """Serve an application at addresses of this machine; the runner's `cleanup` ends that."""
    runner = web.ServerRunner(Connections(application), shutdown_timeout=END_TIMEOUT_S)
    await runner.setup()
    for host in hosts:
        await web.SockSite(runner, bound(host, port), backlog=BACKLOG).start()
    return runner


def bound(host: str, port: int) -> socket.socket:
    """A socket at the address; unlike asyncio's own, `::` takes IPv4 too."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener
