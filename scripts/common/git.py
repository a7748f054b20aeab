"""Which commit a checkout is at."""

from __future__ import annotations

import subprocess
from pathlib import Path

from common.settings import ROOT


def commit(folder: Path = ROOT) -> str:
    """The first 12 digits of a checkout's commit, "+" where files differ from it; "no git checkout" otherwise."""
    git = ["git", "-C", str(folder), "-c", f"safe.directory={folder}"]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True)
    except OSError:
        return "an unknown commit (no git here)"
    return head.stdout.strip()[:12] + "+" * bool(changed.stdout.strip()) if head.returncode == 0 else "no git checkout"
