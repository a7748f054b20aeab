"""An application of the Gateway on a free port of loopback, served as the Gateway serves it."""

import asyncio
import threading
from contextlib import contextmanager

from gateway import http1


@contextmanager
def served(application):
    """Gives its port; the server has a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(20)

    runner = run(http1.serve(application, ["127.0.0.1"], 0))
    try:
        yield runner.addresses[0][1]
    finally:
        run(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
