"""Commands that start our own programs, so that no file has to touch `sys.path`.

A stage is started by its path; a program inside a room as a module, with scripts/ on its PYTHONPATH.
"""

from __future__ import annotations

import sys

from common.settings import ROOT

SCRIPTS = ROOT / "scripts"


def stage(name: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command of scripts/NAME.py."""
    return [python, str(SCRIPTS / f"{name}.py"), *arguments]


def room(module: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """The command of a program inside a room, `module` as `room.file`."""
    return ["env", f"PYTHONPATH={SCRIPTS}", python, "-m", module, *arguments]
