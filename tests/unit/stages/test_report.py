"""A report as a file: which run it is about, what it says of each sample, and that data in it stays data."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from common import settings as variables
from common.failure import Failure
from common.settings import ROOT
from pages import inline
from policy import transcript
from reports import reasons, samples, summary
from support import report_runs
from support.report_runs import DELETE, HOSTILE, REPLY, dumped, write_lines

DATA = re.compile(r'<script type="application/json" id="(\w+)">(.*?)</script>', re.DOTALL)


def load(folder, **changes):
    """Settings whose data and experiments lie in `folder`."""
    ours = {"DATA_ROOT": str(folder / "data"), "EXP_DIR": str(folder / "exp")}
    return variables.load(
        environment=ours | {key: str(value) for key, value in changes.items()}, dotenv=Path(os.devnull)
    )


def run_report(folder, *options, **changes):
    ours = {"DATA_ROOT": str(folder / "data"), "EXP_DIR": str(folder / "exp")}
    command = [sys.executable, str(ROOT / "scripts" / "report.py"), *options]
    env = os.environ | ours | {key: str(value) for key, value in changes.items()}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def held(path):
    """{id: value} of the data in a report."""
    return {identity: json.loads(text) for identity, text in DATA.findall(path.read_text(encoding="utf-8"))}


# --- the file ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, what was said, the report's path) of the tests' evaluation."""
    folder = tmp_path_factory.mktemp("report")
    target = report_runs.evaluation(folder / "data" / "eval" / "tiny")
    ended = run_report(folder, RUN="tiny")
    assert ended.returncode == 0, ended.stderr
    return folder, ended.stdout, target / "report.html"


def test_the_result_line_names_the_file_and_the_rate(made):
    _, said, path = made
    assert re.fullmatch(rf"Report ready: {path} run=tiny samples=9 pass_rate=0.286 \[0\.\d+, 0\.\d+\]\n", said), said
    assert [each.name for each in path.parent.iterdir() if each.suffix in (".html", ".part")] == ["report.html"]


def test_each_sample_says_why(made):
    found = held(made[2])
    why = {(each["row_id"], each["label"]): each["why"] for each in found["run"]["samples"]}
    assert why[100, "0"] == "nothing differs"
    assert why[100, "1"] == "emails row 00000487 deleted, ground truth keeps it, and 1 more"
    assert why[101, "0"].startswith("called no tool; emails row ")
    assert why[101, "1"].startswith("call 1 email_delete_email: malformed arguments: not JSON; emails row ")
    assert why[102, "0"] == f"call 1 {HOSTILE[:40]}: no such tool; emails row 00000487 kept, ground truth deletes it"
    assert why[102, "1"] == "truncated: too_many_calls"
    assert why[103, "0"] == "nothing differs; called no tool"
    assert why[103, "1"] == "ended without reward: deadline_exceeded"
    assert why[104, "0"] == f"ended without reward: agent_error: {HOSTILE}"
    assert found["t3"]["ground_truth"] == [] and found["t4"]["ground_truth"] is None


def test_what_failed_is_in_no_rate_and_counted_apart(made):
    run = held(made[2])["run"]
    tiles = {label: value for label, value, _ in run["tiles"]}
    assert (tiles["Samples"], tiles["Passed"], tiles["Not passed"], tiles["No reward"]) == ("9", "2", "5", "2")
    assert run["rate"]["value"] == 2 / 7
    plots = {plot["title"]: plot["lines"] for plot in run["plots"]}
    assert {line["label"]: line["figure"] for line in plots["Ended without a reward"]} == {
        "deadline_exceeded": "1", "agent_error": "1",
    }  # fmt: skip
    assert {line["category"]: line["note"] for line in plots["Pass rate by category"]} == {
        report_runs.CATEGORY: "of 5", HOSTILE: "of 2",
    }  # fmt: skip


def test_data_in_the_file_is_no_markup(made):
    text = made[2].read_text(encoding="utf-8")
    outside = DATA.sub("", text)
    assert "harmed" not in outside
    for _, data in DATA.findall(text):
        assert not set("<>&\u2028\u2029") & set(data)
    assert held(made[2])["s8"]["why"].endswith(HOSTILE)


def test_the_page_forbids_itself_every_request(made):
    text = made[2].read_text(encoding="utf-8")
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy and "unsafe" not in policy
    assert not re.findall(r"<(?:link|script|img)[^>]+(?:href|src)=(?!\"data:)", DATA.sub("", text))


