"""What the Gateway did in the last ten minutes, for its page: counts over time, latencies, rewards, failures.

Guarantees:
- Its memory is bounded, whatever the number of trials, categories and failures and the length of their texts.
- It holds no credential, session or request id.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from gateway.trial import Outcome

SLOT_S, SLOTS = 10, 60
LATENCIES, FAILURES, CATEGORIES = 500, 20, 24
TEXT = 300
OTHERS = "(other categories)"
COUNTED = ("ended", "passed", "unrewarded", "calls")


class Recent:
    """Takes each event as it happens; the page reads `shown`. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # (slot number, {name: count}), the newest first
        self._slots: deque[tuple[int, dict[str, int]]] = deque(maxlen=SLOTS)
        self._latencies = {name: deque(maxlen=LATENCIES) for name in ("queue", "trial", "model_call")}
        self._rewards: dict[str, list] = {}  # category -> [trials with a reward, sum of rewards, trials without]
        self._failures: deque[tuple[float, dict[str, str]]] = deque(maxlen=FAILURES)

    def _count(self, name: str) -> None:
        number = int(self._clock() // SLOT_S)
        if not self._slots or self._slots[0][0] != number:
            self._slots.appendleft((number, dict.fromkeys(COUNTED, 0)))
        self._slots[0][1][name] += 1

    def started(self, waited_s: float) -> None:
        self._latencies["queue"].append(waited_s)

    def called(self, took_s: float) -> None:
        self._latencies["model_call"].append(took_s)
        self._count("calls")

    def ended(self, outcome: Outcome, took_s: float, category: object) -> None:
        """Note how a trial ended; `category` is the row's own."""
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
            fault = {key: value[:TEXT] for key, value in outcome.fault.as_json().items()}
            self._failures.appendleft((self._clock(), fault | {"status": outcome.status.value, "category": category}))

    def shown(self, details: bool) -> dict[str, Any]:
        """The page's data; with `details` also what clients and endpoints wrote: categories and causes."""
        now = self._clock()
        keys = {"age_s", "status", "code"} | ({"type", "cause", "category"} if details else set())
        failures = [{"age_s": round(now - when, 1)} | fault for when, fault in self._failures]
        return {
            "slot_s": SLOT_S,
            "slots": self._series(int(now // SLOT_S)),
            "latencies": {name: quantiles(values) for name, values in self._latencies.items()},
            "failures": [{key: value for key, value in failure.items() if key in keys} for failure in failures],
            "categories": self._categories() if details else None,
        }

    def _series(self, present: int) -> list[dict[str, int]]:
        """{name: count} for each slot, the oldest first."""
        counts = dict(self._slots)
        return [counts.get(present - back, dict.fromkeys(COUNTED, 0)) for back in reversed(range(SLOTS))]

    def _categories(self) -> list[dict[str, Any]]:
        return [
            {"category": name, "rewarded": count, "mean_reward": total / count if count else None, "unrewarded": rest}
            for name, (count, total, rest) in sorted(self._rewards.items())
        ]


def quantiles(values: Iterable[float]) -> dict[str, float | None]:
    """{"count", "p50", "p95"} of seconds, the last two None without values."""
    ordered = sorted(values)

    def at(share: float) -> float | None:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) if ordered else None

    return {"count": len(ordered), "p50": at(0.5), "p95": at(0.95)}
