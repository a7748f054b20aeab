"""What a stage says: the words of others, how a stage ended, and what every script answers to --help."""

import sys

import pytest

from common import failure, program, terminal
from support.programs import run


def test_the_words_of_others_move_no_cursor(capsys):
    words = "answered \x1b[2J\x1b]0;title\x07\r\x9b1A é\tok\nnext"

    def main():
        terminal.say(words)
        raise failure.Failure(words)

    with pytest.raises(SystemExit):
        terminal.run(main)
    shown = "answered \ufffd[2J\ufffd]0;title\ufffd\ufffd\ufffd1A é\tok\nnext\n"
    assert capsys.readouterr() == (shown, f"error: {shown}")


@pytest.mark.parametrize(
    ("raised", "mark"), [(KeyboardInterrupt(), "[ -- ]"), (SystemExit(143), "[ -- ]"), (ValueError(), "[FAIL]")]
)
def test_a_stage_that_is_interrupted_has_found_nothing(capsys, raised, mark):
    with pytest.raises(type(raised)), terminal.stage("kill-agent"):
        raise raised
    line = capsys.readouterr().out
    assert line.startswith(f"{mark} kill-agent") and line.rstrip().endswith("interrupted") == ("--" in mark)


@pytest.mark.parametrize("path", sorted(program.SCRIPTS.glob("*.py")), ids=lambda path: path.name)
def test_every_program_explains_itself(path):
    done = run(sys.executable, path, "--help")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.strip()
