"""The result of an audit: figures of rows and findings as one JSON object, and as tables.

Guarantees: every share is of the rows that were audited, none left out; a row that is broken is in
`faults` by file, line and id, once for each fault. It only counts: the verifier's word is in the
findings (audit_checks.py), what rows are is in row_facts.py.
"""

import statistics
from collections import Counter

from common import terminal
from inputs import row_facts
from inputs.rows import place


def summary(path, numbered, findings, budget):
    """All figures of [(line, row)] and their findings; `budget` in tokens. A dict for JSON."""
    rows = [row for _, row in numbered]
    places = [place(path, line, row) for line, row in numbered]
    long = [name for name, row in zip(places, rows, strict=True) if not row_facts.fits_steps(row)]
    return {
        "floor": share(findings, lambda each: each["nothing"] == 1),
        "ceiling": share(rows, row_facts.fits_steps),
        "over_steps": long,
        "replayed": share(findings, lambda each: each["replayed"] == 1),
        "alterations": alterations(places, findings),
        "categories": categories(rows, findings),
        "ground_truth_calls": {str(n): count for n, count in sorted(Counter(map(_calls, rows)).items())},
        "tools": row_facts.census(rows),
        "prompt_tokens": prompts(places, rows, budget),
        "faults": [
            {"row": name, "fault": text} for name, each in zip(places, findings, strict=True) for text in each["faults"]
        ],
        "rows": [_row(*each) for each in zip(numbered, findings, strict=True)],
    }


def _calls(row):
    return len(row["ground_truth"])


def _row(line_and_row, finding):
    line, row = line_and_row
    kept = {key: finding[key] for key in ("replayed", "nothing", "alteration")}
    return {"line": line, "id": row["id"], "category": row["category"], "calls": _calls(row), **kept}


def share(items, holds):
    """{"rows": how many hold, "share": of all, 0..1}."""
    count = sum(map(holds, items))
    return {"rows": count, "share": count / len(items)}


def alterations(places, findings):
    """How altered ground truths fared: {"outcomes": {outcome: rows}, "impossible": {why: [place]}}."""
    made = [(name, each["alteration"]) for name, each in zip(places, findings, strict=True) if each["alteration"]]
    why = {}
    for name, each in made:
        if each["outcome"] == "impossible":
            why.setdefault(each["why"], []).append(name)
    return {"outcomes": dict(Counter(each["outcome"] for _, each in made)), "impossible": why}


def categories(rows, findings):
    """{category: {"rows", "floor", "over_steps", "calls": ground-truth calls a row in the mean}}."""
    found = {}
    for row, finding in zip(rows, findings, strict=True):
        one = found.setdefault(row["category"], {"rows": 0, "floor": 0, "over_steps": 0, "calls": 0})
        one["rows"] += 1
        one["floor"] += finding["nothing"] == 1
        one["over_steps"] += not row_facts.fits_steps(row)
        one["calls"] += _calls(row)
    return {name: one | {"calls": one["calls"] / one["rows"]} for name, one in sorted(found.items())}


def prompts(places, rows, budget):
    tokens = [row_facts.prompt_tokens(row) for row in rows]
    over = [name for name, count in zip(places, tokens, strict=True) if count > budget]
    spread = {"min": min(tokens), "median": statistics.median(tokens), "max": max(tokens)}
    return spread | {"budget": budget, "over_budget": over, "bytes_per_token": row_facts.BYTES_PER_TOKEN}


def tables(result):
    """The result for a terminal: a list of texts."""
    categories = [
        [name, one["rows"], one["floor"], one["over_steps"], f"{one['calls']:.2f}"]
        for name, one in result["categories"].items()
    ]
    tools = [
        [name, "changes" if name in row_facts.ALTERED else "reads", one["offered"], one["rows"], one["calls"]]
        for name, one in result["tools"].items()
    ]
    return [
        terminal.table(["category", "rows", "floor", "over the steps", "calls a row"], categories),
        terminal.table(["ground-truth calls", "rows"], [[int(n), c] for n, c in result["ground_truth_calls"].items()]),
        terminal.table(["tool", "kind", "offered by", "called by", "calls"], tools),
        "\n".join(remarks(result)),
    ]


def remarks(result):
    """What the tables do not hold, a line each."""
    tokens, floor, ceiling = result["prompt_tokens"], result["floor"], result["ceiling"]
    yield f"floor    doing nothing earns 1 in {floor['rows']} rows ({floor['share']:.1%})"
    over = len(result["over_steps"])
    yield f"ceiling  {ceiling['rows']} rows ({ceiling['share']:.1%}) fit one call a turn; {over} do not"
    for why, rows in result["alterations"]["impossible"].items():
        yield f"no alteration possible in {len(rows)} row(s): {why}"
    if idle := [row for row in result["rows"] if row["nothing"] and row["calls"]]:
        yield f"doing nothing is right in {len(idle)} row(s) that have calls: line(s) {_lines(idle)}"
    fits = f"{len(tokens['over_budget'])} row(s) over" if tokens["over_budget"] else "all within"
    yield (
        f"prompts  {tokens['min']} to {tokens['max']} tokens, {fits} the budget of {tokens['budget']} "
        f"(estimated as bytes of tools and messages / {tokens['bytes_per_token']}: 0 to 2 % above Qwen's own count)"
    )


def _lines(rows):
    return ", ".join(str(row["line"]) for row in rows[:10]) + (", …" if len(rows) > 10 else "")


def relation(twin):
    return "repeats" if twin["same_answer"] else "asks the same, with another ground truth, as"


def line(result):
    """The result line."""
    same = sum(each["same_answer"] for each in result["twins"])
    broken = len({each["row"] for each in result["faults"]})
    return (
        f"Audit done: rows={result['source']['count']} broken={broken} replayed={result['replayed']['rows']} "
        f"altered_refused={result['alterations']['outcomes'].get('refused', 0)} floor={result['floor']['share']:.3f} "
        f"ceiling={result['ceiling']['share']:.3f} repeated={same} contradicting={len(result['twins']) - same} "
        f"over_budget={len(result['prompt_tokens']['over_budget'])}"
    )
