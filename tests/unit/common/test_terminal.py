"""What a stage says: the words of others, how a stage ended, and what every script answers to --help."""

import subprocess
import sys

import pytest

from common import failure, terminal
from common.settings import ROOT

SCRIPTS = ROOT / "scripts"
PROGRAMS = sorted(path.name for path in SCRIPTS.glob("*.py") if '__name__ == "__main__":' in path.read_text())


@pytest.mark.parametrize("stream", ["out", "err"])
def test_the_words_of_others_move_no_cursor(capsys, stream):
    words = "answered \x1b[2J\x1b]0;title\x07\r\x9b1A é\tok\nnext"
    shown = "answered \ufffd[2J\ufffd]0;title\ufffd\ufffd\ufffd1A é\tok\nnext"
    if stream == "out":
        terminal.say(words)
        assert capsys.readouterr().out == shown + "\n"
        return

    def main():
        raise failure.Failure(words)

    with pytest.raises(SystemExit):
        terminal.run(main)
    assert capsys.readouterr().err == f"error: {shown}\n"


@pytest.mark.parametrize(
    ("raised", "says"),
    [
        (KeyboardInterrupt(), "[ -- ] kill-agent"),
        (SystemExit(143), "[ -- ] kill-agent"),
        (ValueError(), "[FAIL] kill-agent"),
    ],
)
def test_a_stage_that_is_interrupted_has_found_nothing(capsys, raised, says):
    with pytest.raises(type(raised)), terminal.stage("kill-agent"):
        raise raised
    line = capsys.readouterr().out
    assert line.startswith(says) and line.rstrip().endswith("interrupted") == ("--" in says)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_explains_itself(name):
    command = [sys.executable, str(SCRIPTS / name), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip()
