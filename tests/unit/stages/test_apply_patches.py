"""Patching NeMo Gym's tree: from the files as released to the patched ones, whole or not at all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import apply_patches
from apply_patches import apply
from common import program
from common.failure import Failure
from servers import tree as gym_tree
from servers.tree import installed_tree, patch_files, read_sums, tree_state
from support.programs import only_error, stage

APP = "resources_servers/workplace_assistant/app.py"
ADDED = "resources_servers/workplace_assistant/sessions.py"
AGENT = "responses_api_agents/simple_agent/app.py"


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """The touched servers as released, got back from the installed ones, which are patched."""
    tree = tmp_path_factory.mktemp("released")
    installed = installed_tree()
    if tree_state(installed, read_sums()) != "patched":
        pytest.skip("the installed nemo-gym is not patched: make setup")
    ignored = shutil.ignore_patterns("__pycache__", ".venv")
    for folder in {Path(name).parent for name in read_sums()}:
        shutil.copytree(installed / folder, tree / folder, ignore=ignored, dirs_exist_ok=True)
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    for patch in reversed(patch_files()):
        subprocess.run(["git", "apply", "-R", patch], cwd=tree, env=environment, check=True, capture_output=True)
    return tree


@pytest.fixture
def tree(released, tmp_path):
    return shutil.copytree(released, tmp_path / "tree")


def contents(tree):
    return {path.relative_to(tree): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_a_released_tree_becomes_the_installed_one_and_a_second_call_changes_nothing(tree, tmp_path):
    names, before = list(read_sums()), contents(tree)
    os.link(tree / APP, tmp_path / "cached.py")
    assert tree_state(tree, read_sums()) == "pristine" and not (tree / ADDED).exists()
    assert apply(tree) is True
    after, moments = contents(tree), [(tree / name).stat().st_mtime_ns for name in names]
    assert {name for name in after if after[name] != before.get(name)} == set(map(Path, names))
    assert all(after[Path(name)] == (installed_tree() / name).read_bytes() for name in names)
    # A file that a cache links to is replaced, and not written through.
    assert (tmp_path / "cached.py").read_bytes() == before[Path(APP)]
    assert apply(tree) is False
    assert contents(tree) == after and [(tree / name).stat().st_mtime_ns for name in names] == moments


@pytest.mark.parametrize("name", [APP, AGENT])
def test_a_file_that_is_neither_or_missing_is_refused_by_name_before_and_after(tree, name):
    (tree / ADDED).write_text("# somebody else's\n")
    with pytest.raises(Failure, match="sessions.py is neither"):
        apply(tree)
    (tree / ADDED).unlink()
    for _ in ("released", "patched"):
        good = (tree / name).read_bytes()
        (tree / name).write_bytes(good + b"\n# mine\n")
        before = contents(tree)
        with pytest.raises(Failure, match=rf"{name} is neither .*make setup"):
            apply(tree)
        assert contents(tree) == before
        (tree / name).unlink()
        with pytest.raises(Failure, match=rf"{name} is neither"):
            apply(tree)
        (tree / name).write_bytes(good)
        apply(tree)


@pytest.mark.parametrize("name", [APP, ADDED, AGENT])
def test_a_tree_patched_in_part_is_refused(tree, name):
    (tree / name).write_bytes((installed_tree() / name).read_bytes())
    before = contents(tree)
    with pytest.raises(Failure, match="patched in part; reinstall: .*make setup"):
        apply(tree)
    assert contents(tree) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("moment", ["patched_copy", "replace"])
def test_an_interrupted_call_leaves_the_tree_as_it_was(tree, monkeypatch, moment, error):
    def interrupted(*_, **__):
        raise error

    before = contents(tree)
    monkeypatch.setattr(*((apply_patches, moment) if moment == "patched_copy" else (os, moment)), interrupted)
    with pytest.raises((KeyboardInterrupt, Failure)):
        apply(tree)
    assert contents(tree) == before
    assert not list(tree.glob(".patching-*"))
    monkeypatch.undo()
    assert apply(tree) is True


def test_a_kill_in_the_middle_leaves_a_tree_that_can_be_patched(tree):
    code = (
        "import os, sys, apply_patches, pathlib\n"
        "apply_patches.subprocess.run = lambda *_, **__: os._exit(9)\n"
        "apply_patches.apply(pathlib.Path(sys.argv[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(program.SCRIPTS)}
    killed = subprocess.run([sys.executable, "-c", code, str(tree)], env=environment)
    assert killed.returncode == 9
    assert tree_state(tree, read_sums()) == "pristine"
    assert apply(tree) is True and tree_state(tree, read_sums()) == "patched"


def test_patches_that_give_something_else_than_listed_change_nothing(tree, monkeypatch, tmp_path):
    other = tmp_path / "patches"
    shutil.copytree(gym_tree.PATCHES, other)
    patch = sorted(other.glob("*.patch"))[0]
    patch.write_text(patch.read_text().replace("This rollout has ended.", "This rollout is over."))
    monkeypatch.setattr(gym_tree, "PATCHES", other)
    before = contents(tree)
    with pytest.raises(Failure, match="--record"):
        apply(tree)
    assert contents(tree) == before
    patch.write_text(patch.read_text().replace("Dict[str, Any]", "Dict[str, None]"))
    with pytest.raises(Failure, match=f"{patch.name} does not apply"):
        apply(tree)
    assert contents(tree) == before


def test_sums_are_what_record_writes_of_the_released_tree(tree, monkeypatch, tmp_path):
    monkeypatch.setattr(gym_tree, "SUMS", tmp_path / "SUMS")
    apply_patches.record([tree])
    listed = (gym_tree.PATCHES / "SHA256SUMS").read_text().splitlines()
    assert set((tmp_path / "SUMS").read_text().splitlines()) <= set(listed)
    assert {APP, ADDED, AGENT} <= set(read_sums()) == set(apply_patches.touched_names())


# --- the script ----------------------------------------------------------------------------


def script(tree):
    return stage("apply_patches", "--tree", tree)


def test_the_script_says_what_it_did_and_refuses_in_one_line(tree, tmp_path):
    assert script(tree).stdout == f"NeMo Gym patched: {len(patch_files())} patches, {tree}\n"
    assert script(tree).stdout.startswith("NeMo Gym already patched")
    only_error(script(tmp_path / "nothing"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_tree_that_may_not_be_written_is_named(tree):
    tree.chmod(0o500)
    try:
        refused = script(tree)
    finally:
        tree.chmod(0o700)
    assert "cannot be patched" in only_error(refused)


# --- the fingerprint -----------------------------------------------------------------------


def test_the_fingerprint_changes_with_code_data_and_patches_and_nothing_else(tree, monkeypatch, tmp_path):
    first = gym_tree.fingerprint(tree)
    assert set(first) == {"gym_commit", "nemo_gym", "pandas", "workplace_tree", "patches"}
    assert first["nemo_gym"] == "0.4.0" and first["pandas"] == "2.3.2"
    (tree / "resources_servers/workplace_assistant/notes.txt").write_text("x")
    assert gym_tree.fingerprint(tree) == first
    table = next((tree / "resources_servers/workplace_assistant").rglob("*.csv"))
    table.write_bytes(table.read_bytes() + b"\n")
    assert gym_tree.fingerprint(tree)["workplace_tree"] != first["workplace_tree"]
    other = shutil.copytree(gym_tree.PATCHES, tmp_path / "patches")
    monkeypatch.setattr(gym_tree, "PATCHES", other)
    assert gym_tree.fingerprint(tree)["patches"] == first["patches"]
    (other / "0009-more.patch").write_text("more")
    assert gym_tree.fingerprint(tree)["patches"] != first["patches"]
