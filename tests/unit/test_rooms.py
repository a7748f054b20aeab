"""The house keeps its rule: a stage starts, a room is imported, and a room imports only the rooms before it."""

import ast
import re
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from servers import graph

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
ORDER = (
    ("common", "pages"), ("policy", "cluster"), ("inputs",), ("servers",), ("gateway",), ("proofs",), ("rollouts",),
    ("learning", "training", "evaluation"), ("checks", "reports"),
)  # fmt: skip
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}
FILES = {".".join(path.relative_to(SCRIPTS).with_suffix("").parts): path for path in sorted(SCRIPTS.rglob("*.py"))}


def imports(name):
    """Modules that a file imports anywhere, ours by room and file."""
    for node in ast.walk(ast.parse(FILES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            named = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (full if full in FILES else node.module for full in named)


def reached(*names):
    """All of our modules that these import, through others too."""
    found, queue = set(), list(names)
    while queue:
        name = queue.pop()
        found.add(name)
        queue += [other for other in imports(name) if other in FILES and other not in found]
    return found


@pytest.mark.parametrize("name", FILES)
def test_no_file_imports_a_stage_and_a_room_only_rooms_before_it(name):
    room = name.partition(".")[0]
    for other in imports(name):
        theirs = other.partition(".")[0]
        assert "." in other or other not in FILES, f"{name} imports the stage {other}"
        if theirs in RANK and "." in name and theirs != room:
            assert RANK[theirs] < RANK[room], f"{name} imports {other}, a room after its own"


def test_there_is_no_circle():
    ours = {name: {other for other in imports(name) if other in FILES} for name in FILES}
    # Raises CycleError, which names the files of a circle.
    assert set(TopologicalSorter(ours).static_order()) == set(FILES)


def test_every_target_has_its_script():
    for stage in re.findall(r"scripts/run\.sh (\w+)", (ROOT / "Makefile").read_text()):
        assert stage in FILES, stage


def test_the_session_client_needs_the_standard_library_alone():
    for name in reached("session_client"):
        packages = {other.partition(".")[0] for other in imports(name) if other not in FILES} - {"common", "gateway"}
        assert packages <= sys.stdlib_module_names, name


def test_the_graphs_code_is_all_that_its_processes_import():
    rooms = {name.partition(".")[0] for name in reached("servers.supervise", "servers.head_server", "gateway.app")}
    assert rooms <= set(graph.GRAPH_ROOMS)
