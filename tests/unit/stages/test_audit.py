"""The audit as a program, against a scripted verifier: what it counts, and what it calls broken and by which name."""

import hashlib
import json
import xml.etree.ElementTree
from types import SimpleNamespace

import pytest

from evaluation import audit_checks
from support.http_server import nobody
from support.programs import only_error, stage_alone
from support.scripted_verifier import ScriptedVerifier

TOOLS = ["email_send_email", "email_delete_email", "email_search_emails"]
SEND = ("email_send_email", {"recipient": "a@b.c", "subject": "Hi", "body": "Hello"})
SEARCH = ("email_search_emails", {"query": "hi"})


def delete(email_id):
    return ("email_delete_email", {"email_id": email_id})


def row(number, *calls, text=None, category="email"):
    truth = [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]
    tools = [{"type": "function", "name": name, "parameters": {}} for name in TOOLS]
    prompt = [{"role": "system", "content": "Today"}, {"role": "user", "content": text or f"Task {number}"}]
    fields = {"id": number, "category": category, "environment_name": "workplace_assistant"}
    return {"responses_create_params": {"input": prompt, "tools": tools}, "ground_truth": truth, **fields}


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    # A blank line first: a row's line is not its number.
    path.write_text("\n" + "".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.fixture
def audit(tmp_path):
    def run(rows, verifier, **variables):
        source = write(tmp_path / "rows.jsonl", rows)
        options = ["--nemo-gym-source-data", source, "--data-root", tmp_path / "data", "--resource-url", verifier.url]
        done = stage_alone("audit", *options, home=tmp_path, **variables)
        written = tmp_path / "data" / "audit" / "rows.json"
        return done, json.loads(written.read_text()) if written.exists() else None

    return run


ROWS = [
    row(100, SEND),
    row(101, SEARCH),
    row(102, *[delete(f"0000000{n}") for n in range(6)], category="calendar"),
    row(103, SEND, SEARCH, delete("none")),
    row(104),
]


def test_rows_that_are_right_pass_and_every_figure_is_counted(audit, tmp_path):
    with ScriptedVerifier() as verifier:
        done, result = audit(ROWS, verifier)
    assert done.returncode == 0, done.stderr
    assert result["floor"] == {"rows": 2, "share": 0.4}
    assert result["ceiling"] == {"rows": 4, "share": 0.8}
    assert result["over_steps"] == [f"{tmp_path}/rows.jsonl:4 (id 102)"]
    assert result["alterations"]["outcomes"] == {"refused": 3, "impossible": 2}
    assert result["alterations"]["impossible"] == {
        "no call that changes the state": [f"{tmp_path}/rows.jsonl:{line} (id {n})" for line, n in ((3, 101), (6, 104))]
    }
    assert result["categories"]["email"] == {"rows": 4, "floor": 2, "over_steps": 0, "calls": 1.25}
    assert result["tools"]["email_search_emails"] == {"offered": 5, "rows": 2, "calls": 2}
    assert result["ground_truth_calls"] == {"0": 1, "1": 2, "3": 1, "6": 1}
    assert result["source"]["sha256"] == hashlib.sha256((tmp_path / "rows.jsonl").read_bytes()).hexdigest()
    line = next(line for line in done.stdout.splitlines() if line.startswith("Audit done"))
    assert "rows=5 broken=0 replayed=5 altered_refused=3 floor=0.400 ceiling=0.800 repeated=0 contradicting=0" in line


def test_a_part_of_the_rows_has_files_of_its_own_and_a_plot_is_a_picture_that_loads_nothing(audit, tmp_path):
    folder, rows = tmp_path / "data" / "audit", [row(100, SEND, category="<b>&"), *ROWS]
    with ScriptedVerifier() as verifier:
        _, whole = audit(rows, verifier)
        picture = (folder / "rows.svg").read_text()
        done, kept = audit(rows, verifier, LIMIT=2)
        assert kept == whole and (folder / "rows.svg").read_text() == picture
        part = json.loads((folder / "rows-first-2.json").read_text())
        assert part["source"]["count"] == 2 and (folder / "rows-first-2.svg").exists()
        assert f"written: {folder}/rows-first-2.json {folder}/rows-first-2.svg" in done.stdout
        assert f"written: {folder}/rows.json " in audit(rows, verifier, LIMIT=7)[0].stdout
    elements = list(xml.etree.ElementTree.fromstring(picture))
    assert {element.tag.rpartition("}")[2] for element in elements} == {"rect", "text"}
    assert "<b>&" in [element.text for element in elements]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("broken", "the ground truth replayed earns 0"),
        ("blind", "email_send_email.body of call 1 altered earns 1, although without the call it is 0"),
        ("odd", "gives the reward 0.5, neither 0 nor 1"),
        (500, "answered 500"),
    ],
)
def test_a_broken_row_is_named_by_file_line_and_id(audit, tmp_path, fault, words):
    with ScriptedVerifier(row_101=fault) as verifier:
        done, result = audit([row(100, SEND), row(101, SEND)], verifier)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert [each["row"] for each in result["faults"]] == [f"{tmp_path}/rows.jsonl:3 (id 101)"]
    assert words in result["faults"][0]["fault"]
    assert f"error: 1 broken row(s) in {tmp_path}/rows.jsonl, first {tmp_path}/rows.jsonl:3 (id 101): " in done.stderr
    assert words in done.stderr


