"""What the Gateway did in the last ten minutes, for its page: counts over time, latencies, rewards, failures.

Guarantees: its memory is bounded whatever the number of trials, categories and failures, and
the length of what clients and endpoints wrote. It knows of no credential, session or request id.
"""

import time
from collections import deque

SLOT_S, SLOTS = 10, 60
LATENCIES, FAILURES, CATEGORIES = 500, 20, 24
TEXT = 300
OTHERS = "(other categories)"
COUNTED = ("ended", "passed", "unrewarded", "calls")


class Recent:
    """Told of each event as it happens; `shown` is what the page reads. `clock` gives seconds."""

    def __init__(self, clock=time.monotonic):
        self._clock = clock
        self._slots = deque(maxlen=SLOTS)  # (slot number, {name: count}), the last one first
        self._latencies = {name: deque(maxlen=LATENCIES) for name in ("queue", "trial", "model_call")}
        self._rewards = {}  # category -> [trials with a reward, sum of rewards, trials without]
        self._failures = deque(maxlen=FAILURES)

    def _count(self, name):
        number = int(self._clock() // SLOT_S)
        if not self._slots or self._slots[0][0] != number:
            self._slots.appendleft((number, dict.fromkeys(COUNTED, 0)))
        self._slots[0][1][name] += 1

    def started(self, waited_s):
        self._latencies["queue"].append(waited_s)

    def called(self, took_s):
        self._latencies["model_call"].append(took_s)
        self._count("calls")

    def ended(self, outcome, took_s, category):
        """Note how a trial ended; `category` is the row's own word."""
        self._latencies["trial"].append(took_s)
        self._count("ended")
        category = str(category)[:TEXT]
        if category not in self._rewards and len(self._rewards) >= CATEGORIES:
            category = OTHERS
        rewards = self._rewards.setdefault(category, [0, 0.0, 0])
        if outcome.reward is None:
            rewards[2] += 1
            self._count("unrewarded")
        else:
            rewards[0], rewards[1] = rewards[0] + 1, rewards[1] + outcome.reward
            if outcome.reward >= 1:
                self._count("passed")
        if outcome.fault:
            said = {key: value[:TEXT] for key, value in outcome.fault.as_json().items()}
            self._failures.appendleft((self._clock(), said | {"status": outcome.status.value, "category": category}))

    def shown(self, details):
        """The page's data; with `details` also what clients and endpoints wrote: categories and causes."""
        now = self._clock()
        keys = {"age_s", "status", "code"} | ({"type", "cause", "category"} if details else set())
        failures = [{"age_s": round(now - when, 1)} | said for when, said in self._failures]
        return {
            "slot_s": SLOT_S,
            "slots": self._series(int(now // SLOT_S)),
            "latencies": {name: quantiles(values) for name, values in self._latencies.items()},
            "failures": [{key: value for key, value in each.items() if key in keys} for each in failures],
            "categories": self._categories() if details else None,
        }

    def _series(self, present):
        """One {name: count} for each slot, the oldest first."""
        counts = dict(self._slots)
        return [counts.get(present - back, dict.fromkeys(COUNTED, 0)) for back in reversed(range(SLOTS))]

    def _categories(self):
        return [
            {
                "category": name,
                "rewarded": count,
                "mean_reward": total / count if count else None,
                "unrewarded": without,
            }
            for name, (count, total, without) in sorted(self._rewards.items())
        ]


def quantiles(values):
    """{"count", "p50", "p95"} of seconds, the last two None without values."""
    ordered = sorted(values)

    def at(share):
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) if ordered else None

    return {"count": len(ordered), "p50": at(0.5), "p95": at(0.95)}
