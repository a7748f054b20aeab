"""The figures of bench.py as one SVG: bars in pairs, patched beside unpatched, on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from common.svg import bar, document, text

COLOURS = {"patched": "#2a7", "unpatched": "#c63"}
ROW, LABEL, BAR, DECADES = 34, 330, 520, (-3, 5)


Groups = dict[str, dict[str, float]]


def panels(measured: dict[str, Any]) -> list[tuple[str, str, Groups]]:
    """[(title, unit, {label: {environment: value}})] of what was measured."""
    levels = measured.get("graph", {})

    def groups(value: Callable[[dict], float]) -> Groups:
        return {
            f"{level} at once": {kind: value(figures) for kind, figures in kinds.items()}
            for level, kinds in levels.items()
        }

    all_panels = [
        ("Throughput", "trials/s", groups(lambda figures: figures["trials_per_s"])),
        ("Latency, 95 of 100 trials below", "ms", groups(lambda figures: figures["p95_ms"])),
        ("CPU of the resource server", "ms a trial", groups(lambda figures: figures["cpu_ms_per_trial"]["resource"])),
        ("Parts of the environment", "ms", measured.get("tools", {})),
    ]
    return [panel for panel in all_panels if panel[2]]


def svg(measured: dict[str, Any]) -> str:
    """The whole picture as text."""
    lines, y = [], 20
    for title, unit, groups in panels(measured):
        lines.append(text(10, y, f"{title} ({unit}, logarithmic)", weight="bold"))
        for label, values in groups.items():
            y += ROW
            lines += group(y, label, values)
        y += 50
    return document(LABEL + BAR + 130, y, lines)


def group(y: int, label: str, values: dict[str, float]) -> list[str]:
    """A label, and a bar for each environment."""
    lines = [text(10, y, label)]
    for nth, (kind, value) in enumerate(values.items()):
        top = y - 13 + nth * 13
        lines.append(bar(LABEL, top, width(value), 11, COLOURS[kind]))
        lines.append(text(LABEL + width(value) + 6, top + 10, f"{value:g} {kind}", size=10))
    return lines


def width(value: float) -> float:
    low, high = DECADES
    return BAR * min(1, max(0.005, (math.log10(max(value, 1e-9)) - low) / (high - low)))
