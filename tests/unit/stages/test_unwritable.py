"""Where a stage cannot write, it says so in one line: a full disk, a forbidden folder."""

import errno
import os

import pytest

from common import terminal
from support.programs import only_error, stage


def failing(error):
    def main():
        raise error

    return main


@pytest.mark.parametrize(
    ("number", "said"), [(errno.ENOSPC, "the disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission")]
)
def test_a_file_that_cannot_be_used_is_one_line(capsys, number, said):
    with pytest.raises(SystemExit) as ended:
        terminal.run(failing(OSError(number, "x", "/full/run/file")))
    captured = capsys.readouterr()
    assert ended.value.code == 1
    assert captured.err.startswith("error: /full/run/file cannot be used: ")
    assert said in captured.err and captured.err.count("\n") == 1


def test_any_other_fault_of_the_system_is_not_explained_away():
    with pytest.raises(OSError, match="Too many open files"):
        terminal.run(failing(OSError(errno.EMFILE, os.strerror(errno.EMFILE))))


def test_a_run_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    error = only_error(stage("gym_up", "--gym-backend", "local", "--run-dir", tmp_path / "file" / "run"))
    assert str(tmp_path / "file") in error and "RUN_DIR" in error
