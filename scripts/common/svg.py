"""The few shapes our plots are made of, as lines of SVG. They stand alone: no font, script or link is loaded."""

from xml.sax.saxutils import escape

from common import failure

# No characters to XML, beyond those that no terminal takes either.
NO_XML = dict.fromkeys((0xFFFE, 0xFFFF), "\ufffd")


def document(width, height, lines):
    """The whole picture as text; `width` and `height` in pixels."""
    size = f'width="{width}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>"]) + "\n"


def text(x, y, content, size=13, weight="normal"):
    shown = escape(failure.printable(content).translate(NO_XML))
    return f'<text x="{x:.0f}" y="{y}" font-size="{size}" font-weight="{weight}">{shown}</text>'


def bar(x, y, width, height, colour):
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{height}" fill="{colour}"/>'
