"""The few shapes of our plots as lines of SVG.

Guarantees: a picture loads no font, script or link; a text cannot break its markup.
"""

from collections.abc import Iterable
from xml.sax.saxutils import escape

from common import failure

# XML excludes these two as well as the control characters.
NO_XML: dict[int, str] = dict.fromkeys((0xFFFE, 0xFFFF), "\ufffd")


def document(width: int, height: int, lines: Iterable[str]) -> str:
    """The whole picture as text; `width` and `height` in pixels."""
    size = f'width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>"]) + "\n"


def text(x: float, y: float, content: object, size: int = 13, weight: str = "normal") -> str:
    shown = escape(failure.printable(content).translate(NO_XML))
    return f'<text x="{x:.0f}" y="{y}" font-size="{size}" font-weight="{weight}">{shown}</text>'


def bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'
