"""The house keeps its rule: a stage starts, a room is imported, and a room imports only rooms before it."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
ORDER = (
    {"common", "pages"}, {"policy", "cluster"}, {"inputs"}, {"servers"}, {"gateway"}, {"proofs"}, {"rollouts"},
    {"learning", "training", "evaluation"}, {"checks", "reports"},
)  # fmt: skip
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
STAGES = {path.stem for path in SCRIPTS.glob("*.py")}
# What must start on any Python, without packages: the session client and all that it imports.
STANDARD_LIBRARY_ONLY = (
    "session_client",
    "gateway.client",
    "gateway.trial_request",
    "common.settings",
    "common.failure",
)


def imports(path):
    """[(module, whether inside a function)] that a file imports, `from room import file` as room.file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = set(tree.body)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node not in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(f"{node.module}.{alias.name}", node not in top) for alias in node.names]
    return found


def room_of(path):
    return path.relative_to(SCRIPTS).parts[0] if path.parent != SCRIPTS else None
