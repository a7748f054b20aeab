#!/usr/bin/env python3
"""Compare two evaluations of the same rows, or two rollout dumps: `make compare BASE=… CANDIDATE=…`.

Each is a name under DATA_ROOT/eval, an evaluation's folder, a dump, or a folder of dumps. Evaluations are
refused unless all that their configurations hold is the same, the model apart: rows by hash,
sampling, repeats, environment, Gateway. Paired by row: the difference with a 95 % interval, an
exact test, the rows that flipped, each category, and a verdict. Dumps say nothing of how they were
drawn, so that is for the reader to know; without row ids they are compared unpaired, in groups of
NEMO_GYM_N_SAMPLES_PER_PROMPT samples. Samples without a reward are named and left out.
On this machine, in seconds; nothing else need run. Exits 0 whatever the verdict is.

    make compare BASE=Qwen3-4B-validation CANDIDATE=trained-validation
    scripts/run.sh compare --base before.jsonl --candidate after.jsonl
"""

import json
import os

from common import settings, terminal
from common.failure import Failure
from evaluation import comparison
from evaluation import files as eval_files
from rollouts import dump as rollout_dump

NAMES = ("BASE", "CANDIDATE", "DATA_ROOT", "NEMO_GYM_N_SAMPLES_PER_PROMPT")
# What a comparison is about; all else in a configuration has to be the same.
MAY_DIFFER = frozenset({"model", "model_reported"})
SHOWN = 10


def by_row(item):
    return item["row"]


def by_id(item):
    # Ids may be numbers or text; they are put in order.
    return str(item["row_id"])


def main():
    values, _ = settings.from_command_line(__doc__, *NAMES)
    paths = {side: locate(values, side) for side in ("BASE", "CANDIDATE")}
    if paths["BASE"].resolve() == paths["CANDIDATE"].resolve():
        raise Failure(f"BASE and CANDIDATE are both {paths['BASE']}; name two")
    base, candidate = (read(path, values.NEMO_GYM_N_SAMPLES_PER_PROMPT) for path in paths.values())
    refuse_other_conditions(paths, base, candidate)
    refuse_unfit_samples(paths, base, candidate)
    sides = {"base": source(paths["BASE"], base), "candidate": source(paths["CANDIDATE"], candidate)}
    found = compare(base, candidate) | {"format": 1} | sides
    report(found, write(values.DATA_ROOT / "compare", paths, found))


def locate(values, side):
    """The path that a variable names: as it is, or below DATA_ROOT/eval. Raises Failure."""
    text, evaluations = getattr(values, side), values.DATA_ROOT / "eval"
    if not text:
        raise Failure(f"{side} is empty; make compare BASE=… CANDIDATE=… (below {evaluations}: {_known(evaluations)})")
    if path := settings.existing(evaluations / text, settings.ROOT / os.path.expanduser(text)):
        return path
    raise Failure(f"{side}={text}: neither an evaluation in {evaluations} ({_known(evaluations)}) nor a path")


def _known(folder):
    return ", ".join(sorted(path.parent.name for path in folder.glob("*/config.json"))[:SHOWN]) or "none yet"


def read(path, group_size):
    """The samples at a path. Raises Failure."""
    if path.is_dir() and not (path / eval_files.CONFIG).exists() and (files := sorted(path.glob("*.jsonl"))):
        return dump(files, group_size)
    return eval_files.read(path) if path.is_dir() else dump([path], group_size)


def dump(files, group_size):
    """The samples of rollout dumps; a trainer numbers them through, those of one row one after the other."""
    records = [item for file in files for item in rollout_dump.read_dump(file)]
    for item in records:
        if item.get("row_id") is None and item.get("group_id") is None and isinstance(item.get("sample_index"), int):
            item["group_id"] = f"{item.get('rollout_id')}-{item['sample_index'] // group_size}"
    return eval_files.of_records(records)


def source(path, evaluation):
    """Where a side came from: {"path", "model": as its endpoint called it, None for a dump}."""
    return {"path": str(path), "model": evaluation.config and evaluation.config.get("model_reported")}


def refuse_other_conditions(paths, base, candidate):
    """Raises Failure with every field that is not the same, and both values."""
    if (base.config is None) != (candidate.config is None):
        kinds = [
            f"{path} is {'a dump' if one.config is None else 'an evaluation'}"
            for path, one in _sides(paths, base, candidate)
        ]
        raise Failure(f"{' and '.join(kinds)}: nothing tells that they were drawn alike; compare two of a kind")
    if base.config is None:
        return
    found = [
        each
        for each in eval_files.differences(base.config, candidate.config)
        if each[0].split(".")[0] not in MAY_DIFFER
    ]
    if found:
        told = "; ".join(f"{field} is {_value(old)} and {_value(new)}" for field, old, new in found)
        raise Failure(
            f"{paths['BASE']} and {paths['CANDIDATE']} do not match: {told}; evaluate one of them anew like the other"
        )


def _sides(paths, base, candidate):
    return ((paths["BASE"], base), (paths["CANDIDATE"], candidate))


