"""Our plots as SVG: titled sections of horizontal bars, each line with its label.

Guarantees: a picture loads no font, script or link; a text cannot break its markup.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from common import failure

LABEL, BAR, BESIDE, STEP, GAP = 330, 520, 130, 17, 40
# XML excludes these two as well as the control characters.
NO_XML: dict[int, str] = dict.fromkeys((0xFFFE, 0xFFFF), "\ufffd")


class Line(NamedTuple):
    """A label, bars as (start, width, colour) in shares of the full width, and a note beside the last of them."""

    label: str
    bars: Sequence[tuple[float, float, str]]
    note: str


def plot(sections: Iterable[tuple[str, Iterable[Line]]]) -> str:
    """The whole picture of [(title, lines)] as text."""
    shapes, y = [], 0
    for title, lines in sections:
        y += GAP
        shapes.append(_text(10, y, title, "bold"))
        for label, bars, note in lines:
            y += STEP
            shapes.append(_text(10, y, label))
            for start, width, colour in bars:
                place = f'x="{LABEL + BAR * start:.1f}" y="{y - 11}" width="{BAR * width:.1f}" height="13"'
                shapes.append(f'<rect {place} fill="{colour}"/>')
            shapes.append(_text(LABEL + 6 + BAR * max((start + width for start, width, _ in bars), default=0), y, note))
    size = f'width="{LABEL + BAR + BESIDE}" height="{y + GAP}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *shapes, "</svg>"]) + "\n"


def _text(x: float, y: float, content: str, weight: str = "normal") -> str:
    shown = escape(failure.printable(content).translate(NO_XML))
    return f'<text x="{x:.0f}" y="{y}" font-weight="{weight}">{shown}</text>'
