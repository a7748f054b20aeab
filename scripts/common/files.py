"""Files on disk: writing them whole or not at all, hashing them, reading their ends."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from pathlib import Path

from common.failure import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises OSError."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def in_words(place: Path | str, cure: str = "") -> Iterator[None]:
    """Turn an OSError into a Failure: the place, the system's word for the fault, and `cure` as it is."""
    try:
        yield
    except OSError as error:
        raise Failure(f"{place}: {error.strerror}{cure}") from None


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
