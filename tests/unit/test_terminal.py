"""What a stage says, when the words are another's."""

import pytest

import terminal


@pytest.mark.parametrize("stream", ["out", "err"])
def test_the_words_of_others_move_no_cursor(capsys, stream):
    words = "answered \x1b[2J\x1b]0;title\x07\r\x9b1A é\tok\nnext"
    shown = "answered \ufffd[2J\ufffd]0;title\ufffd\ufffd\ufffd1A é\tok\nnext"
    if stream == "out":
        terminal.say(words)
        assert capsys.readouterr().out == shown + "\n"
        return

    def main():
        raise terminal.Failure(words)

    with pytest.raises(SystemExit):
        terminal.run(main)
    assert capsys.readouterr().err == f"error: {shown}\n"
