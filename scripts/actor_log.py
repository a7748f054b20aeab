"""What the log of a trainer's actor proves: lines with the metrics of an optimizer step, and lines against it.

A step is a line that names a step's number and a loss or gradient norm. Against it speak an
out-of-memory error, a traceback, and a step whose loss or norm is no finite number. The log is
read as it is written by the Ray job, colours and actors' prefixes included.
"""

import re
from pathlib import Path

SHOWN = 200
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
FAULT = re.compile(r"Traceback \(most recent call last\)|OutOfMemory|(?i:out of memory)|\bOOM\b")
STEP = re.compile(r"(?i)\bstep[\s:=#]+\d+\b")
METRIC = re.compile(r"(?i)(?:loss|grad_norm)['\"]?\s*[:=]\s*(?:tensor\()?(-?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))")


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
            elif STEP.search(text) and (values := METRIC.findall(text)):
                broken = any(value.lstrip("-").lower() in ("nan", "inf") for value in values)
                (found.faults if broken else found.steps).append((number, text[:SHOWN]))
    return found
