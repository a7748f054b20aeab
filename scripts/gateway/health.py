"""What Gateways say of themselves: whether they are ready, and whether all state was released."""

import time

from common import net

RELEASE_S = 15


def released(urls, patience_s=RELEASE_S):
    """Wait until no Gateway holds a trial and no environment a session: (whether, what was said)."""
    deadline = time.monotonic() + patience_s
    while True:
        answers = [net.readyz(url)[1] for url in urls]
        counts = {name: [answer.get(name) for answer in answers] for name in ("active_trials", "open_sessions")}
        clean = all(set(found) == {0} for found in counts.values())
        if clean or time.monotonic() > deadline:
            totals = {name: "unknown" if None in found else sum(found) for name, found in counts.items()}
            return clean, " ".join(f"{name}={total}" for name, total in totals.items())
        time.sleep(0.2)
