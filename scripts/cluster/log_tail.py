"""A job's log as it grows: the WebSocket of Ray's dashboard that follows a log.

Ray's other way is to send the whole log, which gets large.
Guarantees:
- a read never waits
- a tail that starts anew skips the text that was read before
- whatever goes wrong ends the tail, and its reader opens another
- a Python without aiohttp has no tail
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress

from cluster import auth

try:
    import aiohttp
except ImportError:
    aiohttp = None

CONNECT_S = 5
MESSAGE_BYTES = 64 << 20


class LogTail:
    """One connection; `read` gives the text beyond the first `skip` characters, `ended` says that no more will come.

    A thread of its own receives, since an exception that a signal raises in an event loop's callback is lost.
    """

    def __init__(self, skip: int):
        self.skip, self.ended = skip, False
        self._texts: deque[str] = deque()
        self._settled = threading.Event()

    @classmethod
    def open(cls, url: str, path: str, skip: int = 0) -> LogTail | None:
        """The tail at `path` of the dashboard at `url`; None if it gives none."""
        if aiohttp is None:
            return None
        tail = cls(skip)
        threading.Thread(target=asyncio.run, args=[tail._receive(url + path)], daemon=True).start()
        tail._settled.wait()
        return None if tail.ended else tail

    def read(self) -> str:
        """The text that has come since the last read; "" if none has."""
        text = "".join(self._texts.popleft() for _ in range(len(self._texts)))
        skipped = min(self.skip, len(text))
        self.skip -= skipped
        return text[skipped:]

    def close(self) -> None:
        """End the connection; the thread ends with it."""
        with suppress(RuntimeError):  # the thread has closed its loop
            self._loop.call_soon_threadsafe(self._task.cancel)

    async def _receive(self, url):
        self._loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert aiohttp and task
        self._task = task
        try:
            async with aiohttp.ClientSession(headers=auth.headers()) as session:
                connecting = session.ws_connect(url, max_msg_size=MESSAGE_BYTES)
                socket = await asyncio.wait_for(connecting, CONNECT_S)
                self._settled.set()
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.TEXT:
                        self._texts.append(message.data)
        except (aiohttp.ClientError, OSError, ValueError, asyncio.CancelledError):
            pass
        finally:
            self.ended = True
            self._settled.set()
