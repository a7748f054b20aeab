"""What the log of a trainer's actor proves: lines that show an optimizer step, and lines that speak against one.

Guarantees:
- a line shows a step if it has a loss or a gradient norm and names its step or iteration, or if it has both; so
  Megatron and trainers built on it print them, as a table with bars, a dictionary, JSON, or name and value
- an out-of-memory error, a traceback, and a loss or norm that is no finite number speak against a step
- colours and the actors' prefixes of a Ray job's log do not matter
"""

from __future__ import annotations

import re
from pathlib import Path

SHOWN = 200
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FAULT = re.compile(r"Traceback \(most recent call last\)|OutOfMemory|(?i:out of memory)|\bOOM\b")
STEP = re.compile(r"(?i)(?:\b|_)(?:step|iteration)s?['\"]?[\s:=#]+\d+")
NUMBER = r"[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)"
# The number may be a tensor's, or of another type that prints its name.
METRIC = re.compile(rf"(?i)(loss|grad[ _-]?norm)['\"]?\s*[:=]\s*(?:[\w.]+\()?({NUMBER})")


class Findings:
    """(line number, text) of the lines that show a step, and of those that speak against one."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, str]] = []
        self.faults: list[tuple[int, str]] = []


def read(path: Path) -> Findings:
    """Read a log line by line. Raises OSError."""
    findings = Findings()
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            text = COLOUR.sub("", line).strip()
            if FAULT.search(text):
                findings.faults.append((number, text[:SHOWN]))
            elif (values := _step(text)) is not None:
                broken = any(value.lstrip("-+").lower() in ("nan", "inf") for value in values)
                (findings.faults if broken else findings.steps).append((number, text[:SHOWN]))
    return findings


def _step(text: str) -> list[str] | None:
    """The losses and norms in a line that shows a step, as they are written; None for another line."""
    metrics = METRIC.findall(text)
    both = len({name.lower()[:4] for name, _ in metrics}) == 2
    return [value for _, value in metrics] if metrics and (both or STEP.search(text)) else None
