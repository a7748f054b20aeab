"""What the samples of an evaluation say: rates with intervals, pass@k, pass^k, and how the policy behaved. Pure.

Formulas, k successes among n samples of a row, m rows, p the share of all samples that passed:

- Interval, 95 %: Wilson's score interval (1927) with the effective number of samples n / deff.
  deff is the design effect: the variance of p with rows as clusters,
  m/(m-1) * sum((k_i - p n_i)^2) / (sum n_i)^2 (the ratio estimator's, as in Cochran's "Sampling
  Techniques" and Miller's "Adding Error Bars to Evals"), over p(1-p)/(n-1), and never below 1.
  With one sample a row it is 1, and the interval is Wilson's own. Where no sample or every one
  passed, or there is one row, nothing can be learned of deff: each row counts once.
- pass@k = mean over rows of 1 - C(n-k_i, k) / C(n, k), the unbiased estimator of Chen et al. (2021).
- pass^k = mean over rows of C(k_i, k) / C(n, k), all of k tries pass (Yao et al., tau-bench, 2024).
  Both over the rows that have k samples at least.

A sample without a reward is in none of these: it says nothing about the policy.
"""

import json
import math
import re
import statistics
from collections import Counter
from contextlib import suppress

Z = statistics.NormalDist().inv_cdf(0.975)
PASSED = 1.0
# How a tool's output begins that tells of a fault of its call; the agent itself answers with "error" or "detail".
TOOL_ERROR = "Error executing tool "
# How models write a call that nobody parses: Qwen and Hermes, Mistral, Llama, Qwen3-Coder, plain JSON.
CALL_AS_TEXT = re.compile(r'</?tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|<function=|"(arguments|parameters)"\s*:')
COUNTED = (
    "turns", "tool_calls", "tool_errors", "invalid_calls", "unknown_calls", "incomplete_calls", "calls_left_in_text"
)  # fmt: skip
SHOWN_K = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


def wilson(passed, samples):
    """Wilson's interval for `passed` of `samples`, both may be fractions: (low, high)."""
    share, squared = passed / samples, Z * Z
    centre = (share + squared / (2 * samples)) / (1 + squared / samples)
    half = Z / (1 + squared / samples) * math.sqrt(share * (1 - share) / samples + squared / (4 * samples**2))
    # Rounding must not take the ends off 0 and 1.
    return (0.0 if passed == 0 else centre - half), (1.0 if passed == samples else centre + half)


def design_effect(rows):
    """How much more the share varies than if all samples were of rows of their own; `rows`: [(passed, samples)]."""
    passed, samples = map(sum, zip(*rows, strict=True))
    share = passed / samples
    if len(rows) == 1 or passed in (0, samples):
        return samples / len(rows)
    spread = sum((row_passed - share * row_samples) ** 2 for row_passed, row_samples in rows)
    clustered = len(rows) / (len(rows) - 1) * spread / samples**2
    return max(1.0, clustered / (share * (1 - share) / (samples - 1)))


def rate(rows):
    """{"value", "low", "high"} of the share that passed, None without rows; `rows`: [(passed, samples)]."""
    if not rows:
        return None
    passed, samples = map(sum, zip(*rows, strict=True))
    effective = samples / design_effect(rows)
    low, high = wilson(passed / samples * effective, effective)
    return {"value": passed / samples, "low": low, "high": high}


def pass_at(passed, samples, k):
    """Chance that one of `k` drawn of a row's samples passed."""
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def pass_all(passed, samples, k):
    """Chance that all of `k` drawn of a row's samples passed."""
    return math.comb(passed, k) / math.comb(samples, k)


def by_k(rows, chance):
    """{k: mean over rows of `chance(passed, samples, k)`} for the k that a row can show; keys are text, for JSON."""
    most = max((samples for _, samples in rows), default=0)
    shown = sorted({k for k in SHOWN_K if k <= most} | ({most} if most else set()))
    return {str(k): statistics.fmean(chance(p, n, k) for p, n in rows if n >= k) for k in shown}


def per_row(samples):
    """[(passed, samples)] of the rows that have a sample, in the order of the rows."""
    found = {}
    for item in samples:
        passed, count = found.get(item["row"], (0, 0))
        found[item["row"]] = passed + (item["reward"] >= PASSED), count + 1
    return [found[row] for row in sorted(found)]


