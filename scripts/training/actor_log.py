"""What the log of a trainer's actor proves: lines with the metrics of an optimizer step, and lines against it.

A step is a line with a loss or a gradient norm that names its step or iteration, or one with both. That
is how Megatron, and trainers built on it, print them: as a table with bars, a dictionary, JSON, or name
and value; the trainer's own words have not been seen. Against a step speak an out-of-memory error, a
traceback, and a loss or norm that is no finite number. The log is read as it is written by the Ray job,
colours and actors' prefixes included.
"""

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

    def __init__(self):
        self.steps, self.faults = [], []


def read(path):
    """Read a log line by line. Raises OSError."""
    found = Findings()
    with Path(path).open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            text = COLOUR.sub("", line).strip()
            if FAULT.search(text):
                found.faults.append((number, text[:SHOWN]))
            elif (values := _step(text)) is not None:
                broken = any(value.lstrip("-+").lower() in ("nan", "inf") for value in values)
                (found.faults if broken else found.steps).append((number, text[:SHOWN]))
    return found


def _step(text):
    """The losses and norms of a line that shows a step, as they are written; None for another line."""
    metrics = METRIC.findall(text)
    both = len({name.lower()[:4] for name, _ in metrics}) == 2
    return [value for _, value in metrics] if metrics and (both or STEP.search(text)) else None
