#!/usr/bin/env python3
"""Apply patches/*.patch, in name order, to a NeMo Gym tree: the installed package or a checkout.

Guarantees: a tree is patched whole or not at all; a second call changes nothing; a file that
is neither as released nor as patched (by patches/SHA256SUMS) is refused by name. Both the
pinned commit's tree and the release's are known. Takes under a second.

  scripts/apply_patches.py                    the nemo-gym of the running interpreter
  scripts/apply_patches.py --tree /opt/gym    a checkout (the folder with resources_servers/)
  scripts/apply_patches.py --record --tree T  write SHA256SUMS anew from pristine tree(s) T
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from common.settings import ROOT, from_command_line
from common.terminal import Failure, run, say

PATCHES = ROOT / "patches"
SUMS = PATCHES / "SHA256SUMS"
GYM_COMMIT = "a85670eb167ba9b48cc53a36a070eed815e6c40d"
REINSTALL = "rm -rf .venv && make setup"
WORKPLACE = "resources_servers/workplace_assistant"


def installed_tree():
    """Folder that holds the installed `resources_servers`. Raises Failure without nemo-gym."""
    spec = find_spec("nemo_gym")
    if spec is None or not spec.submodule_search_locations:
        raise Failure(f"{sys.executable} has no nemo-gym; run: make setup")
    return Path(spec.submodule_search_locations[0]).parent


def patch_files():
    return sorted(PATCHES.glob("*.patch"))


def digest(path):
    """sha256 of a file's bytes, or None where there is no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def read_sums():
    """{relative path: {"pristine": {digest or None}, "patched": {digest}}} from SHA256SUMS."""
    known = {}
    for line in SUMS.read_text().splitlines():
        if line and not line.startswith("#"):
            value, state, name = line.split()
            states = known.setdefault(name, {"pristine": set(), "patched": set()})
            states[state].add(None if value == "absent" else value)
    return known


def is_in(state, tree, known):
    return all(digest(tree / name) in states[state] for name, states in known.items())


def tree_state(tree, known):
    """ "pristine" or "patched"; raises Failure that names the first file which is neither."""
    for state in ("patched", "pristine"):
        if is_in(state, tree, known):
            return state
    for name, states in known.items():
        if digest(tree / name) not in states["pristine"] | states["patched"]:
            raise Failure(f"{tree / name} is neither as released nor as patched; reinstall: {REINSTALL}")
    raise Failure(f"{tree} is patched in part; reinstall: {REINSTALL}")


def patched_copy(tree, names, scratch):
    """Copy `names` out of `tree` into `scratch` and apply every patch there."""
    for name in names:
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        if (tree / name).exists():
            shutil.copy2(tree / name, scratch / name)
    # Outside any repository `git apply` takes paths as they are, whatever the clone ignores.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(scratch.parent)}
    for patch in patch_files():
        result = subprocess.run(
            ["git", "apply", str(patch)], cwd=scratch, env=environment, capture_output=True, text=True
        )
        if result.returncode:
            raise Failure(f"{patch.name} does not apply to {tree}: {result.stderr.strip().splitlines()[0]}")


def apply(tree):
    """Patch `tree`; returns whether anything was changed. Raises Failure on an unknown tree."""
    known = read_sums()
    if tree_state(tree, known) == "patched":
        return False
    try:
        with tempfile.TemporaryDirectory(dir=tree, prefix=".patching-") as folder:
            scratch = Path(folder)
            patched_copy(tree, known, scratch)
            if not is_in("patched", scratch, known):
                raise Failure(f"patches/ do not give what {SUMS.name} lists; run: scripts/apply_patches.py --record")
            for name in known:
                os.replace(scratch / name, tree / name)
    except OSError as error:
        raise Failure(f"{tree} cannot be patched: {error}") from None
    return True


def touched_names():
    """Paths that the patches change or add."""
    lines = [line for patch in patch_files() for line in patch.read_text().splitlines()]
    return sorted({line[6:] for line in lines if line.startswith("+++ b/")})


def record(trees):
    """Write SHA256SUMS from pristine trees."""
    lines = set()
    for tree in trees:
        with tempfile.TemporaryDirectory() as folder:
            names, scratch = touched_names(), Path(folder)
            patched_copy(tree, names, scratch)
            lines |= {(name, "pristine", digest(tree / name) or "absent") for name in names}
            lines |= {(name, "patched", digest(scratch / name)) for name in names}
    head = "# sha256 of each file that patches/ touch, before and after; written by apply_patches.py --record\n"
    SUMS.write_text(head + "".join(f"{value} {state} {name}\n" for name, state, value in sorted(lines)))


def fingerprint(tree):
    """What a reward depends on: {"gym_commit", "nemo_gym", "pandas", "workplace_tree", "patches"}.

    The hashes are the first 16 hex digits of sha256 over names and contents. The tree's is
    taken as it stands, patches included.
    """
    from importlib.metadata import PackageNotFoundError, version

    def installed(package):
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    workplace = tree / WORKPLACE
    files = [
        path
        for kind in ("*.py", "*.csv")
        for path in workplace.rglob(kind)
        if ".venv" not in path.parts[len(workplace.parts) :]
    ]
    return {
        "gym_commit": GYM_COMMIT,
        "nemo_gym": installed("nemo-gym"),
        "pandas": installed("pandas"),
        "workplace_tree": hash_files(tree, files),
        "patches": hash_files(PATCHES, patch_files()),
    }


def hash_files(base, files):
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.relative_to(base)}\0{digest(path)}\n".encode())
    return total.hexdigest()[:16]


def main():
    def options(parser):
        parser.add_argument(
            "--tree", type=Path, action="append", help="tree to patch (default: the installed nemo-gym)"
        )
        parser.add_argument("--record", action="store_true", help="write SHA256SUMS from pristine trees instead")

    _, args = from_command_line(__doc__, configure=options)
    trees = args.tree or [installed_tree()]
    if args.record:
        record(trees)
        say(f"{SUMS.relative_to(ROOT)} written from {len(trees)} tree(s)")
        return
    for tree in trees:
        changed = apply(tree)
        say(f"NeMo Gym {'patched' if changed else 'already patched'}: {len(patch_files())} patches, {tree}")


if __name__ == "__main__":
    run(main)
