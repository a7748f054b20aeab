"""What a folder of rollout dumps has gained since an earlier look at it.

Guarantees: it only reads; samples that lay there before are never counted as new, also where a file is
written anew under an old name; a line that is still being written is read once it is whole; a
file that cannot be read now (a shared file system) is read later.
"""

import hashlib
import json
from contextlib import suppress
from pathlib import Path

MARK_BYTES = 4096
NOTHING = (0, hashlib.sha256().hexdigest())


def marks(folder):
    """{file name: (bytes, hash of the last of them)} of the dumps in a folder, to tell later what was added."""
    found = {}
    for path in Path(folder).glob("*.jsonl"):
        with path.open("rb") as file:
            found[path.name] = _mark(file, path.stat().st_size)
    return found


def _mark(file, size):
    start = max(size - MARK_BYTES, 0)
    file.seek(start)
    return size, hashlib.sha256(file.read(size - start)).hexdigest()


def added_from(file, mark):
    """Where in an open dump begins what was added since `mark`; 0 if the file was written anew."""
    return mark[0] if _mark(file, mark[0]) == tuple(mark) else 0


class DumpReader:
    """Gives what a folder of dumps has gained since `before` (its `marks`)."""

    def __init__(self, folder, before):
        self.folder, self.marks, self.looks = Path(folder), dict(before), {}

    def read(self):
        """What was added: [(file name, whether the file was written anew, its new samples)]; no JSON, no sample."""
        found = []
        for path in sorted(self.folder.glob("*.jsonl")):
            with suppress(OSError):
                look = path.stat()
                if self.looks.get(path.name) != (look.st_ino, look.st_size, look.st_mtime_ns):
                    found.append(self._gained(path))
                    self.looks[path.name] = (look.st_ino, look.st_size, look.st_mtime_ns)
        return [each for each in found if each[1] or each[2]]

    def _gained(self, path):
        mark = self.marks.get(path.name, NOTHING)
        with path.open("rb") as file:
            start = added_from(file, mark)
            file.seek(start)
            lines = file.read()
            end = start + lines.rfind(b"\n") + 1
            self.marks[path.name] = _mark(file, end)
        items = [item for line in lines[: end - start].splitlines() if isinstance(item := _parsed(line), dict)]
        return path.name, start < mark[0], items


def _parsed(line):
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
