"""Files on disk: writing them whole or not at all, hashing them, reading their ends."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

BLOCK_BYTES = 1 << 20
TAIL_BYTES = 20_000


def write_whole(path: Path, content: str | bytes | Iterable[str]) -> None:
    """Write a file in one step: it appears whole, or what was there stays. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if isinstance(content, bytes):
            part.write_bytes(content)
        else:
            with part.open("w", encoding="utf-8") as file:
                file.writelines([content] if isinstance(content, str) else content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def tail(path: Path, lines: int = 15) -> str:
    """The last lines of a log, indented, as a failed stage shows them."""
    if not path.exists():
        return f"    (no {path})"
    with open(path, "rb") as log:
        log.seek(max(0, path.stat().st_size - TAIL_BYTES))
        text = log.read().decode(errors="replace")
    return "\n".join(f"    {line[:300]}" for line in text.splitlines()[-lines:])


def sha256_of(path: Path) -> str | None:
    """Hex sha256 of a file's bytes; None if there is no such file."""
    # hashlib.file_digest needs Python 3.11; the doctor runs from 3.9 on.
    content = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for block in iter(lambda: file.read(BLOCK_BYTES), b""):
                content.update(block)
    except FileNotFoundError:
        return None
    return content.hexdigest()
