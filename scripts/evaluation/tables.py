"""What an evaluation says on the terminal: the running line, the tables, the failures, the result line.

Guarantees: every figure is one of result.json, rounded for reading; a row without samples shows
none. It computes nothing but the shares of counts that stand beside it.
"""

from collections import Counter

from common import terminal

KINDS_SHOWN = 5


def running(rate, failed):
    """The text beside the progress bar."""
    shown = f"pass {interval(rate)}" if rate else "no reward yet"
    return f"{shown}, without reward {failed}" if failed else shown


def interval(rate):
    return f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]" if rate else "none"


def say(result, failures, share):
    """Print the result; `share` is how much of the calls may have come back unparsed without a warning."""
    metrics = result["metrics"]
    for part in (headline(metrics), behaviour(metrics), groups(metrics)):
        terminal.say(part + "\n")
    for line in [*failure_lines(failures), *warnings(metrics, share)]:
        terminal.say(line)
    config = result["config"]
    terminal.say(
        f"evaluation of {config['model_reported']} on {config['split']}: pass rate {interval(metrics['pass_rate'])} "
        f"over {metrics['rows']} rows, {metrics['samples']} of {metrics['expected']} samples, "
        f"failures={result['failures']}"
    )


def headline(metrics):
    lines = [("pass rate, 95 % interval", interval(metrics["pass_rate"]))]
    lines += [(f"pass@{k}", f"{value:.3f}") for k, value in metrics["pass_at"].items() if k != "1"]
    lines += [(f"pass^{k}", f"{value:.3f}") for k, value in metrics["pass_all"].items() if k != "1"]
    for name, words in (("floor", "floor (doing nothing earns 1)"), ("ceiling", "ceiling (fits the steps)")):
        if bound := metrics.get(name):
            lines.append((words, f"{bound['share']:.3f} ({bound['rows']} rows)"))
    return terminal.table(["result", "value"], lines)


def behaviour(metrics):
    samples, counts = metrics["samples"], metrics["behaviour"]
    lines = [(name.replace("_", " "), count, each(count, samples)) for name, count in counts.items()]
    lines += [(f"truncated, {reason}", count, each(count, samples)) for reason, count in metrics["truncated"].items()]
    if told := metrics["tokens"]:
        for name in ("input_tokens", "output_tokens"):
            lines.append((name.replace("_", " "), told[name], each(told[name], told["samples"])))
    return terminal.table(["behaviour", "sum", "a sample"], lines)


def each(count, samples):
    return f"{count / samples:.3f}" if samples else "none"


def groups(metrics):
    lines = [(name.removeprefix("workplace_assistant_"), one) for name, one in metrics["categories"].items()]
    by_calls = metrics["ground_truth_calls"]
    lines += [(f"ground truth of {count} calls", by_calls[count]) for count in sorted(by_calls, key=int)]
    shown = [(name, one["rows"], one["samples"], interval(one["pass_rate"])) for name, one in lines]
    return terminal.table(["rows by", "rows", "samples", "pass rate"], shown)


def failure_lines(failures):
    """The commonest reasons for samples without a reward."""
    kinds = Counter(reason(item["error"] or {}) for item in failures)
    return [f"without a reward: {count} samples: {text}" for text, count in kinds.most_common(KINDS_SHOWN)]


def reason(error):
    return " ".join(str(error[name]) for name in ("code", "type", "cause") if error.get(name))[:300] or "unknown"


def warnings(metrics, share):
    """A line if the endpoint's parsing, not the policy, may have cost more than `share` of the calls."""
    counts = metrics["behaviour"]
    lost = counts["invalid_calls"] + counts["calls_left_in_text"]
    asked = counts["tool_calls"] + counts["calls_left_in_text"]
    if not asked or lost <= share * asked:
        return []
    return [
        f"warning: {lost} of {asked} tool calls ({lost / asked:.1%}) came back unparsed: {counts['invalid_calls']} "
        f"with arguments that are no JSON object, {counts['calls_left_in_text']} left in the text; they cost rewards "
        "that the policy may have earned; check the endpoint's tool-call parser"
    ]
