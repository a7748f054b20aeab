"""The result of an audit: figures of rows and findings as one JSON object, and as tables.

Guarantees: every share is of all rows that were audited; a broken row is in `faults` by file, line and id, once for
each fault. This file only counts: the verifier's answers are in the findings (audit_checks.py), facts of rows in
row_facts.py.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from common import terminal
from evaluation.audit_checks import Finding
from inputs import row_facts
from inputs.rows import Row, place


def summary(path: Path, numbered: Sequence[tuple[int, Row]], findings: Sequence[Finding], budget: int) -> dict:
    """All figures of [(line, row)] and their findings; `budget` in tokens. A dict for JSON."""
    rows = [row for _, row in numbered]
    places = [place(path, line, row) for line, row in numbered]
    long = [name for name, row in zip(places, rows, strict=True) if not row_facts.fits_steps(row)]
    return {
        "floor": share(findings, lambda finding: finding["nothing"] == 1),
        "ceiling": share(rows, row_facts.fits_steps),
        "over_steps": long,
        "replayed": share(findings, lambda finding: finding["replayed"] == 1),
        "alterations": alterations(places, findings),
        "categories": categories(rows, findings),
        "ground_truth_calls": {str(n): count for n, count in sorted(Counter(map(_calls, rows)).items())},
        "tools": row_facts.census(rows),
        "prompt_tokens": prompts(places, rows, budget),
        "faults": [
            {"row": name, "fault": text}
            for name, finding in zip(places, findings, strict=True)
            for text in finding["faults"]
        ],
        "rows": [
            {"line": line, "id": row["id"], "category": row["category"], "calls": _calls(row)}
            | {key: finding[key] for key in ("replayed", "nothing", "alteration")}
            for (line, row), finding in zip(numbered, findings, strict=True)
        ],
    }


def _calls(row: Row) -> int:
    return len(row["ground_truth"])


def share(items: Sequence, holds: Callable[[Any], bool]) -> dict[str, float]:
    """{"rows": how many hold, "share": of all, 0..1}."""
    count = sum(map(holds, items))
    return {"rows": count, "share": count / len(items)}


def alterations(places: list[str], findings: Sequence[Finding]) -> dict[str, Any]:
    """How altered ground truths fared: {"outcomes": {outcome: rows}, "impossible": {why: [place]}}."""
    outcomes, impossible = Counter(), {}
    for name, finding in zip(places, findings, strict=True):
        if alteration := finding["alteration"]:
            outcomes[alteration["outcome"]] += 1
            if alteration["outcome"] == "impossible":
                impossible.setdefault(alteration["why"], []).append(name)
    return {"outcomes": dict(outcomes), "impossible": impossible}


def categories(rows: Sequence[Row], findings: Sequence[Finding]) -> dict[str, dict[str, float]]:
    """{category: {"rows", "floor", "over_steps", "calls": mean ground-truth calls of a row}}."""
    sums = {}
    for row, finding in zip(rows, findings, strict=True):
        counts = sums.setdefault(row["category"], Counter(rows=0, floor=0, over_steps=0, calls=0))
        counts["rows"] += 1
        counts["floor"] += finding["nothing"] == 1
        counts["over_steps"] += not row_facts.fits_steps(row)
        counts["calls"] += _calls(row)
    return {name: counts | {"calls": counts["calls"] / counts["rows"]} for name, counts in sorted(sums.items())}


def prompts(places: list[str], rows: Sequence[Row], budget: int) -> dict[str, Any]:
    tokens = [row_facts.prompt_tokens(row) for row in rows]
    over = [name for name, count in zip(places, tokens, strict=True) if count > budget]
    spread = {"min": min(tokens), "median": statistics.median(tokens), "max": max(tokens)}
    return spread | {"budget": budget, "over_budget": over, "bytes_per_token": row_facts.BYTES_PER_TOKEN}


def tables(result: dict[str, Any]) -> list[str]:
    """The result for a terminal."""
    by_category = [
        [name, counts["rows"], counts["floor"], counts["over_steps"], f"{counts['calls']:.2f}"]
        for name, counts in result["categories"].items()
    ]
    by_tool = [
        [name, "changes" if name in row_facts.ALTERED else "reads", counts["offered"], counts["rows"], counts["calls"]]
        for name, counts in result["tools"].items()
    ]
    by_calls = [[int(n), count] for n, count in result["ground_truth_calls"].items()]
    return [
        terminal.table(["category", "rows", "floor", "over the steps", "calls a row"], by_category),
        terminal.table(["ground-truth calls", "rows"], by_calls),
        terminal.table(["tool", "kind", "offered by", "called by", "calls"], by_tool),
        "\n".join(remarks(result)),
    ]


def remarks(result: dict[str, Any]) -> Iterator[str]:
    """What the tables do not hold, line by line."""
    tokens, floor, ceiling = result["prompt_tokens"], result["floor"], result["ceiling"]
    yield f"floor    doing nothing earns 1 in {floor['rows']} rows ({floor['share']:.1%})"
    over = len(result["over_steps"])
    yield f"ceiling  {ceiling['rows']} rows ({ceiling['share']:.1%}) fit one call a turn; {over} do not"
    for why, rows in result["alterations"]["impossible"].items():
        yield f"no alteration possible in {len(rows)} row(s): {why}"
    if idle := [str(row["line"]) for row in result["rows"] if row["nothing"] and row["calls"]]:
        lines = ", ".join(idle[:10]) + (", …" if len(idle) > 10 else "")
        yield f"doing nothing is right in {len(idle)} row(s) that have calls: line(s) {lines}"
    fits = f"{len(tokens['over_budget'])} row(s) over" if tokens["over_budget"] else "all within"
    yield (
        f"prompts  {tokens['min']} to {tokens['max']} tokens, {fits} the budget of {tokens['budget']} "
        f"(estimated as bytes of tools and messages / {tokens['bytes_per_token']}: 0 to 2 % above Qwen's own count)"
    )


def line(result: dict[str, Any]) -> str:
    """The result line."""
    same = sum(twin["same_answer"] for twin in result["twins"])
    broken = len({fault["row"] for fault in result["faults"]})
    return (
        f"Audit done: rows={result['source']['count']} broken={broken} replayed={result['replayed']['rows']} "
        f"altered_refused={result['alterations']['outcomes'].get('refused', 0)} floor={result['floor']['share']:.3f} "
        f"ceiling={result['ceiling']['share']:.3f} repeated={same} contradicting={len(result['twins']) - same} "
        f"over_budget={len(result['prompt_tokens']['over_budget'])}"
    )
