"""A report as a file: which run it is about, what it says of each sample, and that data in it stays data."""

import json
import re

import pytest

from pages import inline
from support import report_runs
from support.programs import only_error, stage
from support.report_runs import HOSTILE, write_lines

DATA = re.compile(r'<script type="application/json" id="(\w+)">(.*?)</script>', re.DOTALL)


def run_report(folder, *options, **changes):
    return stage("report", *options, **{"DATA_ROOT": folder / "data", "EXP_DIR": folder / "exp"} | changes)


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
    ended = {line["label"]: line["figure"] for line in plots["Ended without a reward"]}
    assert ended == {"deadline_exceeded": "1", "agent_error": "1"}
    rated = {line["category"]: line["note"] for line in plots["Pass rate by category"]}
    assert rated == {report_runs.CATEGORY: "of 5", HOSTILE: "of 2"}


def test_data_in_the_file_is_no_markup_and_the_page_forbids_itself_every_request(made):
    text = made[2].read_text(encoding="utf-8")
    outside = DATA.sub("", text)
    assert "harmed" not in outside
    assert not any(set("<>&\u2028\u2029") & set(data) for _, data in DATA.findall(text))
    assert held(made[2])["s8"]["why"].endswith(HOSTILE)
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy and "unsafe" not in policy
    assert not re.findall(r"<(?:link|script|img)[^>]+(?:href|src)=(?!\"data:)", outside)


def test_the_same_run_gives_the_same_file(made, tmp_path):
    _, _, path = made
    assert run_report(made[0], "--out", tmp_path / "again.html", RUN=path.parent).returncode == 0
    assert (tmp_path / "again.html").read_bytes() == path.read_bytes()


def test_json_that_no_parser_can_say_is_text():
    [(_, text)] = DATA.findall(inline.data("x", {"nan": float("nan"), "half": "\ud800"}))
    assert json.loads(text) == {"nan": "NaN", "half": "\ud800"}
    text.encode()


def test_a_fault_is_one_line_and_nothing_is_written(tmp_path):
    path = write_lines(tmp_path / "dump.jsonl", [{}])
    only_error(run_report(tmp_path, RUN=path))
    assert not list(tmp_path.rglob("*.html*"))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    report_runs.evaluation(tmp_path / "run")
    error = only_error(run_report(tmp_path, "--out", tmp_path / "none" / "x.html", RUN=tmp_path / "run"))
    assert "none/x.html: No such file or directory; --out" in error


def test_a_reward_that_a_replay_does_not_give_is_called_so(tmp_path):
    folder = report_runs.evaluation(tmp_path / "run", [report_runs.sample(0, 0, 0.0, report_runs.right())], [])
    ended = run_report(tmp_path, RUN=folder)
    assert ended.returncode == 0, ended.stderr
    run = held(folder / "report.html")["run"]
    assert run["samples"][0]["why"] == "recorded reward 0, but a replay here gives 1; nothing differs"
    assert any("1 recorded reward" in text for text in run["warnings"])


@pytest.mark.parametrize(("rows", "graded", "missing"), [(2, 1, 3), (1, 1, 1), (1, 2, 0)])
def test_an_evaluation_that_is_not_finished_is_called_so(tmp_path, rows, graded, missing):
    samples = [report_runs.sample(0, repeat, 1.0, report_runs.right()) for repeat in range(graded)]
    folder = report_runs.evaluation(tmp_path / "run", samples, [])
    config = json.loads((folder / "config.json").read_text()) | {"rows": {"count": rows}}
    (folder / "config.json").write_text(json.dumps(config))
    ended = run_report(tmp_path, RUN=folder)
    words = f"samples={graded}{f' missing={missing}' * bool(missing)} pass_rate=1.000 "
    assert words in ended.stdout, ended.stderr
    warning = f"Unfinished: {missing} of {graded + missing} samples are missing. Run the same make eval again"
    warnings = held(folder / "report.html")["run"]["warnings"]
    assert [text.startswith(warning) for text in warnings] == [True] * bool(missing)