def test_rows_that_repeat_each_other_are_named_in_and_across_splits(audit, tmp_path):
    folder = tmp_path / "data" / "nemo-gym"
    write(folder / "workplace_assistant_train.jsonl", [row(7, SEND, text="Say  HELLO, to a")])
    own = [
        row(100, SEND, text="say hello to A!"),
        row(101, SEND, text="Say hello to a"),
        row(102, text="say hello to a"),
        row(103, SEND, text="Say hello to b"),
    ]
    with ScriptedVerifier() as verifier:
        done, result = audit(own, verifier)
    assert done.returncode == 0, done.stderr
    here, train = f"{tmp_path}/rows.jsonl", f"{folder}/workplace_assistant_train.jsonl:2 (id 7)"
    first = f"{here}:2 (id 100)"
    assert [(each["row"], each["of"], each["same_answer"]) for each in result["twins"]] == [
        (f"{here}:3 (id 101)", first, True),
        (f"{here}:4 (id 102)", first, False),
        (first, train, True),
        (f"{here}:3 (id 101)", train, True),
        (f"{here}:4 (id 102)", train, False),
    ]
    assert f"{first} repeats {train}" in done.stdout


def test_prompts_over_the_budget_are_named(audit, tmp_path):
    with ScriptedVerifier() as verifier:
        done, result = audit([row(100), row(101, text="word " * 400)], verifier, NEMO_GYM_MAX_PROMPT_LEN=300)
    assert result["prompt_tokens"]["over_budget"] == [f"{tmp_path}/rows.jsonl:3 (id 101)"]
    assert done.returncode == 0 and "1 row(s) over the budget of 300" in done.stdout


def test_a_verifier_that_accepts_everything_is_refused_before_any_row(audit):
    # The shipped example row has the id 0.
    with ScriptedVerifier(row_0="blind") as verifier:
        done, result = audit(ROWS, verifier)
        assert [asked[0] for asked in verifier.asked] == [0, 0]
    assert done.returncode == 1 and result is None
    assert "the right and a wrong reply earn [1, 1], not [1, 0]" in done.stderr


def test_a_server_that_is_not_there_names_its_cure(audit):
    gone = SimpleNamespace(url=nobody())
    done, result = audit(ROWS, gone)
    assert only_error(done) == f"error: {gone.url}: no resource server answers; `make gym-up` starts it"
    assert result is None


def test_a_ground_truth_that_no_policy_can_call_is_broken():
    unknown = row(100, ("email_reply_email", {"email_id": "00000057", "body": "x"}))
    with ScriptedVerifier() as verifier:
        finding = audit_checks.check(audit_checks.Verifier(verifier.url), unknown)
    assert finding["faults"] == ["the ground truth calls email_reply_email, which the row does not offer"]


def test_each_row_goes_to_the_verifier_whole_once_and_without_its_tools_after_that():
    with ScriptedVerifier() as verifier:
        audit_checks.check(audit_checks.Verifier(verifier.url), row(100, SEND))
    assert [len(tools) for _, tools, _ in verifier.asked] == [3, 0, 0]
    assert [len(calls) for _, _, calls in verifier.asked] == [1, 0, 1]


@pytest.mark.parametrize(
    ("calls", "outcome", "why"),
    [
        ([SEARCH], "impossible", "no call that changes the state"),
        ([delete("none")], "impossible", "its calls leave the state as it was"),
        ([SEND, delete("none")], "refused", "email_send_email.body of call 1 altered earns 0"),
        ([delete("00000001"), delete("00000001")], "refused", "email_delete_email.email_id of call 2 altered earns 0"),
        ([SEND, SEND], "refused", "email_send_email.body of call 2 altered earns 0"),
    ],
)
def test_alterations_are_made_where_a_call_matters(calls, outcome, why):
    with ScriptedVerifier() as verifier:
        finding = audit_checks.check(audit_checks.Verifier(verifier.url), row(100, *calls))
    assert finding["alteration"] == {"outcome": outcome, "why": why} and finding["faults"] == []
