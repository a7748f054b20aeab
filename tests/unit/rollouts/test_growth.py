"""What a folder of dumps gains: only whole lines, and only what a run adds."""

from pathlib import Path

import pytest

from rollouts import growth
from support.dumps import append, sample


def rewards_in(gains):
    return [(name, anew, [item["reward"] for item in items]) for name, anew, items in gains]


def test_only_what_a_run_adds_is_read_and_only_whole_lines(tmp_path):
    old = tmp_path / "0.jsonl"
    append(old, sample(reward=0.5))
    reader = growth.DumpReader(tmp_path, growth.marks(tmp_path))
    assert reader.read() == []
    append(old, sample(reward=0.25), sample(reward=0.75), end="")
    append(tmp_path / "1.jsonl", sample(reward=0.125))
    assert rewards_in(reader.read()) == [("0.jsonl", False, [0.25]), ("1.jsonl", False, [0.125])]
    with old.open("a") as file:
        file.write("\nnot JSON\n")
    assert rewards_in(reader.read()) == [("0.jsonl", False, [0.75])]
    assert reader.read() == []


@pytest.mark.parametrize("count", [1, 5, 9])
def test_a_dump_written_anew_is_read_from_its_start(tmp_path, count):
    path = tmp_path / "0.jsonl"
    append(path, *[sample(reward=0.25)] * 5)
    reader = growth.DumpReader(tmp_path, growth.marks(tmp_path))
    for reward in (0.5, 0.75):
        path.unlink()
        append(path, *[sample(reward=reward)] * count)
        assert rewards_in(reader.read()) == [("0.jsonl", True, [reward] * count)]


def test_a_dump_that_cannot_be_read_now_is_read_later(tmp_path, monkeypatch):
    append(tmp_path / "0.jsonl", sample())
    reader = growth.DumpReader(tmp_path, {})
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(OSError(116, "Stale file handle")))
        assert reader.read() == []
    assert rewards_in(reader.read()) == [("0.jsonl", False, [1.0])]
