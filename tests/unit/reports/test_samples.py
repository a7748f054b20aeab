"""Which run a report is about, and what it takes for a sample's ground truth."""

import os
import re
from pathlib import Path

import pytest

from common import settings as variables
from common.failure import Failure
from reports import reasons, samples, summary
from support import report_runs
from support.report_runs import DELETE, REPLY, dumped, write_lines


def load(folder, **changes):
    """Settings whose data and experiments lie in `folder`."""
    ours = {"DATA_ROOT": folder / "data", "EXP_DIR": folder / "exp"} | changes
    texts = {key: str(value) for key, value in ours.items()}
    return variables.load(environment=texts, dotenv=Path(os.devnull))


def test_without_a_name_it_is_the_newest_run(tmp_path):
    dumps = tmp_path / "exp" / "rehearsal" / "rollout_result" / "train"
    for age, name in ((20, "old"), (10, "new")):
        path = write_lines(dumps / f"{name}.jsonl", [dumped(row_id=0, category="c", group_id=0)])
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    found = samples.find(load(tmp_path))
    assert (found.kind, found.name, found.target) == ("rehearsal", "new", dumps / "new.html")
    assert samples.find(load(tmp_path, RUN="old")).name == "old"


@pytest.mark.parametrize("part", ["", "rollouts.jsonl", "result.json", "config.json"])
def test_an_evaluation_is_found_by_its_folder_or_any_file_of_it(tmp_path, part):
    folder = report_runs.evaluation(tmp_path / "data" / "eval" / "tiny")
    (folder / "result.json").write_text("{}")
    assert samples.find(load(tmp_path, RUN=folder / part)).kind == "evaluation"


def test_a_training_folder_is_read_file_by_file_and_its_rollouts_are_told_apart(tmp_path):
    dumps = tmp_path / "run" / "rollout_result" / "train"
    write_lines(dumps / "0.jsonl", [dumped(), dumped(sample_index=1, reward=1.0)])
    write_lines(dumps / "1.jsonl", [dumped(rollout_id=1), dumped(rollout_id=1, reward="nan", status="aborted")])
    found = samples.find(load(tmp_path, RUN=tmp_path / "run"))
    assert found.kind == "training" and [each["reward"] for each in found.samples] == [0.0, 1.0, 0.0, None]
    assert [each["row"] for each in found.samples] == [0, 1, 2, 3], "nothing tells which are of one row"
    shown = summary.summary(found.samples, [reasons.explain(each) for each in found.samples])
    [steps] = [plot["lines"] for plot in shown["plots"] if plot["title"] == "Pass rate by rollout"]
    assert [(line["label"], line["figure"]) for line in steps] == [("0", "50.0 %"), ("1", "0.0 %")]
    assert "does not hold the row's ground truth" in reasons.explain(found.samples[0])["why"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("nothing", None, "no file, no folder"),
        ("dump.jsonl", "{}\n", "dump.jsonl:1: not a sample of a rollout dump"),
        ("dump.jsonl", '{"a": \n', "dump.jsonl:1: not JSON"),
        ("empty.jsonl", "", "holds no samples"),
        ("folder/x.txt", "", "holds neither config.json"),
        ("eval/config.json", "[]", "not a JSON object"),
    ],
)
def test_a_run_that_cannot_be_read_is_named(tmp_path, name, content, said):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if content is not None:
        path.write_text(content)
    run = path if "/" not in name else path.parent
    with pytest.raises(Failure, match=re.escape(said)):
        samples.find(load(tmp_path, RUN=run))


def test_no_run_at_all_names_the_command(tmp_path):
    with pytest.raises(Failure, match="make smoke"):
        samples.find(load(tmp_path))


def test_a_rows_file_gives_the_ground_truth_only_for_the_same_id_and_category(tmp_path):
    row = {"id": 7, "category": "workplace_assistant_email", "environment_name": "workplace_assistant"}
    row |= {
        "ground_truth": report_runs.truth(DELETE),
        "responses_create_params": {"input": [{"role": "user", "content": "do"}]},
    }
    rows_file = write_lines(tmp_path / "rows.jsonl", [row])
    lines = [dumped(row_id=7, category=category, reward=1.0) for category in (row["category"], "other")]
    dump = write_lines(tmp_path / "dump.jsonl", lines)
    found = samples.find(load(tmp_path, RUN=dump, NEMO_GYM_SOURCE_DATA=rows_file)).samples
    assert [bool(each["ground_truth"]) for each in found] == [True, False]
    assert reasons.explain(found[0])["why"] == "nothing differs"


def test_a_dumps_own_ground_truth_comes_first(tmp_path):
    dump = write_lines(tmp_path / "dump.jsonl", [dumped(row_id=7, category="c", ground_truth=[])])
    [found] = samples.find(load(tmp_path, RUN=dump)).samples
    assert reasons.explain(found)["why"] == "emails row 00000487 deleted, ground truth keeps it"


def test_rows_of_one_id_with_two_prompts_are_two_rows(tmp_path):
    prompts = [[{"role": "user", "content": text}] for text in ("Reply", "Delete", "Reply")]
    lines = [dumped(sample_index=nth, row_id=1, category="c", input=prompt) for nth, prompt in enumerate(prompts)]
    write_lines(tmp_path / "dump.jsonl", lines)
    found = samples.find(load(tmp_path, RUN=tmp_path / "dump.jsonl"))
    assert [each["row"] for each in found.samples] == [0, 1, 0]


def test_calls_of_a_dump_are_what_the_verifier_saw(tmp_path):
    dump = write_lines(tmp_path / "dump.jsonl", [dumped(row_id=1, category="c", ground_truth=report_runs.truth(REPLY))])
    [found] = samples.find(load(tmp_path, RUN=dump)).samples
    assert samples.calls(found) == report_runs.truth(DELETE)
