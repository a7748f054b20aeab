"""The audit against the real verifier: the rows that ship, and rows of WorkBench where they lie beside the clone."""

import json

import pytest

from inputs import rows
from proofs.rig import run_script
from support.task_rows import SHARED_DATA

# Among these are each category, ground truths of 0 to 12 calls, and one row whose call changes nothing.
SOME = slice(5, None, 9)


def audit(graph, tmp_path, given):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in given))
    done = run_script("audit.py", graph.env | {"DATA_ROOT": str(tmp_path), "NEMO_GYM_SOURCE_DATA": str(source)})
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((tmp_path / "audit" / "rows.json").read_text())


def test_the_shipped_rows_pass(graph, tmp_path, example_rows):
    result = audit(graph, tmp_path, example_rows)
    assert result["replayed"] == {"rows": 5, "share": 1.0} and result["floor"] == {"rows": 0, "share": 0.0}
    assert result["alterations"]["outcomes"] == {"refused": 5}
    assert result["environment"] == graph.health()[1]["environment"]
    graph.wait_released()


@pytest.mark.shared_data
def test_rows_of_workbench_pass_and_doing_nothing_is_right_where_nothing_changes(graph, tmp_path):
    given = rows.read_rows(SHARED_DATA / "workbench_dev.jsonl")[SOME]
    result = audit(graph, tmp_path, given)
    assert result["replayed"]["share"] == 1.0 and result["faults"] == []
    without_calls = sum(not row["ground_truth"] for row in given)
    assert result["floor"]["rows"] == without_calls + 1
    assert result["alterations"]["outcomes"]["refused"] == len(given) - without_calls
    graph.wait_released()
