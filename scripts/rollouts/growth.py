"""What a folder of rollout dumps has gained since it was marked.

Guarantees:
- it only reads
- samples that were there before never count as new, even if a file is written anew under its old name
- a line that is still being written is read once it is whole
- a file that cannot be read now (on a shared file system) is read later
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MARK_BYTES = 4096
# (bytes of a file, hash of the last of them)
Mark = tuple[int, str]
NOTHING: Mark = (0, hashlib.sha256().hexdigest())


def marks(folder: Path) -> dict[str, Mark]:
    """{file name: its mark} of the dumps in a folder, to tell later what was added."""
    by_name = {}
    for path in folder.glob("*.jsonl"):
        with path.open("rb") as file:
            by_name[path.name] = _mark(file, path.stat().st_size)
    return by_name


def _mark(file: BinaryIO, size: int) -> Mark:
    start = max(size - MARK_BYTES, 0)
    file.seek(start)
    return size, hashlib.sha256(file.read(size - start)).hexdigest()


def added_from(file: BinaryIO, mark: Mark) -> int:
    """The offset in an open dump of what was added since `mark`; 0 if the file was written anew."""
    return mark[0] if _mark(file, mark[0]) == tuple(mark) else 0


class DumpReader:
    """Reads what a folder of dumps has gained since `before`, its marks."""

    def __init__(self, folder: Path, before: dict[str, Mark]):
        self.folder, self.marks = folder, dict(before)
        self.versions: dict[str, tuple[int, int, int]] = {}

    def read(self) -> list[tuple[str, bool, list[dict[str, Any]]]]:
        """[(file name, whether the file was written anew, its new samples)]; a line that is no JSON is no sample."""
        gains = []
        for path in sorted(self.folder.glob("*.jsonl")):
            with suppress(OSError):
                stat = path.stat()
                version = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
                if self.versions.get(path.name) != version:
                    gains.append(self._gained(path))
                    self.versions[path.name] = version
        return [(name, anew, items) for name, anew, items in gains if anew or items]

    def _gained(self, path: Path) -> tuple[str, bool, list[dict[str, Any]]]:
        mark = self.marks.get(path.name, NOTHING)
        with path.open("rb") as file:
            start = added_from(file, mark)
            file.seek(start)
            lines = file.read()
            end = start + lines.rfind(b"\n") + 1
            self.marks[path.name] = _mark(file, end)
        items = [item for line in lines[: end - start].splitlines() if isinstance(item := _parsed(line), dict)]
        return path.name, start < mark[0], items


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