def _value(value):
    return json.dumps(value)[:200]


def refuse_unfit_samples(paths, base, candidate):
    """Raises Failure for a side without a reward, with one that is no share, or that does not tell its size."""
    for path, one in _sides(paths, base, candidate):
        if not one.samples:
            raise Failure(f"{path}: no sample has a reward ({len(one.failures)} failed); nothing can be compared")
        for item in one.samples:
            if not isinstance(item["reward"], (int, float)) or not 0 <= item["reward"] <= 1:
                raise Failure(f"{path}: row {item['row']} has the reward {item['reward']!r}, which is not in 0..1")
        if one.config and not all(isinstance(size, int) for size in sizes(one.config)):
            raise Failure(f"{path / eval_files.CONFIG}: tells no rows.count or no repeats; `make eval` writes both")


def sizes(config):
    """(rows, repeats) of a configuration, None where it does not tell."""
    rows = config.get("rows")
    return (rows.get("count") if isinstance(rows, dict) else None), config.get("repeats")


def compare(base, candidate):
    """The result of a comparison, a dict for JSON. Raises Failure if there is nothing in common."""
    gone = {"base": comparison.missing(base), "candidate": comparison.missing(candidate)}
    is_dump = base.config is None
    if is_dump and any(item["row_id"] is None for item in [*base.samples, *candidate.samples]):
        return result(comparison.unpaired_result(base.samples, candidate.samples), [], gone)
    rows = comparison.pairs(
        (base.samples, gone["base"]), (candidate.samples, gone["candidate"]), by_id if is_dump else by_row
    )
    figures = comparison.paired_result([pair for pair in rows if pair.whole()])
    if figures is None:
        raise Failure("BASE and CANDIDATE have no row in common that has a reward on both sides")
    return result(figures, rows, gone)


def result(figures, rows, gone):
    """All that is told; `rows` are the Pairs, [] without pairing, `gone` the missing samples of each side."""
    whole, worst = [pair for pair in rows if pair.whole()], comparison.worst_case(rows)
    by_category = comparison.categories(whole)
    return {
        "figures": figures,
        "categories": by_category,
        "flips": comparison.flips(whole),
        "missing": gone,
        "rows_left_out": [pair.told() for pair in rows if not pair.whole()],
        "worst_case": worst,
        "verdict": comparison.verdict(figures, sum(map(len, gone.values())), worst),
        "by_category": comparison.category_words(by_category),
    }


def write(folder, paths, found):
    """Put the result into the folder, named after both sides. Returns its path. Raises Failure."""
    names = [eval_files.ODD.sub("-", path.stem if path.suffix == ".jsonl" else path.name) for path in paths.values()]
    path = folder / f"{names[0]}--{names[1]}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{folder}: {error.strerror}; DATA_ROOT names another place") from None
    eval_files.write_json(path, found)
    return path


# --- words ---------------------------------------------------------------------------------


def report(found, path):
    """Say what was found, the verdict last but for the place of the whole result."""
    if found["categories"]:
        terminal.say(category_table(found["categories"]) + "\n")
    for name in ("better", "worse"):
        some(f"{name} in {{}} rows", found["flips"][name], flip_words)
    for side, items in found["missing"].items():
        some(f"{{}} samples of the {side} without a reward, left out", items, missing_words)
    if found["rows_left_out"]:
        terminal.say(f"rows left out, without a reward on one side at least: {len(found['rows_left_out'])}")
    means = [
        f"{side} {found['figures'][side]:.3f} ({found[side]['model'] or found[side]['path']})"
        for side in ("base", "candidate")
    ]
    terminal.say(f"{', '.join(means)}; {found['figures']['method']}")
    terminal.say(f"written: {path}")
    if found["by_category"]:
        terminal.say(found["by_category"])
    terminal.say(found["verdict"])


def category_table(found):
    lines = [
        [
            name,
            each["rows"],
            f"{each['base']:.3f}",
            f"{each['candidate']:.3f}",
            comparison.points(each["difference"]),
            f"{comparison.points(each['low'])} to {comparison.points(each['high'])}",
            f"{each['better']}/{each['worse']}",
            f"{each['p_holm']:.2g}",
        ]
        for name, each in found.items()
    ]
    headers = ["category", "rows", "base", "candidate", "points", "95 % interval", "better/worse", "p (Holm)"]
    return terminal.table(headers, lines)


def some(heading, items, words):
    if items:
        more = f", and {len(items) - SHOWN} more in the JSON file" if len(items) > SHOWN else ""
        terminal.say(f"{heading.format(len(items))}: {', '.join(map(words, items[:SHOWN]))}{more}")


def row_words(item):
    return f"row {item['row']}" + (f" (id {item['row_id']})" if item["row_id"] is not None else "")


def flip_words(item):
    return f"{row_words(item)} {share(item['base'])} → {share(item['candidate'])}"


def share(rewards):
    return f"{sum(rewards):g}/{len(rewards)}"


def missing_words(item):
    return f"{row_words(item)} sample {item['repeat'] + 1} {item['why']}"


if __name__ == "__main__":
    terminal.run(main)
