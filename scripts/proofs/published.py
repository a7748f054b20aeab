"""The file of measured tables, tests/MEASURED.md, whose parts are written by commands.

A part stands between `<!-- name: written by `COMMAND` -->` and `<!-- /name -->`.

Guarantees:
- only the text between the marks is replaced
- the file is whole at any moment
"""

from __future__ import annotations

from common.failure import Failure
from common.files import write_whole
from common.settings import ROOT

MEASURED = ROOT / "tests" / "MEASURED.md"


def part(text: str, name: str) -> tuple[str, str, str]:
    """(text before the part, the part, text after it). Raises Failure if the file has lost the marks."""
    start, end = f"<!-- {name}: written by `", f"<!-- /{name} -->"
    before, opened, rest = text.partition(start)
    command, closed, rest = rest.partition("` -->\n")
    inside, ended, after = rest.partition(end)
    if not (opened and closed and ended):
        raise Failure(f"{MEASURED} has lost the place of a part, {start}… {end}: git checkout {MEASURED}")
    return before + start + command + closed, inside, end + after


def write(name: str, inside: str) -> None:
    """Replace a part of the file."""
    before, _, after = part(MEASURED.read_text(encoding="utf-8"), name)
    write_whole(MEASURED, before + inside + after)
