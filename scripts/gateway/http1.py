"""HTTP/1 on the Gateway's sockets: what a connection must do before a request is one, and how connections end.

Guarantees: a client has HEAD_TIMEOUT_S for the head of each request, waiting included, so that idle
and slow ones cannot pile up; heads are bounded; one that can be read in two ways is refused in the
one error shape and nothing after it is read, since a proxy may have believed the other way; no log
holds a word of it. A request goes on when its client leaves: what it began has an end of its own.
Bodies have bounds of their own (routes.py); what is left of one that was refused is read for a
while: a client that is still sending would see a broken connection, not its answer.
"""

import socket

import orjson
from aiohttp import web
from aiohttp.web_protocol import _ErrInfo

from gateway.payload import ApiError

HEAD_TIMEOUT_S = 30
DRAIN_S = 2
# A trial's id has at most 200 characters; each header has aiohttp's 8,190 bytes.
LINE_BYTES, HEADERS = 16 << 10, 64
BACKLOG = 2048
# Whoever is still owed an answer when the server ends gets it within this time.
END_TIMEOUT_S = 1


def json_answer(content, status=200, headers=None):
    return web.Response(body=orjson.dumps(content), status=status, headers=headers, content_type="application/json")


def refusal(error):
    """The response of an ApiError."""
    return json_answer(error.body(), error.status, error.headers)


class Connection(web.RequestHandler):
    """aiohttp's connection, with our answer to what is no request."""

    def data_received(self, data):
        super().data_received(data)
        # aiohttp queues what it cannot read as a request of its own, and lets the one whose body it is wait for ever.
        if self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            self._break_body()

    def _break_body(self):
        """End the body that was coming in, if any, as a broken one."""
        if len(self._messages) > 1:
            body = self._messages[-2][1]
        elif self._current_request:
            body = self._current_request.content
        else:
            return
        if not body.is_eof():
            body.set_exception(web.RequestPayloadError("malformed"))
            body.feed_eof()

    def handle_error(self, request, status=500, exc=None, message=None):
        reason = (message or "").partition(":\n")[0]  # what follows are the client's bytes
        if "Content-Length" in reason and "Transfer-Encoding" in reason:
            error = ApiError(400, "ambiguous_length", "Content-Length and Transfer-Encoding exclude one another")
        else:
            error = ApiError(400, "malformed_request", "this is no HTTP request, or its head is too large")
        answer = refusal(error)
        answer.force_close()
        return answer


class Request(web.BaseRequest):
    async def _prepare_hook(self, response):
        del response.headers["Server"]  # which versions run here is nobody's business
        if self.content.exception():
            response.force_close()  # where the body ends, and another request begins, is not known
            response.headers["Connection"] = "close"


class Connections(web.Server):
    """The connections to one application, which answers a Request with a response and raises nothing."""

    def __init__(self, application):
        super().__init__(application, request_factory=self._request)

    def _request(self, *parts):
        return Request(*parts, self._loop)

    def __call__(self):
        return Connection(
            self,
            loop=self._loop,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=HEAD_TIMEOUT_S,
            lingering_time=DRAIN_S,
            max_line_size=LINE_BYTES,
            max_headers=HEADERS,
        )


async def serve(application, hosts, port):
    """Serve an application at addresses of this machine; returns its runner, whose `cleanup` ends that."""
    runner = web.ServerRunner(Connections(application), shutdown_timeout=END_TIMEOUT_S)
    await runner.setup()
    for host in hosts:
        await web.SockSite(runner, bound(host, port), backlog=BACKLOG).start()
    return runner


def bound(host, port):
    """A socket at the address; unlike one of asyncio's, `::` takes IPv4 too."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    return made
