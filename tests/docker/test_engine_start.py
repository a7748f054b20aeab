"""`tests/docker/engine.sh` where no engine can be had: one line, status 0, and nothing left behind."""

import shutil
import subprocess

import pytest

from common.settings import ROOT

PROGRAMS = ("bash", "cat", "cut", "mkdir", "rm", "setsid", "sleep", "tail", "timeout")
FAILING = "#!/bin/bash\necho Devices cgroup is not mounted\nexit 1\n"


@pytest.mark.parametrize(
    ("user", "programs", "said"),
    [
        (1000, {}, "only root can start one"),
        (0, {}, "docker.io cannot be installed"),
        (0, {"docker": FAILING, "apt-get": FAILING}, "docker.io cannot be installed"),
        (0, {"docker": FAILING, "dockerd": FAILING}, "dockerd does not come up (Devices cgroup is not mounted)"),
    ],
)
def test_no_engine_is_one_line_and_no_fault(tmp_path, user, programs, said):
    path = tmp_path / "bin"
    path.mkdir()
    for name in PROGRAMS:
        (path / name).symlink_to(shutil.which(name))
    for name, text in ({"id": f"#!/bin/bash\necho {user}\n"} | programs).items():
        (path / name).write_text(text)
        (path / name).chmod(0o755)
    environment = {"PATH": str(path), "TMPDIR": str(tmp_path)}
    command = ["bash", str(ROOT / "tests" / "docker" / "engine.sh")]
    for word in ("start", "stop"):
        ended = subprocess.run([*command, word], env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stderr
        lines = [line for line in ended.stderr.splitlines() if line != "engine: installing docker.io"]
        expected = f"engine: none answers, and {said}; the tests that need one are skipped"
        assert lines == ([expected] if word == "start" else [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["bin"]
