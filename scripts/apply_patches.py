#!/usr/bin/env python3
"""Apply patches/*.patch, in name order, to a NeMo Gym tree: the installed package or a checkout.

Guarantees: a tree is patched whole or not at all; a second call changes nothing; a file that
is neither as released nor as patched (by patches/SHA256SUMS) is refused by name. Both the
pinned commit's tree and the release's are known. Takes under a second.

    scripts/apply_patches.py                    the nemo-gym of the running interpreter
    scripts/apply_patches.py --tree /opt/gym    a checkout (the folder with resources_servers/)
    scripts/apply_patches.py --record --tree T  write SHA256SUMS anew from pristine tree(s) T
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from common.failure import Failure
from common.settings import ROOT, from_command_line
from common.terminal import run, say
from servers import tree as gym_tree
from servers.tree import digest, installed_tree, is_in, patch_files, read_sums, tree_state

OPTIONS = {
    "--tree": {"type": Path, "action": "append", "help": "tree to patch (default: the installed nemo-gym)"},
    "--record": {"action": "store_true", "help": "write SHA256SUMS from pristine trees instead"},
}


def patched_copy(tree: Path, names: Iterable[str], scratch: Path) -> None:
    """Copy `names` out of `tree` into `scratch` and apply every patch there."""
    for name in names:
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        if (tree / name).exists():
            shutil.copy2(tree / name, scratch / name)
    # The ceiling hides this clone: in a repository `git apply` skips paths that it ignores.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(scratch.parent)}
    for patch in patch_files():
        result = subprocess.run(
            ["git", "apply", str(patch)], cwd=scratch, env=environment, capture_output=True, text=True
        )
        if result.returncode:
            raise Failure(f"{patch.name} does not apply to {tree}: {result.stderr.strip().splitlines()[0]}")


def apply(tree: Path) -> bool:
    """Patch `tree`; returns whether anything was changed. Raises Failure on an unknown tree."""
    known = read_sums()
    if tree_state(tree, known) == "patched":
        return False
    try:
        with tempfile.TemporaryDirectory(dir=tree, prefix=".patching-") as folder:
            scratch = Path(folder)
            patched_copy(tree, known, scratch)
            if not is_in("patched", scratch, known):
                raise Failure(
                    f"patches/ do not give what {gym_tree.SUMS.name} lists; run: scripts/apply_patches.py --record"
                )
            for name in known:
                os.replace(scratch / name, tree / name)
    except OSError as error:
        raise Failure(f"{tree} cannot be patched: {error}") from None
    return True


def touched_names() -> list[str]:
    """Paths that the patches change or add."""
    lines = [line for patch in patch_files() for line in patch.read_text().splitlines()]
    return sorted({line[6:] for line in lines if line.startswith("+++ b/")})


def record(trees: list[Path]) -> None:
    """Write SHA256SUMS from pristine trees."""
    lines = set()
    for tree in trees:
        with tempfile.TemporaryDirectory() as folder:
            names, scratch = touched_names(), Path(folder)
            patched_copy(tree, names, scratch)
            lines |= {(name, "pristine", digest(tree / name) or "absent") for name in names}
            lines |= {(name, "patched", digest(scratch / name)) for name in names}
    head = "# sha256 of each file that patches/ touch, before and after; written by apply_patches.py --record\n"
    gym_tree.SUMS.write_text(head + "".join(f"{value} {state} {name}\n" for name, state, value in sorted(lines)))


def main() -> None:
    _, args = from_command_line(__doc__, options=OPTIONS)
    trees = args.tree or [installed_tree()]
    if args.record:
        record(trees)
        say(f"{gym_tree.SUMS.relative_to(ROOT)} written from {len(trees)} tree(s)")
        return
    for tree in trees:
        changed = apply(tree)
        say(f"NeMo Gym {'patched' if changed else 'already patched'}: {len(patch_files())} patches, {tree}")


if __name__ == "__main__":
    run(main)
