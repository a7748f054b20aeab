"""The prompt file of a run: its rows as the trainer reads them, one JSON object a line.

Guarantees:
- whoever submits a run reads and converts its rows once; the job reads the prompt file alone
- a row or a line that does not fit is refused by file and line
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.failure import Failure
from inputs import rows


def of_rows(path: Path, limit: int = 0) -> list[str]:
    """The prompt file's lines for the first `limit` raw rows (0: all). Raises Failure with file and line."""
    lines = []
    for number, row in rows.read_numbered(path, limit):
        try:
            lines.append(json.dumps(rows.to_relax(row)) + "\n")
        except rows.RowError as error:
            raise Failure(f"{rows.place(path, number, row)}: {error}") from None
    return lines


def read(path: Path) -> list[dict[str, Any]]:
    """Read a prompt file: {"input", "metadata"} of each row. Raises Failure with file and line."""
    prompts = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    prompts.append(_prompt(line, f"{path}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if not prompts:
        raise Failure(f"{path}: holds no rows")
    return prompts


def _prompt(line: str, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise Failure(f"{place}: not JSON") from None
    if not isinstance(row, dict) or "input" not in row or not isinstance(row.get("metadata"), dict):
        raise Failure(f"{place}: not a row of the trainer's, with input and metadata (`make data` converts)")
    if not isinstance(row["metadata"].get("ground_truth"), list):
        raise Failure(f"{place}: metadata.ground_truth is missing or no list")
    return row
