"""The samples that a report is about: of an evaluation, of rollout dumps, or of the last run, in the same shape.

Guarantees: a ground truth is taken from a rows file only for the row of the same id and category; a fault of the files
is named by file and line. Only reads.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from common.failure import Failure
from common.settings import ROOT, Settings, existing
from evaluation import files
from inputs import rows
from policy import transcript
from rollouts import runs
from rollouts.samples import Sample as EvaluationSample

EVALUATION = (files.CONFIG, files.ROLLOUTS, files.FAILURES, files.RESULT)
DUMPS = Path("rollout_result", "train")


class Sample(EvaluationSample):
    """A sample of an evaluation or a dump: what a source does not hold is None, and `step` is a trainer's rollout."""

    step: int | None


class Source(NamedTuple):
    """A run to report on: kind, name, facts as {name: value}, the path its report goes to, and samples."""

    kind: str
    name: str
    facts: dict[str, Any]
    target: Path
    samples: list[Sample]


def find(settings: Settings) -> Source:
    """The run that RUN names, or the newest rehearsal or training. Raises Failure, also if it holds no sample."""
    source = _find(settings, settings.RUN)
    if not source.samples:
        raise Failure(f"{source.name}: holds no samples; there is nothing to report")
    return source


def _find(settings: Settings, name: str) -> Source:
    if not name:
        return of_run(settings, runs.newest(settings))
    if path := existing(name, ROOT / name, settings.DATA_ROOT / "eval" / name):
        return of_path(settings, path.resolve())
    for path in runs.rehearsals(settings):
        if path.stem == name:
            return of_path(settings, path)
    known = sorted(path.parent.name for path in (settings.DATA_ROOT / "eval").glob(f"*/{files.CONFIG}"))
    have = f"evaluations there: {', '.join(known)[:300]}" if known else "`make eval` writes evaluations"
    raise Failure(f"RUN={name}: no file, no folder, and no evaluation in {settings.DATA_ROOT}/eval; {have}")


def of_path(settings: Settings, path: Path) -> Source:
    """The run in a file or folder. Raises Failure."""
    if path.is_file() and path.name in EVALUATION:
        path = path.parent
    if path.is_file():
        return of_run(settings, runs.of_dump(path))
    if (path / files.CONFIG).is_file():
        return of_evaluation(path)
    folder = next((folder for folder in (path, path / DUMPS) if any(folder.glob("*.jsonl"))), None)
    if folder is None:
        raise Failure(f"RUN={path}: holds neither {files.CONFIG} of an evaluation nor *.jsonl of rollouts")
    return of_run(settings, runs.of_dumps(path.name, folder))


def of_evaluation(folder: Path) -> Source:
    """The result folder of `make eval`, finished or not."""
    evaluation = files.read_folder(folder)
    graded, failed = map(_evaluated, evaluation.samples), list(map(_evaluated, evaluation.failures))
    # The line of a failed sample does not repeat the row; another sample of that row holds it.
    known = {item["row"]: item for item in evaluation.samples}
    for item in failed:
        same_row = known.get(item["row"], {})
        for key in ("input", "ground_truth"):
            item[key] = same_row.get(key) if item[key] is None else item[key]
    samples = sorted([*graded, *failed], key=lambda item: (item["row"], item["repeat"]))
    return Source("evaluation", folder.name, evaluation.config or {}, folder / "report.html", samples)


def _evaluated(item: Any) -> Sample:
    """A line of an evaluation as a sample."""
    return Sample(**{key: item.get(key) for key in Sample.__annotations__})


def of_run(settings: Settings, run: runs.Run) -> Source:
    """A rehearsal's or a training run's dumps."""
    trained = not any("row_id" in item for _, item in run.samples)
    known = {} if trained else rows_by_id(settings)
    samples = [_dumped(item, known) for _, item in run.samples]
    number_rows(samples)
    path = run.dumps
    target = path.with_suffix(".html") if path.is_file() else path / "report.html"
    return Source("training" if trained else "rehearsal", run.id, {"dump": str(path)}, target, samples)


def rows_by_id(settings: Settings) -> dict[Any, rows.Row]:
    """{row id: row} of the rows that NEMO_GYM_SOURCE_DATA or SPLIT names, {} without that file."""
    path = settings.rows_path()
    return {row["id"]: row for row in rows.read_rows(path)} if path.exists() else {}


def number_rows(samples: list[Sample]) -> None:
    """Number the rows of dumped samples as they come: by id, else by group; else each sample is a row of its own."""
    numbers = {}
    for nth, sample in enumerate(samples):
        group = None if sample["row"] is None else (sample["step"], sample["row"])
        key = ("alone", nth) if group is None else ("group", *group)
        key = key if sample.get("row_key") is None else ("id", sample.get("row_key"))
        sample["row"] = numbers.setdefault(key, len(numbers))


def _dumped(item: Any, known: Mapping[Any, Mapping[str, Any]]) -> Sample:
    """A line of a rollout dump as a sample; `row` is its group until the rows are numbered."""
    row = known.get(item.get("row_id"), {})
    row = row if row.get("category") == item.get("category") else {}
    sample = files.sample_of(item, item.get("group_id"), item.get("sample_index"))
    error = {"code": str(item["truncated_by"])} if item.get("truncated_by") else None
    if sample["reward"] is None:
        error = {"code": "no_reward", "cause": str(item.get("error") or f"reward {item['reward']!r}")}
    return {
        **sample,
        "step": item.get("rollout_id"),
        "error": error,
        "input": item.get("input") or row.get(rows.WRAPPER, {}).get("input"),
        "ground_truth": row.get("ground_truth") if item.get("ground_truth") is None else item["ground_truth"],
        "output": transcript.paired(sample["output"] or []),
    }


def calls(sample: Sample) -> list[dict[str, Any]]:
    """The tool calls that the verifier saw, in order: [{"name", "arguments"}]."""
    items = [item for item in sample["output"] or [] if isinstance(item, dict) and item.get("type") == "function_call"]
    return [{"name": str(item.get("name")), "arguments": item.get("arguments")} for item in items]