def grouped(samples, key):
    """{key as text: {"rows", "samples", "pass_rate"}}, the keys in order."""
    groups = {}
    for item in samples:
        groups.setdefault(key(item), []).append(item)
    return {str(name): _group(groups[name]) for name in sorted(groups)}


def _group(samples):
    rows = per_row(samples)
    return {"rows": len(rows), "samples": len(samples), "pass_rate": rate(rows)}


# --- behaviour -----------------------------------------------------------------------------


def arguments_of(call):
    """The arguments of a function call item as an object, or None if they are no JSON text of one."""
    with suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(call.get("arguments"))
        return arguments if isinstance(arguments, dict) else None
    return None


def text_of(items):
    """The text of all messages among items."""
    parts = [part for item in items if item.get("type") == "message" for part in _parts(item.get("content"))]
    return " ".join(str(part.get("text") or "") for part in parts if isinstance(part, dict))


def _parts(content):
    """The parts of a message's content, which may be a bare text."""
    if isinstance(content, str):
        return [{"text": content}]
    return content if isinstance(content, list) else []


def is_tool_error(output):
    """Whether a tool's output (text) tells that its call was not carried out."""
    with suppress(ValueError, TypeError, RecursionError):
        told = json.loads(output)
        return isinstance(told, dict) and (
            not told.keys().isdisjoint(("error", "detail")) or str(told.get("output")).startswith(TOOL_ERROR)
        )
    return False


def behaviour(sample, required):
    """Counts over one sample's trajectory; `required`: {tool name: names of the arguments it must have}."""
    calls = [item for item in sample["output"] if item.get("type") == "function_call"]
    outputs = [item for item in sample["output"] if item.get("type") == "function_call_output"]
    arguments = [arguments_of(call) for call in calls]
    known = [
        (given, required[call["name"]])
        for call, given in zip(calls, arguments, strict=True)
        if call["name"] in required
    ]
    return {
        "turns": sample["metrics"].get("model_calls", 0),
        "tool_calls": len(calls),
        "tool_errors": sum(is_tool_error(item.get("output")) for item in outputs),
        "invalid_calls": arguments.count(None),
        "unknown_calls": len(calls) - len(known),
        "incomplete_calls": sum(given is not None and not set(names) <= given.keys() for given, names in known),
        "calls_left_in_text": int(bool(CALL_AS_TEXT.search(text_of(sample["output"])))),
    }


def required_arguments(tools):
    """{tool name: names of the arguments it must have} of a row's tools."""
    return {tool["name"]: _required(tool.get("parameters")) for tool in tools or []}


def _required(parameters):
    # A row's schema is anybody's: what names no argument requires none.
    names = parameters.get("required") if isinstance(parameters, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def behaviour_sums(samples, tools_of):
    """Sums over all samples; `tools_of(row index)` gives that row's tools."""
    total = Counter(dict.fromkeys(COUNTED, 0))
    for item in samples:
        total.update(behaviour(item, required_arguments(tools_of(item["row"]))))
    return dict(total)


def tokens(samples):
    """{"input_tokens", "output_tokens", "samples"} of the samples whose endpoint reported them, or None."""
    told = [item["usage"] for item in samples if item["usage"]]
    if not told:
        return None
    sums = {name: sum(usage.get(name) or 0 for usage in told) for name in ("input_tokens", "output_tokens")}
    return sums | {"samples": len(told)}


def truncations(samples):
    """{why: how many} of the samples that were cut short."""
    cut = [item["error"] or {} for item in samples if item["status"] == "truncated"]
    return dict(sorted(Counter(error.get("type") or error.get("code") or "unknown" for error in cut).items()))


def summary(samples, expected, tools_of):
    """All figures of an evaluation's samples; `expected` is how many there would be without failures."""
    rows = per_row(samples)
    return {
        "rows": len(rows),
        "samples": len(samples),
        "expected": expected,
        "pass_rate": rate(rows),
        "mean_reward": statistics.fmean(item["reward"] for item in samples) if samples else None,
        "pass_at": by_k(rows, pass_at),
        "pass_all": by_k(rows, pass_all),
        "categories": grouped(samples, lambda item: str(item["category"])),
        "ground_truth_calls": grouped(samples, lambda item: len(item["ground_truth"])),
        "behaviour": behaviour_sums(samples, tools_of),
        "truncated": truncations(samples),
        "tokens": tokens(samples),
    }
