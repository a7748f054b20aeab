"""The figures of an audit as one SVG: floor and ceiling by category, and how many calls ground truths have.

Guarantees: the picture loads nothing, and text from rows is escaped in it.
"""

from typing import Any

from common.svg import bar, document, text
from policy.model_api import TURNS_WITH_CALLS

LEFT, WIDTH, STEP = 330, 420, 24
WITHIN, BEYOND, FREE = "#2a7", "#c63", "#bbb"


def svg(result: dict[str, Any]) -> str:
    """The whole picture as text."""
    lines, y = [text(10, 24, "Rows by category", weight="bold")], 24
    lines.append(text(LEFT, y, "grey: doing nothing earns 1 · orange: more calls than turns", size=11))
    for name, figures in result["categories"].items():
        y += STEP
        lines += category(y, name.removeprefix("workplace_assistant_"), figures)
    y += 2 * STEP
    lines.append(text(10, y, "Rows by calls of the ground truth", weight="bold"))
    most = max(result["ground_truth_calls"].values())
    for count, rows in result["ground_truth_calls"].items():
        y += STEP
        colour = WITHIN if int(count) <= TURNS_WITH_CALLS else BEYOND
        lines += [text(10, y, count), bar(LEFT, y - 12, WIDTH * rows / most, 15, colour)]
        lines.append(text(LEFT + 6 + WIDTH * rows / most, y, str(rows), size=11))
    return document(LEFT + WIDTH + 90, y + STEP, lines)


def category(y: int, name: str, figures: dict[str, Any]) -> list[str]:
    """A bar as wide as all rows of the category: the floor at its left end, rows over the steps at its right."""
    floor, over = (WIDTH * figures[key] / figures["rows"] for key in ("floor", "over_steps"))
    return [
        text(10, y, name),
        bar(LEFT, y - 12, WIDTH, 15, WITHIN),
        bar(LEFT, y - 12, floor, 15, FREE),
        bar(round(LEFT + WIDTH - over, 1), y - 12, over, 15, BEYOND),
        text(LEFT + WIDTH + 6, y, f"{figures['rows']} rows", size=11),
    ]
