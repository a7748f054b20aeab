"""What a stage says: progress on a terminal, stage lines, tables, the result line, the one-line error.

Guarantees: results go to stdout, progress and errors to stderr; progress that is redrawn
appears only on a terminal, so that a log file holds one line a stage; `run` turns a Failure
into one line and exit status 1, never a traceback, and begins nothing where stdout is closed; words
of others (an endpoint's answer, an engine's error) move no cursor and colour nothing. It formats; it
decides nothing.
"""

import errno
import os
import signal
import sys
import time
from contextlib import contextmanager

from common.failure import Failure, printable

# What may befall any stage that writes, and its cure.
UNWRITABLE = {
    errno.ENOSPC: "the disk is full; free some space, or choose another RUN_DIR or DATA_ROOT",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another RUN_DIR or DATA_ROOT",
    errno.EROFS: "the file system is read-only; choose another RUN_DIR or DATA_ROOT",
    errno.ENOTDIR: "a file is in its way; choose another RUN_DIR or DATA_ROOT",
    errno.EACCES: "permission denied; choose another RUN_DIR or DATA_ROOT, or change its owner",
}


def run(main):
    """Call a stage's `main()` and exit with what it returns; the end of every script.

    SIGTERM unwinds like Ctrl-C, so that what a stage began is undone.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    need_streams()
    # A locale that has no word for a character must not end a stage.
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


def need_streams():
    """Refuse to begin where the caller closed stdout: the result would be lost. Closed, stderr is only quiet."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process runs
    if sys.stdout is None:
        print("error: stdout is closed; send it to a file or to /dev/null", file=sys.stderr)
        sys.exit(1)


def say(line):
    """Print a result line to stdout."""
    clear_line()
    print(printable(line), flush=True)


def redraw(line):
    """Replace the current line on a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{printable(line)}", end="", file=sys.stderr, flush=True)


def clear_line():
    redraw("")


class Stage:
    """A stage in progress: `detail(text)` redraws what it is doing; `seconds` once it ended."""

    def __init__(self, name):
        self.name = name
        self.seconds = None
        self._start = time.monotonic()

    def elapsed(self):
        return time.monotonic() - self._start

    def detail(self, text):
        redraw(f"  ..  {self.name:<24} {self.elapsed():6.1f} s  {text}")

    def end(self, ok, text=""):
        self.seconds = self.elapsed()
        self._tell(" ok " if ok else "FAIL", text)

    def interrupt(self):
        """End it by a signal, which is no finding."""
        self.seconds = self.elapsed()
        self._tell(" -- ", "interrupted")

    def _tell(self, mark, text):
        say(f"[{mark}] {self.name:<24} {self.seconds:6.1f} s  {text}".rstrip())


@contextmanager
def stage(name):
    """Time a stage and print its line at the end; `stage.note` (optional) is put on that line."""
    current = Stage(name)
    current.note = ""
    current.detail("")
    try:
        yield current
    except (KeyboardInterrupt, SystemExit):
        current.interrupt()
        raise
    except BaseException:
        current.end(False)
        raise
    current.end(True, current.note)


class Bar:
    """Progress over `total` items with rate and time left, on a terminal only."""

    def __init__(self, label, total):
        self.label, self.total, self.done = label, total, 0
        self._start = time.monotonic()

    def step(self, count=1, text=""):
        self.done += count
        elapsed = time.monotonic() - self._start
        left = elapsed / self.done * (self.total - self.done) if self.done else 0.0
        width = 24
        filled = width * self.done // max(self.total, 1)
        bar = "#" * filled + "-" * (width - filled)
        redraw(f"  {self.label} [{bar}] {self.done}/{self.total} {elapsed:.0f} s, {left:.0f} s left  {text}")


def table(headers, rows):
    """Format rows as an aligned table; numbers to the right. Returns the text."""
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
