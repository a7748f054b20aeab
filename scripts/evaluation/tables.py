"""What an evaluation prints: the progress line, the tables, the failures, the result line.

Guarantees: every figure is from result.json, rounded for reading; a row without samples shows none. Only the shares of
counts that stand beside them are computed here.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from common import terminal
from evaluation.metrics import Rate
from rollouts.samples import Sample

KINDS_SHOWN = 5


def running(rate: Rate | None, failed: int, waiting: int = 0) -> str:
    """The text beside the progress bar."""
    text = f"pass {interval(rate)}" if rate else "no reward yet"
    text += f", without reward {failed}" if failed else ""
    return f"{text}, {waiting} wait for the endpoint's rate limit" if waiting else text


def interval(rate: Rate | None) -> str:
    return f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]" if rate else "none"


def say(result: dict[str, Any], failures: Iterable[Sample], share: float) -> None:
    """Print the result; `share` is the share of calls that may come back unparsed without a warning."""
    config, metrics = result["config"], result["metrics"]
    for table in (headline(metrics), behaviour(metrics), groups(metrics)):
        terminal.say(table + "\n")
    kinds = Counter(reason(item["error"] or {}) for item in failures)
    for text, count in kinds.most_common(KINDS_SHOWN):
        terminal.say(f"without a reward: {count} samples: {text}")
    for line in warnings(metrics, share):
        terminal.say(line)
    terminal.say(
        f"evaluation of {config['model_reported']} on {config['split']}: pass rate {interval(metrics['pass_rate'])} "
        f"over {metrics['rows']} rows, {metrics['samples']} of {metrics['expected']} samples, "
        f"failures={result['failures']}"
    )


def headline(metrics: dict[str, Any]) -> str:
    lines = [("pass rate, 95 % interval", interval(metrics["pass_rate"]))]
    for name, shares in (("pass@", metrics["pass_at"]), ("pass^", metrics["pass_all"])):
        lines += [(f"{name}{k}", f"{value:.3f}") for k, value in shares.items() if k != "1"]
    for name, words in (("floor", "floor (doing nothing earns 1)"), ("ceiling", "ceiling (fits the steps)")):
        if bound := metrics.get(name):
            lines.append((words, f"{bound['share']:.3f} ({bound['rows']} rows)"))
    return terminal.table(["result", "value"], lines)


def behaviour(metrics: dict[str, Any]) -> str:
    counts = [(name.replace("_", " "), count, metrics["samples"]) for name, count in metrics["behaviour"].items()]
    counts += [(f"truncated, {reason}", count, metrics["samples"]) for reason, count in metrics["truncated"].items()]
    if tokens := metrics["tokens"]:
        counts += [(f"{kind} tokens", tokens[f"{kind}_tokens"], tokens["samples"]) for kind in ("input", "output")]
    lines = [(name, count, f"{count / samples:.3f}" if samples else "none") for name, count, samples in counts]
    return terminal.table(["behaviour", "sum", "a sample"], lines)


def groups(metrics: dict[str, Any]) -> str:
    rows = [(name.removeprefix("workplace_assistant_"), group) for name, group in metrics["categories"].items()]
    by_calls = metrics["ground_truth_calls"]
    rows += [(f"ground truth of {count} calls", by_calls[count]) for count in sorted(by_calls, key=int)]
    lines = [(name, group["rows"], group["samples"], interval(group["pass_rate"])) for name, group in rows]
    return terminal.table(["rows by", "rows", "samples", "pass rate"], lines)


def reason(error: dict[str, Any]) -> str:
    return " ".join(str(error[name]) for name in ("code", "type", "cause") if error.get(name))[:300] or "unknown"


def warnings(metrics: dict[str, Any], share: float) -> list[str]:
    """A line if more than `share` of the calls came back unparsed: the endpoint may be to blame, not the policy."""
    counts = metrics["behaviour"]
    lost = counts["invalid_calls"] + counts["calls_left_in_text"] + counts["damaged_names"]
    tried = counts["tool_calls"] + counts["calls_left_in_text"]
    if not tried or lost <= share * tried:
        return []
    return [
        f"warning: {lost} of {tried} tool calls ({lost / tried:.1%}) came back unparsed: {counts['invalid_calls']} "
        f"with arguments that are no JSON object, {counts['calls_left_in_text']} left in the text, "
        f"{counts['damaged_names']} with a tool's name and something around it; they cost rewards "
        "that the policy may have earned; check the endpoint's tool-call parser"
    ]
