"""The folder of an evaluation: what is appended, what a kill leaves, what is refused; and dumps in its shape."""

import json

import pytest

from common.failure import Failure
from evaluation import comparison, files
from policy import transcript

CONFIG = {"format": 1, "rows": {"path": "a.jsonl", "sha256": "0" * 64, "count": 2}, "sampling": {"temperature": 1.0}}


def sample(row=0, repeat=0, reward=1.0, **more):
    fixed = {"row_id": row + 100, "category": "c", "request_id": "eval-1", "status": "completed", "error": None}
    return fixed | {"row": row, "repeat": repeat, "reward": reward, "output": []} | more


def failure(row=0, repeat=0, **more):
    return sample(row, repeat, None, status="failed", error={"code": "agent_error"}, **more)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "eval" / "one"


@pytest.fixture
def writer(path):
    writer = files.Writer(path, CONFIG)
    yield writer
    writer.close()


def test_samples_come_back_in_order_and_a_failure_gives_way_to_a_reward(path, writer):
    for item in (sample(1), failure(0, 1), failure(1, 1, seconds=1), failure(1, 1, seconds=2), sample(0, 1), sample(0)):
        writer.add(item)
    evaluation = files.read(path)
    assert evaluation.config == CONFIG
    assert [(item["row"], item["repeat"]) for item in evaluation.samples] == [(0, 0), (0, 1), (1, 0)]
    assert [item["seconds"] for item in evaluation.failures] == [2]
    assert writer.done == {(0, 0), (0, 1), (1, 0)}


@pytest.mark.parametrize("cut", [1, 2, 20])
def test_a_line_that_was_cut_off_is_dropped_and_written_over(path, writer, cut):
    for repeat in range(3):
        writer.add(sample(repeat=repeat))
    writer.close()
    file = path / files.ROLLOUTS
    file.write_bytes(file.read_bytes()[:-cut])
    assert [item["repeat"] for item in files.read(path).samples] == [0, 1]
    again = files.Writer(path, CONFIG)
    assert again.done == {(0, 0), (0, 1)}
    again.add(sample(repeat=2))
    again.close()
    assert [item["repeat"] for item in files.read(path).samples] == [0, 1, 2]


ODD = [{"row": "0"}, {"repeat": [1]}, {"reward": float("nan")}, {"reward": None}, {"error": "x"}, {"output": [1]}]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"row": 1}', "\x00", *(json.dumps(sample() | odd) for odd in ODD)])
def test_any_other_broken_line_or_a_field_of_another_kind_is_named(path, writer, text):
    (path / files.ROLLOUTS).write_text(text + "\n" + json.dumps(sample()) + "\n")
    with pytest.raises(Failure, match=r"rollouts\.jsonl:1: not a line of an evaluation"):
        files.read(path)


def test_only_one_process_writes(path, writer):
    for write in (lambda: files.Writer(path, CONFIG), lambda: files.move_aside(path)):
        with pytest.raises(Failure, match="another evaluation writes there"):
            write()
    writer.close()
    moved = files.move_aside(path)
    assert not path.exists() and files.read(moved).config == CONFIG


def test_a_changed_configuration_is_refused_by_field_and_values_and_a_moved_file_is_none(path, writer):
    writer.close()
    files.Writer(path, CONFIG | {"rows": CONFIG["rows"] | {"path": "b.jsonl"}}).close()
    with pytest.raises(Failure, match=r'begun with rows\.sha256 = "0000.*, and now it is "1111.*FRESH=1'):
        files.Writer(path, CONFIG | {"rows": CONFIG["rows"] | {"sha256": "1" * 64}})


@pytest.mark.parametrize("name", ["rollouts.jsonl", "failures.jsonl", "result.json"])
def test_files_without_their_configuration_are_refused(path, name):
    path.mkdir(parents=True)
    (path / name).touch()
    with pytest.raises(Failure, match=rf"{path}: holds {name} and no config\.json.*EVAL_NAME.*FRESH=1"):
        files.Writer(path, CONFIG)
    assert not (path / "config.json").exists()


def test_a_result_is_written_whole_and_goes_when_samples_are_added(path, writer):
    writer.finish({"metrics": {"b": 1, "a": 2}})
    text = (path / "result.json").read_text()
    assert text.index('"a"') < text.index('"b"')
    with pytest.raises(ValueError, match="JSON"):
        writer.finish({"metrics": float("nan")})
    assert (path / "result.json").read_text() == text
    writer.reopen()
    assert sorted(file.name for file in path.iterdir()) == ["config.json", "failures.jsonl", "lock", "rollouts.jsonl"]


