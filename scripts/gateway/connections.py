"""What a connection must do before a request is one: finish its head in time, and tell its length in one way.

Guarantees: a client that sends the head of a request slower than HEAD_TIMEOUT_S is cut off, so that
slow clients cannot pile up; a request with both Content-Length and Transfer-Encoding is refused,
since a proxy may have believed the other one. Bodies have bounds of their own (surface.py).
"""

from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.protocol import ApiError

HEAD_TIMEOUT_S = 20


class Connection(H11Protocol):
    """uvicorn's connection with a time limit on the head of each request."""

    _head_due = None

    def connection_made(self, transport):
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data):
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._forget_head()
        elif self._head_due is None:
            self._expect_head()

    def connection_lost(self, exc):
        self._forget_head()
        super().connection_lost(exc)

    def _expect_head(self):
        self._head_due = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _forget_head(self):
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


def refuse_two_lengths(app, answer):
    """ASGI middleware; `answer(ApiError)` makes the response of the error."""

    async def guarded(scope, receive, send):
        chosen = app
        if scope["type"] == "http" and {b"content-length", b"transfer-encoding"} <= dict(scope["headers"]).keys():
            message = "Content-Length and Transfer-Encoding exclude one another"
            chosen = answer(ApiError(400, "ambiguous_length", message, headers={"Connection": "close"}))
        await chosen(scope, receive, send)

    return guarded
