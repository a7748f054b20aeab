"""A git repository in the place of NeMo Gym's, made of the installed release: no network but the package index.

One commit, laid out as the Dockerfile expects it: the release's own files with our patches taken
back, and a pyproject.toml and uv.lock made for it, whose versions are those of the clone's lock.
The same packages give the same commit, so that the build's memory holds. The pinned commit itself
it is not: what builds from it has to pin this one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from common.settings import ROOT
from servers import tree

TREES = ("nemo_gym", tree.WORKPLACE, "responses_api_agents/simple_agent")
EMPTY = ("cache", "results")
WHEN = "2026-01-01T00:00:00Z"
PROJECT = """[project]
name = "nemo-gym"
version = "{version}"
requires-python = ">=3.12"
dependencies = {requirements}

[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[tool.setuptools.packages.find]
include = ["nemo_gym*", "resources_servers*", "responses_api_agents*"]

[tool.uv]
constraint-dependencies = {pins}
"""


def make(folder):
    """Make the repository in `folder`. Returns its commit."""
    installed = tree.installed_tree()
    for name in TREES:
        shutil.copytree(installed / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in EMPTY:
        (folder / name).mkdir()
        (folder / name / ".gitignore").write_text("*\n!.gitignore\n")
    take_back_patches(folder)
    lock(folder)
    return commit(folder)


def take_back_patches(folder):
    # Outside any repository `git apply` takes paths as they are, whatever the clone ignores.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    for patch in reversed(tree.patch_files()):
        subprocess.run(["git", "apply", "--reverse", str(patch)], cwd=folder, env=environment, check=True)
    assert tree.tree_state(folder, tree.read_sums()) == "pristine"


def lock(folder):
    """Write the project and its lock, both with the versions of the clone's own lock."""
    lines = (ROOT / "scripts" / "requirements.txt").read_text().splitlines()
    pins = [line.rstrip(" \\") for line in lines if re.match(r"[a-z0-9]", line) and not line.startswith("nemo-gym==")]
    requirements = [line for line in metadata.requires("nemo-gym") if "extra ==" not in line]
    parts = {"requirements": json.dumps(requirements, indent=4), "pins": json.dumps(pins, indent=4)}
    (folder / "pyproject.toml").write_text(PROJECT.format(version=metadata.version("nemo-gym"), **parts))
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    # The tests' proxies lead nowhere.
    environment = os.environ | {"no_proxy": "*", "NO_PROXY": "*"}
    subprocess.run([uv, "lock", "--quiet", "--python", sys.executable], cwd=folder, env=environment, check=True)


def commit(folder):
    people = {f"GIT_{who}_{what}": "test@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = os.environ | people | {"GIT_AUTHOR_DATE": WHEN, "GIT_COMMITTER_DATE": WHEN}

    def git(*words):
        done = subprocess.run(["git", *words], cwd=folder, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "--quiet")
    git("add", "--force", ".")
    git("commit", "--quiet", "--message", "The release of nemo-gym, laid out as its repository")
    return git("rev-parse", "HEAD")