@pytest.mark.parametrize("text", ["[]", '{"format": 2}', None])
def test_a_folder_that_is_none_of_ours_is_refused(path, writer, text):
    (path / "config.json").unlink() if text is None else (path / "config.json").write_text(text)
    with pytest.raises(Failure, match=r"config\.json"):
        files.read(path)


@pytest.mark.parametrize(
    ("model", "name"), [("Qwen/Qwen3-4B", "Qwen3-4B"), ("/models/my model/", "my-model"), ("gpt:4o@x", "gpt-4o-x")]
)
def test_a_folder_is_named_after_model_and_split(tmp_path, model, name):
    assert files.folder_name(model, "validation") == f"{name}-validation"
    assert files.folder(tmp_path, name) == tmp_path / "eval" / name


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "-x", "a b"])
def test_a_name_that_is_no_folders_is_refused(tmp_path, name):
    with pytest.raises(Failure, match="EVAL_NAME"):
        files.folder(tmp_path, name)


# --- dumps ---------------------------------------------------------------------------------


ITEMS = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look."}]},
    {"type": "function_call", "name": "find", "arguments": '{"name": "a <b>"}'},
    {"type": "function_call_output", "output": '{"output": "1\\n2"}'},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two lines.\nDone."}]},
]


def record(index, **more):
    fields = {"rollout_id": 0, "sample_index": index, "status": "completed", "reward": 1.0, "agent_turns": 2}
    counts = {"prompt_token_count": 10, "response_token_count": 4, "total_token_count": 14}
    return fields | counts | {"response": transcript.transcript(ITEMS)} | more


def test_a_dump_is_read_in_the_shape_of_an_evaluation(tmp_path):
    path = tmp_path / "dump.jsonl"
    records = [
        record(0, row_id=7, category="c", reward=0.0),
        record(1, row_id=8, category="d", response="<tool_call>\n{broken\n</tool_call>"),
        record(2, row_id=7, category="c", status="truncated"),
        record(3, row_id=8, category="d", reward=None, error="agent exited with 1", status="failed"),
    ]
    path.write_text("".join(json.dumps(item) + "\n" for item in records))
    evaluation = files.read(path)
    first, second, third = evaluation.samples
    places = [(item["row"], item["row_id"], item["repeat"], item["reward"]) for item in evaluation.samples]
    assert evaluation.config is None and places == [(0, 7, 0, 0.0), (1, 8, 0, 1.0), (0, 7, 1, 1.0)]
    (failed,) = evaluation.failures
    assert (failed["row"], failed["repeat"], failed["error"]["cause"]) == (1, 1, "agent exited with 1")
    assert first["output"] == ITEMS and third["status"] == "truncated"
    assert second["output"] == [{"type": "function_call", "name": "", "arguments": "{broken"}]
    assert first["usage"] == {"input_tokens": 10, "output_tokens": 4}
    assert first.keys() >= files.SAMPLE_KEYS and failed.keys() >= files.FAILURE_KEYS


def test_a_dump_that_names_no_row_has_a_row_for_each_sample_or_each_group():
    alone = files.of_records([record(0), record(1)]).samples
    grouped = files.of_records([record(0, group_id=5), record(1, group_id=5), record(2, group_id=6)]).samples
    assert [(item["row"], item["repeat"]) for item in alone] == [(0, 0), (1, 0)]
    assert [(item["row"], item["repeat"]) for item in grouped] == [(0, 0), (0, 1), (1, 0)]
    later = files.of_records([record(0, group_id=5), record(0, group_id=5, rollout_id=1)]).samples
    assert [item["row"] for item in later] == [0, 1], "a trainer numbers its groups anew in each rollout"


def test_a_failed_sample_of_a_dump_belongs_to_its_row():
    failed = record(1, row_id=8, category="d", reward=None, error="lost", status="failed")
    held = files.of_records([record(0, row_id=8, category="d"), failed])
    (lacking,) = comparison.missing(held)
    assert lacking["row_key"] == held.samples[0]["row_key"] is not None


def test_a_reward_that_no_float_holds_is_no_reward():
    held = files.of_records([record(0, reward=10**400), record(1, reward=True), record(2, reward=float("inf"))])
    assert [item["reward"] for item in held.failures] == [None, None, None] and not held.samples
