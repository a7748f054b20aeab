"""What a stage prints: progress, stage lines, tables, the result line, the one-line error.

Guarantees:
- results go to stdout, progress and errors to stderr
- progress is redrawn on a terminal only, so that a log file holds one line a stage
- `run` turns a Failure into one line and exit status 1, and starts nothing if stdout is closed
- text of others (an endpoint's answer, an engine's error) moves no cursor and colours nothing
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from common.failure import Failure, printable

# Faults that any stage which writes may meet, and their cures.
UNWRITABLE = {
    errno.ENOSPC: "the disk is full; free some space, or choose another RUN_DIR or DATA_ROOT",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another RUN_DIR or DATA_ROOT",
    errno.EROFS: "the file system is read-only; choose another RUN_DIR or DATA_ROOT",
    errno.ENOTDIR: "a file is in its way; choose another RUN_DIR or DATA_ROOT",
    errno.EACCES: "permission denied; choose another RUN_DIR or DATA_ROOT, or change its owner",
}


def run(main: Callable[[], int | None]) -> None:
    """Call a stage's `main()` and exit with what it returns; every program ends with this call.

    SIGTERM unwinds like Ctrl-C, so that a stage undoes what it began.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    _need_streams()
    # A character that the locale cannot encode must not end a stage.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.exit(main() or 0)
    except Failure as failure:
        clear_line()
        print(f"error: {printable(failure)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        clear_line()
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        clear_line()
        print(f"error: {error.filename or 'a file'} cannot be used: {UNWRITABLE[error.errno]}", file=sys.stderr)
        sys.exit(1)


def _need_streams():
    """Exit if stdout is closed, since the result would be lost; a closed stderr only stays silent."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process runs
    if sys.stdout is None:
        print("error: stdout is closed; send it to a file or to /dev/null", file=sys.stderr)
        sys.exit(1)


def say(line: object) -> None:
    """Print a result line to stdout."""
    clear_line()
    print(printable(line), flush=True)


def redraw(line: object) -> None:
    """Replace the current line on a terminal; do nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{printable(line)}", end="", file=sys.stderr, flush=True)


def clear_line() -> None:
    redraw("")


class Stage:
    """A stage in progress: `detail(text)` redraws what it is doing, `note` goes on its last line."""

    def __init__(self, name: str):
        self.name, self.note = name, ""
        self._start = time.monotonic()

    def detail(self, text: str) -> None:
        redraw(f"  ..  {self._line(text)}")

    def end(self, mark: str, text: str = "") -> None:
        say(f"[{mark}] {self._line(text)}".rstrip())

    def _line(self, text):
        return f"{self.name:<24} {time.monotonic() - self._start:6.1f} s  {text}"


@contextmanager
def stage(name: str) -> Iterator[Stage]:
    """Time a stage and print its line at the end."""
    current = Stage(name)
    current.detail("")
    try:
        yield current
    except (KeyboardInterrupt, SystemExit):
        current.end(" -- ", "interrupted")
        raise
    except BaseException:
        current.end("FAIL")
        raise
    current.end(" ok ", current.note)


class Bar:
    """Progress over `total` items with rate and time left, on a terminal only."""

    def __init__(self, label: str, total: int):
        self.label, self.total, self.done = label, total, 0
        self._start = time.monotonic()

    def step(self, count: int = 1, text: str = "") -> None:
        self.done += count
        elapsed = time.monotonic() - self._start
        left = elapsed / self.done * (self.total - self.done) if self.done else 0.0
        width = 24
        filled = width * self.done // max(self.total, 1)
        bar = "#" * filled + "-" * (width - filled)
        redraw(f"  {self.label} [{bar}] {self.done}/{self.total} {elapsed:.0f} s, {left:.0f} s left  {text}")


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """The text of an aligned table, numbers to the right."""
    cells = [[str(value) for value in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(headers), *cells]) for i in range(len(headers))]
    numeric = [
        all(isinstance(row[i], (int, float)) and not isinstance(row[i], bool) for row in rows)
        for i in range(len(headers))
    ]

    def line(values):
        aligned = (v.rjust(w) if n else v.ljust(w) for v, w, n in zip(values, widths, numeric, strict=True))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(headers), line(["-" * width for width in widths]), *map(line, cells)])
