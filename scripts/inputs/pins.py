"""The lock file of the task rows (data/dataset.lock.json): which bytes each split must have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from common import settings
from common.failure import Failure
from inputs import hub

LOCK = settings.ROOT / "data" / "dataset.lock.json"
PUBLISHED = ("train", "validation")


class Lock(TypedDict):
    """The dataset's repository, the commit, and for each split its `file`, the file's `sha256` and its `rows`."""

    repo_id: str
    revision: str
    splits: dict[str, dict[str, Any]]


def read_lock(path: Path) -> Lock:
    """Read and check a lock file. Raises Failure."""
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
        for pin in (lock["splits"][split] for split in (*PUBLISHED, "example")):
            if not (isinstance(pin["rows"], int) and isinstance(pin["file"], str) and len(pin["sha256"]) == 64):
                raise ValueError("a split without file, sha256 and rows")
        if not (isinstance(lock["repo_id"], str) and hub.COMMIT.fullmatch(lock["revision"])):
            raise ValueError("no repo_id or no full commit as revision")
        return lock
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; git checkout data/{LOCK.name} brings it back") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path}: not a dataset lock ({error}); git checkout data/{LOCK.name} brings it back") from None
