"""The file of measured tables, tests/MEASURED.md: commands write its parts, nobody types a figure.

A part stands between `<!-- name: written by `COMMAND` -->` and `<!-- /name -->`. Guarantees: only what
is between is replaced, and the file is whole at any moment.
"""

from __future__ import annotations

from common.failure import Failure
from common.files import write_whole
from common.settings import ROOT

MEASURED = ROOT / "tests" / "MEASURED.md"


def part(text: str, name: str) -> tuple[str, str, str]:
    """(all before the part, the part, all after it). Raises Failure where the file has lost its place."""
    start, end = f"<!-- {name}: written by `", f"<!-- /{name} -->"
    before, found, rest = text.partition(start)
    command, closed, rest = rest.partition("` -->\n")
    inside, ended, after = rest.partition(end)
    if not (found and closed and ended):
        raise Failure(f"{MEASURED} has lost the place of a part, {start}… {end}: git checkout {MEASURED}")
    return before + start + command + closed, inside, end + after


def write(name: str, inside: str) -> None:
    """Replace a part of the file."""
    before, _, after = part(MEASURED.read_text(encoding="utf-8"), name)
    write_whole(MEASURED, before + inside + after)
