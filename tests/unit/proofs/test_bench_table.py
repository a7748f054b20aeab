"""The README shows the figures of the bench's file: each level, ratios of what stands beside them, nothing missing."""

import json
import sys

import pytest

import bench
from common.failure import Failure
from proofs import bench_graphs, bench_table, published


def graph(trials_per_s, resource, p99_ms, mb=0.01):
    cpu = {"gateway": 8.04, "agent": 11.0, "resource": resource, "load": 7.0}
    figures = {"trials": 150, "failed": 1, "trials_per_s": trials_per_s, "p50_ms": 1000, "p99_ms": p99_ms}
    return figures | {"cpu_ms_per_trial": cpu, "mb_per_session": mb}


FOUND = {
    "date": "2026-01-02", "commit": "abc1234", "cores": 2, "load_before": 0.51,
    "graph": {
        "64": {"patched": graph(48.0, 10.0, 2000), "unpatched": graph(6.0, 140.0, 20000, None)},
        "256": {"patched": graph(47.0, 10.0, 8000)},
    },
    "gateway": {"64": {"trials": 192, "cpu_ms_per_trial": 6.25, "trials_per_s": 130.4, "failed": 0}},
    "client": {"starts": 15, "p50_ms": 101.4, "p95_ms": 120.0},
    "tools": {
        "seed": {"patched": 0.01, "unpatched": 20.0},
        "verify search+reply": {"patched": 0.5, "unpatched": 50.0},
        "verify all 27 tools": {"patched": 2.0, "unpatched": 200.0},
        "email_search_emails": {"patched": 0.5, "unpatched": 2.5},
        "calendar_search_events": {"patched": 0.4, "unpatched": 2.5},
        "email_send_email": {"patched": 0.04, "unpatched": 0.4},
    },
}  # fmt: skip


def test_every_level_has_a_row_for_each_environment_and_a_ratio_where_both_ran():
    text = bench_table.markdown(FOUND)
    assert text.startswith("2026-01-02, commit abc1234, 2 cores, load average 0.5 before:\n\n")
    assert "| 64 | patched | 48.0 | 1.0 s | 2.0 s | 8.0 ms | 11.0 ms | 10.0 ms | 7.0 ms | 0.010 MB | 1 of 150 |" in text
    assert "| 64 | ratio | 8.0 |  | 1/10.0 |  |  | 1/14.0 |  |  |  |\n| 256 | patched | 47.0 |" in text
    assert text.count("ratio |") == 2, "one row of it, and the parts' column"
    assert [bench_graphs.enough(150, level) for level in (8, 64, 1024)] == [150, 192, 3072]
    widths = {line.count("|") for line in text.split("\n\n")[1].splitlines()}
    assert len(widths) == 1


def test_of_the_tools_the_slowest_search_and_the_slowest_other_are_shown():
    text = bench_table.markdown(FOUND)
    assert "| email_search_emails | 0.5 ms | 2.5 ms | 1/5 |\n| email_send_email | 0.04 ms | 0.4 ms | 1/10 |" in text
    assert "calendar_search_events" not in text and "| seed | 0.01 ms | 20 ms | 1/2000 |" in text
    assert "| 64 | 6.2 ms | 130 | 0 of 192 |" in text and "median 101 ms of 15" in text
    with pytest.raises(Failure, match="holds no client"):
        bench_table.markdown({name: FOUND[name] for name in ("date", "graph", "gateway", "tools")})


def test_publish_writes_the_file_at_hand_between_its_marks(tmp_path, monkeypatch, capsys):
    readme, out = tmp_path / "README.md", tmp_path / "bench"
    readme.write_text("before\n<!-- bench: written by `x` -->\nold\n<!-- /bench -->\nafter\n")
    monkeypatch.setattr(published, "MEASURED", readme)
    monkeypatch.setattr(sys, "argv", ["bench.py", "--publish", "--out", str(out)])
    with pytest.raises(Failure, match="make bench writes it"):
        bench.main()
    out.mkdir()
    (out / "bench.json").write_text(json.dumps(FOUND))
    bench.main()
    text = readme.read_text()
    assert text == f"before\n<!-- bench: written by `x` -->\n{bench_table.markdown(FOUND)}<!-- /bench -->\nafter\n"


def test_the_file_itself_has_a_place_for_them_and_shows_a_run_on_a_commit():
    shown = published.part(published.MEASURED.read_text(), "bench")[1]
    assert ", commit " in shown and "+, " not in shown and "| ratio |" in shown
    with pytest.raises(Failure, match="git checkout"):
        published.part("nothing", "bench")
