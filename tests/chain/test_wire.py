"""Endpoints that bend the wire, played through the real graph: each earns what an untouched one does, or says why not.

The inputs lie beside the clone, and the tests are skipped without them. Each quirk plays the ground truth perfectly, so
that a reward below 1 is right only where the answer itself was cut short or left out.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import eval as stage
from common.failure import Failure
from evaluation import files
from inputs import rows
from proofs.rig import eventually, free_block
from support.task_rows import SHARED_DATA

WIRE = SHARED_DATA.parent / "wire"
# Answers that a policy may give as well: it said nothing, refused, was cut short, or chose another tool.
THE_POLICYS = frozenset(
    [
        "c_empty",
        "c_refusal",
        "c_filter",
        "c_length",
        "inc_null",
        "inc_new",
        "inc_empty",
        "inc_null_fc",
        "dup_search",
        "reason_only",
    ]
)
SLOW = frozenset({"slow20"})


def quirks():
    if not WIRE.is_dir():
        return []
    spec = importlib.util.spec_from_file_location("quirks", WIRE / "quirks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    functions = (name for name, value in vars(module).items() if getattr(value, "__module__", "") == "quirks")
    return [name for name in functions if not name.startswith("_") and name != "fcs" and name not in SLOW]


pytestmark = pytest.mark.skipif(not WIRE.is_dir(), reason="no inputs beside the clone")


@pytest.fixture(scope="module")
def quirky(tmp_path_factory, example_rows):
    """URL of an endpoint with a quirk for each path."""
    import json

    source = tmp_path_factory.mktemp("wire") / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in example_rows))
    port = free_block()
    command = [sys.executable, str(WIRE / "quirky.py"), str(port), str(source)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        eventually(lambda: "listening" in process.stdout.readline())
        yield f"http://127.0.0.1:{port}", source
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", quirks())
def test_a_reward_is_the_policys_or_there_is_none(graph, quirky, name, tmp_path, monkeypatch):
    url, source = quirky
    given = graph.env | {
        "MODEL_URL": f"{url}/{name}", "MODEL": "m",
        "WIRE": "chat" if name.startswith(("c_", "reason_only")) else "responses",
        "NEMO_GYM_SOURCE_DATA": str(source), "DATA_ROOT": str(tmp_path), "EVAL_NAME": name, "EVAL_PREFLIGHT": "4",
        "NEMO_GYM_DEADLINE_S": "40", "EVAL_CONCURRENCY": "5",
    }  # fmt: skip
    for variable, text in given.items():
        monkeypatch.setenv(variable, text)
    monkeypatch.setattr("policy.endpoint.BACKOFF_S", 0.01)
    monkeypatch.setattr(sys, "argv", ["eval.py"])
    try:
        stage.main()
    except Failure as refusal:
        assert f"{url}/{name}" in str(refusal) or "EVAL_UNPARSED_SHARE" in str(refusal)
        return
    evaluation = files.read(tmp_path / "eval" / name)
    for sample in evaluation.failures:
        assert sample["error"]["cause"].startswith(f"{url}/{name}"), sample["error"]
    if name not in THE_POLICYS:
        assert all(sample["reward"] == 1 for sample in evaluation.samples)


RUNNABLE = frozenset(
    [
        "blank",
        "crlf",
        "dup_id",
        "dup_id_cat",
        "dup_row",
        "gt_unknown",
        "neg_id",
        "no_tools",
        "noeol",
        "nul",
        "null_opt",
        "tools_empty",
        "u2028",
    ]
)


@pytest.mark.parametrize("path", sorted(WIRE.glob("rows/*")), ids=lambda path: path.name)
def test_a_row_file_is_runnable_or_refused_by_its_key(path):
    try:
        rows.read_rows(path)
    except Failure as refusal:
        assert str(refusal).startswith(str(path)) and path.stem not in RUNNABLE
    else:
        assert path.stem in RUNNABLE


def test_rows_that_share_an_id_are_told_apart(tmp_path):
    base, candidate = (WIRE / "dumps_same_id" / f"{name}.jsonl" for name in ("base", "cand"))
    command = [sys.executable, str(Path(stage.__file__).with_name("compare.py"))]
    command += ["--base", str(base), "--candidate", str(candidate), "--data-root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "3 rows" in done.stdout, done


@pytest.mark.parametrize("path", sorted(WIRE.glob("dumps/*")), ids=lambda path: path.name)
def test_a_dump_is_read_or_refused_by_its_line(path):
    try:
        files.read(path)
    except Failure as refusal:
        assert str(refusal).startswith(f"{path}:")
