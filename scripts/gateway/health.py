"""Whether Gateways have released all state."""

import time
from collections.abc import Iterable
from typing import Any

from common import net

RELEASE_S = 15


def released(urls: Iterable[str], patience_s: float = RELEASE_S) -> tuple[bool, str]:
    """Wait until no Gateway holds a trial and no environment a session: (whether, the counts as text)."""
    deadline = time.monotonic() + patience_s
    while True:
        answers = [net.readyz(url)[1] for url in urls]
        counts: dict[str, list[Any]] = {}
        for name in ("active_trials", "open_sessions"):
            counts[name] = [answer.get(name) for answer in answers]
        clean = all(set(values) == {0} for values in counts.values())
        if clean or time.monotonic() > deadline:
            totals = ((name, "unknown" if None in values else sum(values)) for name, values in counts.items())
            return clean, " ".join(f"{name}={total}" for name, total in totals)
        time.sleep(0.2)
