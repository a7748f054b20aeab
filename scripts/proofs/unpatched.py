"""The environment without our patches, beside the patched one: for comparison, never for training.

Guarantees:
- the clone's own environment stays as it is: patches are undone on a copy of the installed tree
- a graph that is started with the overlay's Python differs in that copy alone
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

from common.failure import Failure
from servers.tree import WORKPLACE, installed_tree


def take_back(patches: list[Path], folder: Path) -> None:
    """Copy the installed Workplace Assistant into `folder` and undo `patches` there, the last one first."""
    shutil.copytree(installed_tree() / WORKPLACE, folder / WORKPLACE, ignore=shutil.ignore_patterns("__pycache__"))
    # Outside any repository, `git apply` applies to paths that the clone ignores, too.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    for patch in reversed(patches):
        command = ["git", "apply", "--reverse", f"--include={WORKPLACE}/*", str(patch)]
        result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if result.returncode:
            raise Failure(f"{patch.name} is not in {installed_tree()}: {result.stderr.strip()}; run: make setup")


def overlay(patches: list[Path], folder: Path) -> Path:
    """Make a virtual environment with the unpatched copy before the clone's packages: its Python."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.EnvBuilder(symlinks=True).create(folder)
    places = {"base": str(folder), "platbase": str(folder)}
    site = folder / sysconfig.get_path("purelib", vars=places).removeprefix(f"{folder}/")
    packages = sysconfig.get_path("purelib")
    (site / "clone.pth").write_text(f"{packages}\n")
    take_back(patches, site)
    # Ray starts its processes by the path beside the interpreter.
    (folder / "bin" / "ray").symlink_to(f"{sysconfig.get_path('scripts')}/ray")
    return folder / "bin" / "python"
