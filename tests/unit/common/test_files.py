"""Files: the end of a log, for the user of a failed stage."""

from common import files


def test_the_end_of_a_log_is_short_and_indented(tmp_path):
    log = tmp_path / "a.log"
    assert files.tail(log) == f"    (no {log})"
    log.write_bytes(b"\xff" + b"x" * 50_000 + b"\n" + b"\n".join(b"line %d" % n for n in range(100)))
    assert files.tail(log, 3) == "    line 97\n    line 98\n    line 99"
    assert len(files.tail(log, 1000)) < 40_000
