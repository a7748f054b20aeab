"""The figures of bench.py as one SVG: patched beside unpatched, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from common.svg import Line, plot

COLOURS = {"patched": "#2a7", "unpatched": "#c63"}
LOW, HIGH = -3, 5

Groups = dict[str, dict[str, float]]


def svg(measured: dict[str, Any]) -> str:
    """The whole picture of what was measured, as text."""

    def groups(value: Callable[[dict], float]) -> Groups:
        return {
            f"{level} at once": {kind: value(figures) for kind, figures in kinds.items()}
            for level, kinds in measured.get("graph", {}).items()
        }

    panels = [
        ("Throughput (trials/s", groups(lambda figures: figures["trials_per_s"])),
        ("Latency, 95 of 100 trials below (ms", groups(lambda figures: figures["p95_ms"])),
        ("CPU of the resource server (ms a trial", groups(lambda figures: figures["cpu_ms_per_trial"]["resource"])),
        ("Parts of the environment (ms", measured.get("tools", {})),
    ]
    return plot((f"{title}, logarithmic)", lines(values)) for title, values in panels if values)


def lines(groups: Groups) -> Iterator[Line]:
    """A line for each environment, the first of a group with the group's label."""
    for label, values in groups.items():
        for nth, (kind, value) in enumerate(values.items()):
            width = (math.log10(max(value, 1e-9)) - LOW) / (HIGH - LOW)
            yield Line("" if nth else label, [(0, min(1, max(0.005, width)), COLOURS[kind])], f"{value:g} {kind}")
