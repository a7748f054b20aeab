#!/usr/bin/env python3
"""Clone the trainer (Relax) to RELAX_ROOT, at RELAX_REF: `make relax`.

Usually there is a checkout on shared storage: set RELAX_ROOT to it and leave this out. Needs git and a
network. Guarantees: a checkout appears whole or not at all; an existing one is left as it is, and its
commit is named.

    make relax RELAX_REF=main
    scripts/run.sh fetch_relax --relax-root /shared/Relax
"""

import shutil
import subprocess

from common import terminal
from common.failure import Failure
from common.files import in_words
from common.git import commit
from common.settings import Settings, from_command_line
from training.plan import RELAX_FILES

CURES = {
    "clone": "check RELAX_URL, the network and the proxy variables, or set RELAX_ROOT to a checkout",
    "checkout": "set RELAX_REF to a branch, tag or commit of RELAX_URL",
}


def git(*words: str) -> None:
    """Run git to its end. Raises Failure with its last line."""
    with in_words("git", "; install it"):
        done = subprocess.run(["git", *words], capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        name = words[0] if words[0] != "-C" else words[2]
        raise Failure(f"git {name}: {lines[-1][:300]}; {CURES[name]}")


def clone(settings: Settings) -> None:
    """Clone beside the target, then move the clone there."""
    target = settings.RELAX_ROOT
    beside = target.with_name(target.name + ".part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        with in_words(target, " (RELAX_ROOT)"):
            beside.parent.mkdir(parents=True, exist_ok=True)
            git("clone", "--quiet", "--no-checkout", settings.RELAX_URL, str(beside))
            git("-C", str(beside), "checkout", "--quiet", settings.RELAX_REF)
            beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def main() -> None:
    settings, _ = from_command_line(__doc__, "RELAX_ROOT", "RELAX_URL", "RELAX_REF")
    root = settings.RELAX_ROOT
    if not root.exists():
        with terminal.stage(f"clone {settings.RELAX_URL}"):
            clone(settings)
    if missing := [name for name in RELAX_FILES if not (root / name).is_file()]:
        raise Failure(f"{root}: is no checkout of the trainer, it lacks {missing[0]}; move it away, or set RELAX_ROOT")
    terminal.say(f"Trainer ready: {root} at {commit(root)}")


if __name__ == "__main__":
    terminal.run(main)
