"""What a report is about: the samples of an evaluation result, of rollout dumps, or of the last run, in one shape.

A sample is {"row_id", "category", "repeat", "step", "status", "reward", "error", "seconds", "usage",
"metrics", "request_id", "input", "ground_truth", "output"}; what a source does not tell is None, and
`input` and `output` are Responses items. Guarantees: a ground truth is taken from a rows file only
for the row of the same id and category; a fault of the files is named by file and line. Only reads.
"""

import json
from pathlib import Path

import rollout_dump
import rows
import runs
import transcript
from settings import ROOT
from terminal import Failure

RESULT, ROLLOUTS, FAILURES = "config.json", "rollouts.jsonl", "failures.jsonl"
DUMPS = Path("rollout_result", "train")
CALL, OUTPUT = "function_call", "function_call_output"


class Source:
    """A run to report on: its kind, its name, what is known of it as {name: value}, where its report goes, its samples."""

    def __init__(self, kind, name, facts, target, samples):
        self.kind, self.name, self.facts, self.target, self.samples = kind, name, facts, target, samples


def find(settings):
    """The run that RUN names, or the newest rehearsal or training. Raises Failure."""
    named = settings.RUN
    if not named:
        return of_run(settings, runs.newest(settings))
    for path in (Path(named).expanduser(), ROOT / named, settings.DATA_ROOT / "eval" / named):
        if path.exists():
            return of_path(settings, path.resolve())
    for path in runs.rehearsals(settings):
        if path.stem == named:
            return of_path(settings, path)
    known = sorted(path.parent.name for path in (settings.DATA_ROOT / "eval").glob(f"*/{RESULT}"))
    have = f"evaluations there: {', '.join(known)[:300]}" if known else "`make eval` writes evaluations"
    raise Failure(f"RUN={named}: no file, no folder, and no evaluation in {settings.DATA_ROOT}/eval; {have}")


def of_path(settings, path):
    """The run in a file or folder. Raises Failure."""
    if path.is_file() and path.name in (RESULT, ROLLOUTS, FAILURES, "result.json"):
        path = path.parent
    if path.is_file():
        return of_run(settings, runs.of_dump(path))
    if (path / RESULT).is_file():
        return of_evaluation(path)
    folder = next((each for each in (path, path / DUMPS) if any(each.glob("*.jsonl"))), None)
    if folder is None:
        raise Failure(f"RUN={path}: holds neither {RESULT} of an evaluation nor *.jsonl of rollouts")
    dumps = sorted(folder.glob("*.jsonl"))
    return of_run(settings, runs.Run(path.name, folder, [each for dump in dumps for each in runs.of_dump(dump).samples]))


# --- evaluations ---------------------------------------------------------------------------


def of_evaluation(folder):
    """The result folder of `make eval`."""
    config = read_object(folder / RESULT)
    graded = [_evaluated(item) for item in read_lines(folder / ROLLOUTS)]
    failed = [_evaluated(item) for item in read_lines(folder / FAILURES)]
    # A failed sample's line does not repeat the row; another repeat of the row may hold it.
    shared = {item["row_id"]: item for item in graded}
    for item in failed:
        known = shared.get(item["row_id"], {})
        item |= {key: known.get(key) for key in ("input", "ground_truth") if item[key] is None}
    samples = sorted(graded + failed, key=lambda item: (item["row"], item["repeat"] or 0))
    return Source("evaluation", folder.name, config, folder / "report.html", samples)


def _evaluated(item):
    """One line of rollouts.jsonl or failures.jsonl as a sample."""
    named = ("row", "row_id", "category", "repeat", "status", "reward", "seconds", "usage", "metrics", "request_id")
    made = {key: item.get(key) for key in (*named, "error", "input", "ground_truth", "output")}
    return made | {"step": None}


def read_object(path):
    """A JSON object of a file. Raises Failure."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', None) or 'not JSON'}; `make eval` writes it") from None
    if not isinstance(found, dict):
        raise Failure(f"{path}: not a JSON object; `make eval` writes it")
    return found


def read_lines(path):
    """The objects of a JSON Lines file, [] where there is none. Raises Failure with file and line."""
    found = []
    if not path.exists():
        return found
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                item = json.loads(line)
            except (ValueError, RecursionError):
                raise Failure(f"{path}:{number}: not JSON; `make eval` with the same variables mends it") from None
            if not isinstance(item, dict) or "row_id" not in item:
                raise Failure(f"{path}:{number}: not a sample of an evaluation")
            found.append(item)
    return found


# --- rollout dumps -------------------------------------------------------------------------


def of_run(settings, run):
    """A rehearsal's or a training run's dumps."""
    trained = not any("row_id" in item for _, item in run.samples)
    known = {} if trained else rows_by_id(settings)
    samples = [_dumped(item, known) for _, item in run.samples]
    path = run.dumps
    target = path.with_suffix(".html") if path.is_file() else path / "report.html"
    return Source("training" if trained else "rehearsal", run.id, {"dump": str(path)}, target, samples)


def rows_by_id(settings):
    """{row id: row} of the rows that NEMO_GYM_SOURCE_DATA or SPLIT names, {} where there are none."""
    path = settings.rows_path()
    return {row["id"]: row for row in rows.read_rows(path)} if path.exists() else {}


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
        "reward": item["reward"],
        "error": _fault(item),
        "seconds": item.get("seconds"),
        "usage": None if None in tokens else {"input_tokens": tokens[0], "output_tokens": tokens[1]},
        "metrics": {"model_calls": item["agent_turns"]},
        "request_id": item.get("request_id"),
        "input": item.get("input") or row.get(rows.WRAPPER, {}).get("input"),
        "ground_truth": item.get("ground_truth") or row.get("ground_truth"),
        "output": transcript.items(item["response"] or ""),
    }


def _fault(item):
    if item.get("error"):
        return {"code": "no_reward", "cause": str(item["error"])}
    return {"code": str(item["truncated_by"])} if item.get("truncated_by") else None


def calls(sample):
    """The tool calls that the verifier saw, in order: [{"name", "arguments"}]."""
    made = [item for item in sample["output"] or [] if isinstance(item, dict) and item.get("type") == CALL]
    return [{"name": str(item.get("name")), "arguments": item.get("arguments")} for item in made]
