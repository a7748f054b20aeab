"""The figures of an evaluation's samples: rates with intervals, pass@k, pass^k, and how the policy behaved. Pure.

Formulas, k successes among n samples of a row, m rows, p the share of all samples that passed:

- Interval, 95 %: Wilson's score interval (1927) with the effective number of samples n / deff. deff is the design
  effect: the variance of p with rows as clusters, m/(m-1) * sum((k_i - p n_i)^2) / (sum n_i)^2 (the ratio estimator's,
  as in Cochran's "Sampling Techniques" and Miller's "Adding Error Bars to Evals"), over p(1-p)/(n-1), at least 1. With
  one sample a row it is 1, and the interval is Wilson's own. Where no sample or every sample passed, or there is one
  row, the samples say nothing of deff: each row counts once.
- pass@k = mean over rows of 1 - C(n-k_i, k) / C(n, k), the unbiased estimator of Chen et al. (2021).
- pass^k = mean over rows of C(k_i, k) / C(n, k), all of k tries pass (Yao et al., tau-bench, 2024).
  Both over the rows that have at least k samples.

Guarantees: a sample without a reward is in no figure, since it says nothing about the policy.
"""

import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypedDict

Z = statistics.NormalDist().inv_cdf(0.975)
PASSED = 1.0
# Tools begin so when a call fails; the agent itself answers with "error" or "detail".
TOOL_ERROR = "Error executing tool "
# How models write a call that nobody parses: Qwen and Hermes, Mistral, Llama, Qwen3-Coder, plain JSON.
CALL_AS_TEXT = re.compile(r'</?tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|<function=|"(arguments|parameters)"\s*:')
# Marks of a chat template, which no tool's name holds.
SPECIAL = re.compile(r"<\|.*?\|>|</?[a-z_]+>")
COUNTED = (
    "turns", "tool_calls", "tool_errors", "invalid_calls", "unknown_calls", "damaged_names", "incomplete_calls",
    "calls_left_in_text",
)  # fmt: skip
SHOWN_K = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
# (passed, samples) of each row
Rows = Sequence[tuple[int, int]]


class Rate(TypedDict):
    """The share that passed, with its 95 % interval."""

    value: float
    low: float
    high: float


def wilson(passed: float, samples: float) -> tuple[float, float]:
    """Wilson's interval (low, high) for `passed` of `samples`; both may be fractions."""
    share, squared = passed / samples, Z * Z
    centre = (share + squared / (2 * samples)) / (1 + squared / samples)
    half = Z / (1 + squared / samples) * math.sqrt(share * (1 - share) / samples + squared / (4 * samples**2))
    # Exactly 0 and 1 where rounding would miss them.
    return (0.0 if passed == 0 else centre - half), (1.0 if passed == samples else centre + half)


def design_effect(rows: Rows) -> float:
    """How much more the share varies than if every sample had a row of its own."""
    passed, samples = map(sum, zip(*rows, strict=True))
    share = passed / samples
    if len(rows) == 1 or passed in (0, samples):
        return samples / len(rows)
    spread = sum((row_passed - share * row_samples) ** 2 for row_passed, row_samples in rows)
    clustered = len(rows) / (len(rows) - 1) * spread / samples**2
    return max(1.0, clustered / (share * (1 - share) / (samples - 1)))


def rate(rows: Rows) -> Rate | None:
    """The rate over the rows; None without rows."""
    if not rows:
        return None
    passed, samples = map(sum, zip(*rows, strict=True))
    effective = samples / design_effect(rows)
    low, high = wilson(passed / samples * effective, effective)
    return {"value": passed / samples, "low": low, "high": high}


def pass_at(passed: int, samples: int, k: int) -> float:
    """Chance that of `k` samples drawn from a row at least one passed."""
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def pass_all(passed: int, samples: int, k: int) -> float:
    """Chance that of `k` samples drawn from a row all passed."""
    return math.comb(passed, k) / math.comb(samples, k)


def by_k(rows: Rows, chance: Callable[[int, int, int], float]) -> dict[str, float]:
    """{k: mean over rows of `chance(passed, samples, k)`} up to the most samples of a row; keys are text, for JSON."""
    most = max((samples for _, samples in rows), default=0)
    shown = sorted({k for k in SHOWN_K if k <= most} | ({most} if most else set()))
    return {str(k): statistics.fmean(chance(p, n, k) for p, n in rows if n >= k) for k in shown}


