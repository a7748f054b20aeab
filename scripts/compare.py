#!/usr/bin/env python3
"""Compare two evaluations of the same rows, or two rollout dumps: `make compare BASE=… CANDIDATE=…`.

Each is a name under DATA_ROOT/eval, an evaluation's folder, a dump, or a folder of dumps. Evaluations are
refused unless all that their configurations hold is the same, the model apart: rows by hash,
sampling, repeats, environment, Gateway. Paired by row: the difference with a 95 % interval, an
exact test, the rows that flipped, each category, and a verdict. Dumps do not tell how they were
drawn: that is for the reader to know. Without row ids they are compared unpaired, in groups of
NEMO_GYM_N_SAMPLES_PER_PROMPT samples. Samples without a reward are named and left out.
Needs nothing that runs and takes seconds. Exits 0 whatever the verdict is.

    make compare BASE=Qwen3-4B-validation CANDIDATE=trained-validation
    scripts/run.sh compare --base before.jsonl --candidate after.jsonl
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import terminal
from common.failure import Failure
from common.files import in_words
from common.settings import from_command_line
from evaluation import comparison, files
from evaluation.sides import SHOWN, Side, locate, refuse_other_conditions

NAMES = ("BASE", "CANDIDATE", "DATA_ROOT", "NEMO_GYM_N_SAMPLES_PER_PROMPT")


def main() -> None:
    settings, _ = from_command_line(__doc__, *NAMES)
    paths = [locate(settings, name) for name in ("BASE", "CANDIDATE")]
    if paths[0].resolve() == paths[1].resolve():
        raise Failure(f"BASE and CANDIDATE are both {paths[0]}; name two")
    base, candidate = (Side(path, settings.NEMO_GYM_N_SAMPLES_PER_PROMPT) for path in paths)
    refuse_other_conditions(base, candidate)
    for side in (base, candidate):
        side.refuse_unfit_samples()
    result = compare(base, candidate) | {"format": 1, "base": base.source(), "candidate": candidate.source()}
    report(result, write(settings.DATA_ROOT / "compare", paths, result))


def compare(base: Side, candidate: Side) -> dict[str, Any]:
    """The result of a comparison, for JSON. Raises Failure if the sides have nothing in common."""
    before, after = base.evaluation.samples, candidate.evaluation.samples
    lacking = {"base": comparison.missing(base.evaluation), "candidate": comparison.missing(candidate.evaluation)}
    is_dump = base.config is None
    if is_dump and any(sample["row_id"] is None for sample in [*before, *after]):
        return result_of(comparison.unpaired_result(before, after), [], lacking)
    # Keys are texts, and are put in order.
    key = (lambda sample: str(sample["row_key"])) if is_dump else (lambda sample: sample["row"])
    pairs = comparison.pairs((before, lacking["base"]), (after, lacking["candidate"]), key)
    whole = [pair for pair in pairs if pair.whole()]
    if not whole:
        raise Failure("BASE and CANDIDATE have no row in common that has a reward on both sides")
    return result_of(comparison.paired_result(whole), pairs, lacking)


def result_of(figures: dict[str, Any], pairs: list[comparison.Pair], lacking: dict[str, list]) -> dict[str, Any]:
    """All that is reported; without pairing there are no `pairs`. `lacking`: the missing samples of each side."""
    whole, worst = [pair for pair in pairs if pair.whole()], comparison.worst_case(pairs)
    categories = comparison.categories(whole)
    return {
        "figures": figures,
        "categories": categories,
        "flips": comparison.flips(whole),
        "missing": lacking,
        "rows_left_out": [pair.told() for pair in pairs if not pair.whole()],
        "worst_case": worst,
        "verdict": comparison.verdict(figures, sum(map(len, lacking.values())), worst),
        "by_category": comparison.category_words(categories),
    }


def write(folder: Path, paths: list[Path], result: dict[str, Any]) -> Path:
    """Put the result into the folder, named after both sides. Returns its path. Raises Failure."""
    names = [files.ODD.sub("-", path.stem if path.suffix == ".jsonl" else path.name) for path in paths]
    path = folder / f"{'--'.join(names)}.json"
    with in_words(folder, "; DATA_ROOT names another place"):
        folder.mkdir(parents=True, exist_ok=True)
    files.write_json(path, result)
    return path


def report(result: dict[str, Any], path: Path) -> None:
    """Say the result, the verdict last."""
    if result["categories"]:
        terminal.say(category_table(result["categories"]) + "\n")
    for name in ("better", "worse"):
        some(f"{name} in {{}} rows", result["flips"][name], flip_words)
    for side, samples in result["missing"].items():
        heading = f"{{}} samples of the {side} without a reward, left out"
        some(heading, samples, lambda sample: f"{row_words(sample)} sample {sample['repeat'] + 1} {sample['why']}")
    if result["rows_left_out"]:
        terminal.say(f"rows left out, without a reward on one side at least: {len(result['rows_left_out'])}")
    figures = result["figures"]
    means = [
        f"{side} {figures[side]:.3f} ({result[side]['model'] or result[side]['path']})"
        for side in ("base", "candidate")
    ]
    terminal.say(f"{', '.join(means)}; {figures['method']}")
    terminal.say(f"written: {path}")
    if result["by_category"]:
        terminal.say(result["by_category"])
    terminal.say(result["verdict"])


def category_table(categories: dict[str, dict[str, Any]]) -> str:
    points = comparison.points
    lines = []
    for name, figures in categories.items():
        means = [f"{figures[side]:.3f}" for side in ("base", "candidate")]
        interval = f"{points(figures['low'])} to {points(figures['high'])}"
        flips = f"{figures['better']}/{figures['worse']}"
        line = [name, figures["rows"], *means, points(figures["difference"]), interval, flips]
        lines.append([*line, f"{figures['p_holm']:.2g}"])
    headers = ["category", "rows", "base", "candidate", "points", "95 % interval", "better/worse", "p (Holm)"]
    return terminal.table(headers, lines)


def some(heading: str, samples: list, words: Callable[[dict[str, Any]], str]) -> None:
    if samples:
        more = f", and {len(samples) - SHOWN} more in the JSON file" if len(samples) > SHOWN else ""
        terminal.say(f"{heading.format(len(samples))}: {', '.join(map(words, samples[:SHOWN]))}{more}")


def row_words(sample: dict[str, Any]) -> str:
    return f"row {sample['row']}" + (f" (id {sample['row_id']})" if sample["row_id"] is not None else "")


def flip_words(flip: dict[str, Any]) -> str:
    shares = (f"{sum(rewards):g}/{len(rewards)}" for rewards in (flip["base"], flip["candidate"]))
    return f"{row_words(flip)} {' → '.join(shares)}"


if __name__ == "__main__":
    terminal.run(main)
