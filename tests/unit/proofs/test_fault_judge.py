"""The judge of the fault matrix: each rule that a trial can break is seen, and that one alone; the table is true."""

import json
import re
from dataclasses import replace

import pytest

from common.failure import Failure
from proofs import fault_table, published
from proofs.fault_judge import OVERHEAD_S, broken_rules, counted, last_words
from proofs.fault_load import Evidence
from proofs.fault_matrix import FAULTS

REWARDED = {"status": "completed", "reward": 1.0, "error": None}
ZERO = REWARDED | {"reward": 0.0}
LOST = {"status": "failed", "reward": None, "error": {"code": "agent_error", "type": "agent_lost", "cause": "why"}}
NAMELESS = LOST | {"error": {"type": "x"}}
GOOD = Evidence("relax-1", 0, "", {"reward": 1.0}, REWARDED, REWARDED, 3.0, 1, 1, False, ("hidden",))
WORDS = "session client: trial relax-1 ended: agent_error, why\n"
FAILED = replace(GOOD, exit=1, words=WORDS, output=None, snapshot=LOST, again=LOST)


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (GOOD, None),
        (FAILED, None),
        (replace(GOOD, seeds=None), None),
        (replace(FAILED, first_calls=0, seeds=0), None),
        # A client that was killed said nothing, and the Gateway still must.
        (replace(FAILED, exit=-9, words="", killed=True), None),
        (replace(FAILED, exit=-9, words="", killed=True, seconds=None), "took None s"),
        (replace(FAILED, snapshot=NAMELESS, again=NAMELESS, killed=True), "no reward and no code"),
        (replace(GOOD, snapshot=None), "lost"),
        (replace(GOOD, snapshot=REWARDED | {"status": "running"}), "not ended: running"),
        (replace(GOOD, again=LOST), "its end changed"),
        (replace(GOOD, again=None), "its end changed"),
        (replace(GOOD, seconds=70.1 + OVERHEAD_S), "took 75.1 s of 75"),
        (replace(GOOD, seconds=None), "took None s"),
        (replace(GOOD, first_calls=2), "run twice: 2 first calls"),
        (replace(FAILED, seeds=2), "run twice: 1 first calls, 2 seeds"),
        (replace(GOOD, seeds=0), "rewarded with 0 seeds"),
        (replace(GOOD, snapshot=ZERO, again=ZERO, output={"reward": 0.0}), "rewarded 0.0 for a fault"),
        (replace(GOOD, exit=1), "rewarded, and its client ended with 1"),
        (replace(GOOD, output=None), "rewarded, and its client ended with 0"),
        (replace(FAILED, exit=0), "no reward, and its client wrote one"),
        (replace(FAILED, output={"reward": 0.0}), "no reward, and its client wrote one"),
        (replace(FAILED, words=""), "did not name the code"),
        (replace(FAILED, words="a\nb agent_error\n"), "did not name the code"),
        (replace(FAILED, words="agent_error hidden\n"), "shows a secret"),
    ],
)  # fmt: skip
def test_each_rule_alone(trial, words):
    broken = broken_rules(trial, deadline_s=60, cleanup_s=10)
    assert [words in rule for rule in broken] == [True] if words else not broken


def test_ends_are_counted_by_code_and_type():
    trials = [GOOD, GOOD, FAILED, replace(GOOD, snapshot=None)]
    assert counted(trials) == {"rewarded": 2, "agent_error agent_lost": 1, "unknown": 1}
    assert last_words(trials) == {"agent_error agent_lost": "session client: trial relax-… ended: agent_error, why"}


# --- the table -----------------------------------------------------------------------------


def line(name, **changes):
    good = {"name": name, "what": FAULTS[name].what, "date": "2026-01-02", "commit": "abc1234", "held": True}
    good |= {"trials": 64, "back_s": 2.5, "broken": []}
    good |= {"ended": {"rewarded": 60, "agent_error agent_lost": 4}, "exits": {"0": 60, "1": 4}, "was_down": True}
    words = "trial relax-… ended failed without a reward: agent_error, cause POST http://127.0.0.1:123/run"
    return good | {"words": {"agent_error agent_lost": f"session client: {words}"}} | changes


def test_a_row_tells_the_ends_the_words_and_the_time():
    [row] = fault_table.markdown({"kill-agent": line("kill-agent")}).splitlines()[2:]
    assert "| kill -9 of the agent | 60 rewarded, 4 agent_error agent_lost |" in row
    assert "exit 1: `failed without a reward: agent_error, cause POST http://127.0.0.1:…/run`" in row
    assert row.endswith("| 2.5 s | 2026-01-02, abc1234 |")
    lines = {"disk-full": {"what": "w", "date": "d", "commit": "c", "not_run": "needs root"}}
    assert "**not run**: needs root" in fault_table.markdown(lines)


def test_no_line_that_was_not_held_gets_into_the_readme_and_a_missing_one_is_told(tmp_path, monkeypatch):
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- faults: written by `x` -->\nold\n<!-- /faults -->\nafter\n")
    monkeypatch.setattr(published, "MEASURED", readme)
    lines = {name: line(name) for name in FAULTS}

    def write(lines):
        (tmp_path / "matrix.json").write_text(json.dumps({"format": 1, "faults": lines}))
        fault_table.publish(tmp_path)

    with pytest.raises(Failure, match="holds no results"):
        fault_table.publish(tmp_path / "nowhere")
    with pytest.raises(Failure, match="make faults FAULTS=kill-agent"):
        write(lines | {"kill-agent": line("kill-agent", held=False)})
    del lines["kill-head"]
    write(lines)
    assert "| kill -9 of the head server | | **not run** | | |\n" in readme.read_text()
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert text.count("\n| ") == len(FAULTS) + 2


def test_the_published_table_has_every_fault_with_a_date_and_a_commit():
    table = published.part(published.MEASURED.read_text(), "faults")[1]
    rows = table.removeprefix(fault_table.HEADER).splitlines()
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == [fault.what for fault in FAULTS.values()]
    for row in rows:
        assert "not held" not in row
        assert "**not run**" in row or re.search(r"\| \d{4}-\d\d-\d\d, [0-9a-f]{7,12}\+? \|$", row)
