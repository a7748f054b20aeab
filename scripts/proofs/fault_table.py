"""The fault matrix as text: a line for the terminal, and the table in matrix.md and tests/MEASURED.md.

Guarantees:
- it reads and writes results, and runs nothing
- the published table has a row for every fault, also for one without a result
- a fault that was not held is never published
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from common.failure import Failure, printable
from proofs import published
from proofs.fault_matrix import FAULTS

HEADER = """| fault | how the trials ended | what the user sees | back after | date, commit |
| --- | --- | --- | --- | --- |
"""
WORDS = 200


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """{fault: line} of the results in a folder."""
    path = folder / "matrix.json"
    return json.loads(path.read_text())["faults"] if path.exists() else {}


def _ends(line: dict[str, Any]) -> str:
    return ", ".join(f"{count} {label}" for label, count in line["ended"].items())


def summary(line: dict[str, Any]) -> str:
    """A line's ends in a few words."""
    return f"{_ends(line)}; back after {line['back_s']} s" if line["held"] else f"NOT HELD; {_ends(line)}"


def seen(line: dict[str, Any]) -> str:
    """What a session client said at the most frequent end without a reward."""
    failing = [label for label in line["ended"] if label in line["words"]]
    if not failing:
        return "nothing: exit 0, rewards written"
    text = printable(line["words"][failing[0]].splitlines()[0])
    text = re.sub(r"^session client: (trial relax-… ended )?", "", text)
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:…", text)
    text = re.sub(r"/trial-[\d-]+/", "/…/", text)
    text = re.sub(r"relax-[0-9a-f]{64}", "relax-…", text)
    text = re.sub(r"/cleanup/[0-9a-f]{32}", "/cleanup/…", text)
    status = next((code for code in line["exits"] if code not in ("0", "-9")), "1")
    return f"exit {status}: `{text[:WORDS]}`".replace("|", "\\|")


def back(line: dict[str, Any]) -> str:
    if not line["held"]:
        return "**not held**"
    return f"{line['back_s']} s" if line["was_down"] else "was never away"


def row(name: str, line: dict[str, Any] | None) -> str:
    if line is None:
        return f"| {FAULTS[name].what} | | **not run** | | |\n"
    where = f"{line['date']}, {line['commit']}"
    if "not_run" in line:
        return f"| {line['what']} | | **not run**: {line['not_run']} | | {where} |\n"
    return f"| {line['what']} | {_ends(line)} | {seen(line)} | {back(line)} | {where} |\n"


def markdown(lines: dict[str, dict[str, Any]]) -> str:
    """The table of the given results, in the order of the matrix."""
    return HEADER + "".join(row(name, lines[name]) for name in FAULTS if name in lines)


def publish(folder: Path) -> None:
    """Write the table into tests/MEASURED.md. Raises Failure for a line that was not held, and without results."""
    lines = read(folder)
    if not lines:
        raise Failure(
            f"{folder / 'matrix.json'} holds no results, and tests/MEASURED.md stays as it is; run: make faults"
        )
    for name, line in lines.items():
        if not ("not_run" in line or line["held"]):
            raise Failure(f"{name} was not held; mend it, then run: make faults FAULTS={name}")
    published.write("faults", HEADER + "".join(row(name, lines.get(name)) for name in FAULTS))
