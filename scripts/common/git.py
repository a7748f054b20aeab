"""Parts of the README that a command writes, and which commit it measured.

A part stands between `<!-- name: written by `COMMAND` -->` and `<!-- /name -->`. Guarantees: only what
is between is replaced, and the file is whole at any moment.
"""

import os
import subprocess
from contextlib import suppress

from common.settings import ROOT
from common.terminal import Failure

README = ROOT / "README.md"


def part(text, name):
    """(all before the part, the part, all after it) of README text. Raises Failure where it has lost its place."""
    start, end = f"<!-- {name}: written by `", f"<!-- /{name} -->"
    before, found, rest = text.partition(start)
    command, closed, rest = rest.partition("` -->\n")
    inside, ended, after = rest.partition(end)
    if not (found and closed and ended):
        raise Failure(f"{README} has lost the place of a part, {start}… {end}: git checkout README.md")
    return before + start + command + closed, inside, end + after


def write(name, inside):
    """Replace a part of the README."""
    before, _, after = part(README.read_text(), name)
    beside = README.with_suffix(".part")
    beside.write_text(before + inside + after)
    os.replace(beside, README)


def commit():
    """The clone's commit, with a `+` where files differ from it."""
    with suppress(OSError, subprocess.CalledProcessError):
        git = ["git", "-C", str(ROOT)]
        found = subprocess.run([*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
        return found.stdout.strip() + ("+" if dirty.stdout.strip() else "")
    return "unknown"
