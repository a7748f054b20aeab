"""The figures of an audit as one SVG: floor and ceiling by category, and how many calls ground truths have."""

from typing import Any

from common.svg import Line, plot
from policy.model_api import TURNS_WITH_CALLS

WITHIN, BEYOND, FREE = "#2a7", "#c63", "#bbb"


def svg(result: dict[str, Any]) -> str:
    """The whole picture as text."""
    calls = result["ground_truth_calls"]
    most = max(calls.values())
    by_calls = [
        Line(count, [(0, rows / most, WITHIN if int(count) <= TURNS_WITH_CALLS else BEYOND)], str(rows))
        for count, rows in calls.items()
    ]
    by_category = [category(*item) for item in result["categories"].items()]
    title = "Rows by category (grey: doing nothing earns 1; orange: more calls than turns)"
    return plot([(title, by_category), ("Rows by calls of the ground truth", by_calls)])


def category(name: str, figures: dict[str, Any]) -> Line:
    """A bar as wide as all rows of the category: the floor at its left end, rows over the steps at its right."""
    floor, over = (figures[key] / figures["rows"] for key in ("floor", "over_steps"))
    bars = [(0, 1, WITHIN), (0, floor, FREE), (1 - over, over, BEYOND)]
    return Line(name.removeprefix("workplace_assistant_"), bars, f"{figures['rows']} rows")
