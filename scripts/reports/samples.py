"""What a report is about: the samples of an evaluation result, of rollout dumps, or of the last run, in one shape.

A sample is {"row", "row_id", "category", "repeat", "step", "status", "reward", "error", "seconds",
"usage", "metrics", "request_id", "input", "ground_truth", "output"}; what a source does not tell is
None, `input` and `output` are Responses items, and samples with the same `row` are of one row.
Guarantees: a ground truth is taken from a rows file only for the row of the same id and category; a
fault of the files is named by file and line. Only reads.
"""

from pathlib import Path

from common.failure import Failure
from common.settings import ROOT, existing
from evaluation import files
from inputs import rows
from policy import transcript
from rollouts import runs
from rollouts.samples import number

EVALUATION = (files.CONFIG, files.ROLLOUTS, files.FAILURES, files.RESULT)
DUMPS = Path("rollout_result", "train")
KEYS = ("row", "row_id", "category", "repeat", "step", "status", "reward", "error", "seconds", "usage")
KEYS += ("metrics", "request_id", "input", "ground_truth", "output")


class Source:
    """A run to report on: kind, name, facts as {name: value}, the path its report goes to, and samples."""

    def __init__(self, kind, name, facts, target, samples):
        self.kind, self.name, self.facts, self.target, self.samples = kind, name, facts, target, samples


def find(settings):
    """The run that RUN names, or the newest rehearsal or training. Raises Failure, also where it holds no sample."""
    source = _find(settings, settings.RUN)
    if not source.samples:
        raise Failure(f"{source.name}: holds no samples; there is nothing to report")
    return source


def _find(settings, named):
    if not named:
        return of_run(settings, runs.newest(settings))
    if path := existing(named, ROOT / named, settings.DATA_ROOT / "eval" / named):
        return of_path(settings, path.resolve())
    for path in runs.rehearsals(settings):
        if path.stem == named:
            return of_path(settings, path)
    known = sorted(path.parent.name for path in (settings.DATA_ROOT / "eval").glob(f"*/{files.CONFIG}"))
    have = f"evaluations there: {', '.join(known)[:300]}" if known else "`make eval` writes evaluations"
    raise Failure(f"RUN={named}: no file, no folder, and no evaluation in {settings.DATA_ROOT}/eval; {have}")


def of_path(settings, path):
    """The run in a file or folder. Raises Failure."""
    if path.is_file() and path.name in EVALUATION:
        path = path.parent
    if path.is_file():
        return of_run(settings, runs.of_dump(path))
    if (path / files.CONFIG).is_file():
        return of_evaluation(path)
    folder = next((each for each in (path, path / DUMPS) if any(each.glob("*.jsonl"))), None)
    if folder is None:
        raise Failure(f"RUN={path}: holds neither {files.CONFIG} of an evaluation nor *.jsonl of rollouts")
    dumps = sorted(folder.glob("*.jsonl"))
    return of_run(
        settings, runs.Run(path.name, folder, [each for dump in dumps for each in runs.of_dump(dump).samples])
    )


# --- evaluations ---------------------------------------------------------------------------


def of_evaluation(folder):
    """The result folder of `make eval`, finished or not."""
    found = files.read_folder(folder)
    graded, failed = map(_evaluated, found.samples), list(map(_evaluated, found.failures))
    # A failed sample's line does not repeat the row; another repeat of it does.
    shared = {item["row"]: item for item in found.samples}
    for item in failed:
        known = shared.get(item["row"], {})
        item |= {key: known.get(key) for key in ("input", "ground_truth") if item[key] is None}
    samples = sorted([*graded, *failed], key=lambda item: (item["row"], item["repeat"]))
    return Source("evaluation", folder.name, found.config, folder / "report.html", samples)


def _evaluated(item):
    """One line of an evaluation as a sample."""
    return {key: item.get(key) for key in KEYS}


# --- rollout dumps -------------------------------------------------------------------------


def of_run(settings, run):
    """A rehearsal's or a training run's dumps."""
    trained = not any("row_id" in item for _, item in run.samples)
    known = {} if trained else rows_by_id(settings)
    samples = [_dumped(item, known) for _, item in run.samples]
    number_rows(samples)
    path = run.dumps
    target = path.with_suffix(".html") if path.is_file() else path / "report.html"
    return Source("training" if trained else "rehearsal", run.id, {"dump": str(path)}, target, samples)


def rows_by_id(settings):
    """{row id: row} of the rows that NEMO_GYM_SOURCE_DATA or SPLIT names, {} where there are none."""
    path = settings.rows_path()
    return {row["id"]: row for row in rows.read_rows(path)} if path.exists() else {}


def number_rows(samples):
    """Number the rows of dumped samples as they come: by the row's id, else by group; else each is a row of its own."""
    numbers = {}
    for nth, sample in enumerate(samples):
        group = None if sample["row"] is None else (sample["step"], sample["row"])
        key = ("alone", nth) if group is None else ("group", *group)
        key = key if sample["row_id"] is None else ("id", sample["row_id"], sample["category"])
        sample["row"] = numbers.setdefault(key, len(numbers))


def _dumped(item, known):
    """One line of a rollout dump as a sample."""
    row = known.get(item.get("row_id"), {})
    row = row if row.get("category") == item.get("category") else {}
    tokens = item.get("prompt_token_count"), item.get("response_token_count")
    return {
        "row": item.get("group_id"),
        "row_id": item.get("row_id"),
        "category": item.get("category"),
        "repeat": item.get("sample_index"),
        "step": item.get("rollout_id"),
        "status": item["status"],
        "reward": None if item.get("error") else _finite(item["reward"]),
        "error": _fault(item),
        "seconds": item.get("seconds"),
        "usage": None if None in tokens else {"input_tokens": tokens[0], "output_tokens": tokens[1]},
        "metrics": {"model_calls": item["agent_turns"]},
        "request_id": item.get("request_id"),
        "input": item.get("input") or row.get(rows.WRAPPER, {}).get("input"),
        "ground_truth": row.get("ground_truth") if item.get("ground_truth") is None else item["ground_truth"],
        "output": transcript.paired(transcript.items(str(item["response"] or ""))),
    }


def _finite(reward):
    """A reward that is a number, or None."""
    return reward if number(reward) else None


def _fault(item):
    if item.get("error") or _finite(item["reward"]) is None:
        return {"code": "no_reward", "cause": str(item.get("error") or f"reward {item['reward']!r}")}
    return {"code": str(item["truncated_by"])} if item.get("truncated_by") else None


def calls(sample):
    """The tool calls that the verifier saw, in order: [{"name", "arguments"}]."""
    made = [item for item in sample["output"] or [] if isinstance(item, dict) and item.get("type") == "function_call"]
    return [{"name": str(item.get("name")), "arguments": item.get("arguments")} for item in made]