def test_the_same_run_gives_the_same_file(made, tmp_path):
    _, _, path = made
    assert run_report(made[0], "--out", str(tmp_path / "again.html"), RUN=path.parent).returncode == 0
    assert (tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_json_that_no_parser_can_say_is_text():
    [(_, text)] = DATA.findall(inline.data("x", {"nan": float("nan"), "half": "\ud800"}))
    assert json.loads(text) == {"nan": "NaN", "half": "\ud800"}
    text.encode()


# --- which run -----------------------------------------------------------------------------


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


def test_a_fault_is_one_line_and_nothing_is_written(tmp_path):
    path = write_lines(tmp_path / "dump.jsonl", [{}])
    ended = run_report(tmp_path, RUN=path)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (1, 1) and ended.stderr.startswith("error: ")
    assert not list(tmp_path.rglob("*.html*"))


def test_no_run_at_all_names_the_command(tmp_path):
    with pytest.raises(Failure, match="make smoke"):
        samples.find(load(tmp_path))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    report_runs.evaluation(tmp_path / "run")
    ended = run_report(tmp_path, "--out", str(tmp_path / "none" / "x.html"), RUN=tmp_path / "run")
    assert ended.returncode == 1 and "none/x.html: No such file or directory; --out" in ended.stderr


# --- ground truth --------------------------------------------------------------------------


def test_a_rows_file_gives_the_ground_truth_only_for_the_same_id_and_category(tmp_path):
    row = {"id": 7, "category": "workplace_assistant_email", "environment_name": "workplace_assistant"}
    row |= {"ground_truth": report_runs.truth(DELETE), "responses_create_params": {"input": [{"content": "do"}]}}
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


def test_a_reward_that_a_replay_does_not_give_is_called_so(tmp_path):
    folder = report_runs.evaluation(tmp_path / "run", [report_runs.sample(0, 0, 0.0, report_runs.right())], [])
    [found] = samples.find(load(tmp_path, RUN=folder)).samples
    why = reasons.explain(found)["why"]
    assert why == "recorded reward 0, but a replay here gives 1; nothing differs"
    ended = run_report(tmp_path, RUN=folder)
    assert ended.returncode == 0, ended.stderr
    assert any("1 recorded reward" in text for text in held(folder / "report.html")["run"]["warnings"])


@pytest.mark.parametrize(("count", "missing"), [(2, 3), (1, 1)])
def test_an_evaluation_that_is_not_finished_is_called_so(tmp_path, count, missing):
    folder = report_runs.evaluation(tmp_path / "run", [report_runs.sample(0, 0, 1.0, report_runs.right())], [])
    config = json.loads((folder / "config.json").read_text()) | {"rows": {"count": count}}
    (folder / "config.json").write_text(json.dumps(config))
    ended = run_report(tmp_path, RUN=folder)
    assert f" samples=1 missing={missing} pass_rate=1.000 " in ended.stdout, ended.stderr
    [warning] = held(folder / "report.html")["run"]["warnings"]
    assert f"{missing} of {missing + 1} samples are missing" in warning


def test_an_evaluation_that_is_finished_misses_nothing(tmp_path):
    graded = [report_runs.sample(0, repeat, 1.0, report_runs.right()) for repeat in range(2)]
    folder = report_runs.evaluation(tmp_path / "run", graded, [])
    config = json.loads((folder / "config.json").read_text()) | {"rows": {"count": 1}}
    (folder / "config.json").write_text(json.dumps(config))
    assert "missing" not in run_report(tmp_path, RUN=folder).stdout
    assert held(folder / "report.html")["run"]["warnings"] == []


# --- transcripts ---------------------------------------------------------------------------


def test_a_transcript_gives_its_items_back_and_calls_meet_their_results():
    calls = '<tool_call>\n{"name": "a", "arguments": {"x": "é"}}\n</tool_call>\n'
    calls += '<tool_call>\n{"name": "b", "arguments": "{"}\n</tool_call>\n'
    results = '<tool_response>\n{"output":"</tool_response> <tool_call>"}\n</tool_response>\n'
    results += "<tool_response>\ntwo\n</tool_response>\n"
    text = f"<think>\nhm\n</think>\nI look.\n{calls}{results}Done."
    assert transcript.paired(transcript.items(text)) == [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        report_runs.message("I look."),
        {"type": "function_call", "name": "a", "arguments": '{"x": "é"}', "call_id": "call_1"},
        {"type": "function_call", "name": "b", "arguments": "{", "call_id": "call_2"},
        {"type": "function_call_output", "output": '{"output":"</tool_response> <tool_call>"}', "call_id": "call_1"},
        {"type": "function_call_output", "output": "two", "call_id": "call_2"},
        report_runs.message("Done."),
    ]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", []),
        ("<|im_start|>assistant\nHello<|im_end|>\n", ["message"]),
        ("<tool_call>\nno JSON\n</tool_call>", ["function_call"]),
        ("<tool_call>\n[1]\n</tool_call>", ["function_call"]),
        ("<tool_call>\n{\"name\": \"a\"", ["function_call"]),
        ("<think>\ncut off", ["reasoning"]),
        ("</tool_call> alone", ["message"]),
    ],
)  # fmt: skip
def test_any_text_gives_items(text, kinds):
    assert [item["type"] for item in transcript.items(text)] == kinds


def test_calls_of_a_dump_are_what_the_verifier_saw(tmp_path):
    dump = write_lines(tmp_path / "dump.jsonl", [dumped(row_id=1, category="c", ground_truth=report_runs.truth(REPLY))])
    [found] = samples.find(load(tmp_path, RUN=dump)).samples
    assert samples.calls(found) == report_runs.truth(DELETE)