def per_row(samples: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """(passed, samples) of the rows that have a sample, in the order of the rows."""
    rows = {}
    for item in samples:
        passed, count = rows.get(item["row"], (0, 0))
        rows[item["row"]] = passed + (item["reward"] >= PASSED), count + 1
    return [rows[row] for row in sorted(rows)]


def grouped(samples: Iterable[Mapping[str, Any]], key: Callable[[Any], Any]) -> dict[str, dict[str, Any]]:
    """{key as text: {"rows", "samples", "pass_rate"}}, the keys in order."""
    groups = {}
    for item in samples:
        groups.setdefault(key(item), []).append(item)
    figures = {}
    for name in sorted(groups):
        rows = per_row(groups[name])
        figures[str(name)] = {"rows": len(rows), "samples": len(groups[name]), "pass_rate": rate(rows)}
    return figures


# --- behaviour -----------------------------------------------------------------------------


def arguments_of(call: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a function call item; None if they are not the JSON text of an object."""
    with suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(call.get("arguments", ""))
        return arguments if isinstance(arguments, dict) else None
    return None


def text_of(items: Iterable[dict[str, Any]]) -> str:
    """The text of all messages among items."""
    contents = [item.get("content") for item in items if item.get("type") == "message"]
    parts = [[{"text": content}] if isinstance(content, str) else content for content in contents]
    texts = [part.get("text") for group in parts if isinstance(group, list) for part in group if isinstance(part, dict)]
    return " ".join(str(text or "") for text in texts)


def is_tool_error(output: Any) -> bool:
    """Whether a tool's output says that its call was not carried out."""
    with suppress(ValueError, TypeError, RecursionError):
        answer = json.loads(output)
        return isinstance(answer, dict) and (
            not answer.keys().isdisjoint(("error", "detail")) or str(answer.get("output")).startswith(TOOL_ERROR)
        )
    return False


def is_damaged(name: str, tools: Collection[str]) -> bool:
    """Whether a call's name is a tool's with something around it or other letters, or holds marks of a template."""
    known = (tool.lower() in name.lower() for tool in tools)
    return name not in tools and (bool(SPECIAL.search(name)) or any(known))


def behaviour(sample: Mapping[str, Any], required: dict[str, list[str]]) -> dict[str, int]:
    """Counts over a sample's trajectory; `required`: {tool name: names of its required arguments}."""
    calls = [item for item in sample["output"] if item.get("type") == "function_call"]
    outputs = [item for item in sample["output"] if item.get("type") == "function_call_output"]
    arguments = [arguments_of(call) for call in calls]
    known = [(call["name"], given) for call, given in zip(calls, arguments, strict=True) if call["name"] in required]
    return {
        "turns": sample["metrics"].get("model_calls", 0),
        "tool_calls": len(calls),
        "tool_errors": sum(is_tool_error(item.get("output")) for item in outputs),
        "invalid_calls": arguments.count(None),
        "unknown_calls": len(calls) - len(known),
        "damaged_names": sum(is_damaged(call["name"], required) for call in calls),
        "incomplete_calls": sum(given is not None and not given.keys() >= set(required[name]) for name, given in known),
        "calls_left_in_text": int(bool(CALL_AS_TEXT.search(text_of(sample["output"])))),
    }


def required_arguments(tools: Iterable[dict[str, Any]] | None) -> dict[str, list[str]]:
    """{tool name: names of its required arguments} of a row's tools."""
    required = {}
    for tool in tools or []:
        # Anyone may write a row's schema: what names no argument requires none.
        parameters = tool.get("parameters")
        names = parameters.get("required") if isinstance(parameters, dict) else None
        names = names if isinstance(names, list) else []
        required[tool["name"]] = [name for name in names if isinstance(name, str)]
    return required


def tokens(samples: Iterable[Mapping[str, Any]]) -> dict[str, int] | None:
    """{"input_tokens", "output_tokens", "samples"} of the samples whose endpoint reported them, or None."""
    usages = [item["usage"] for item in samples if item["usage"]]
    if not usages:
        return None
    sums = {name: sum(usage.get(name) or 0 for usage in usages) for name in ("input_tokens", "output_tokens")}
    return sums | {"samples": len(usages)}


def summary(samples: Sequence[Mapping[str, Any]], expected: int, tools_of: Callable[[int], Any]) -> dict[str, Any]:
    """All figures of samples; `expected` counts the failures too, `tools_of(row index)` gives that row's tools."""
    rows = per_row(samples)
    counts = [behaviour(item, required_arguments(tools_of(item["row"]))) for item in samples]
    cut = [item["error"] or {} for item in samples if item["status"] == "truncated"]
    reasons = Counter(error.get("type") or error.get("code") or "unknown" for error in cut)
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
        "behaviour": {name: sum(count[name] for count in counts) for name in COUNTED},
        "truncated": dict(sorted(reasons.items())),
        "tokens": tokens(samples),
    }
