"""The NeMo Gym tree that the servers run: where it lies, whether it is patched, and its fingerprint."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from common.failure import Failure
from common.files import sha256_of
from common.settings import ROOT

PATCHES = ROOT / "patches"
SUMS = PATCHES / "SHA256SUMS"
GYM_COMMIT = "a85670eb167ba9b48cc53a36a070eed815e6c40d"
REINSTALL = "rm -rf .venv && make setup"
WORKPLACE = "resources_servers/workplace_assistant"


def installed_tree() -> Path:
    """Folder that holds the installed `resources_servers`. Raises Failure without nemo-gym."""
    spec = find_spec("nemo_gym")
    if spec is None or not spec.submodule_search_locations:
        raise Failure(f"{sys.executable} has no nemo-gym; run: make setup")
    return Path(spec.submodule_search_locations[0]).parent


def patch_files() -> list[Path]:
    return sorted(PATCHES.glob("*.patch"))


def digest(path: Path) -> str | None:
    """sha256 of a file's bytes; None if there is no file."""
    return sha256_of(path) if path.is_file() else None


def read_sums() -> dict[str, dict[str, set[str | None]]]:
    """{relative path: {"pristine": {digest or None}, "patched": {digest}}} from SHA256SUMS."""
    known: dict[str, dict[str, set[str | None]]] = {}
    for line in SUMS.read_text().splitlines():
        if line and not line.startswith("#"):
            value, state, name = line.split()
            states = known.setdefault(name, {"pristine": set(), "patched": set()})
            states[state].add(None if value == "absent" else value)
    return known


def is_in(state: str, tree: Path, known: dict[str, dict[str, set[str | None]]]) -> bool:
    return all(digest(tree / name) in states[state] for name, states in known.items())


def tree_state(tree: Path, known: dict[str, dict[str, set[str | None]]]) -> str:
    """ "pristine" or "patched". Raises Failure that names the first file which is neither."""
    for state in ("patched", "pristine"):
        if is_in(state, tree, known):
            return state
    for name, states in known.items():
        if digest(tree / name) not in states["pristine"] | states["patched"]:
            raise Failure(f"{tree / name} is neither as released nor as patched; reinstall: {REINSTALL}")
    raise Failure(f"{tree} is patched in part; reinstall: {REINSTALL}")


def fingerprint(tree: Path) -> dict[str, str | None]:
    """What a reward depends on: {"gym_commit", "nemo_gym", "pandas", "workplace_tree", "patches"}.

    The hashes are the first 16 hex digits of sha256 over names and contents. The tree is hashed as it is now, patches
    included.
    """
    workplace = tree / WORKPLACE
    files = [
        path
        for kind in ("*.py", "*.csv")
        for path in workplace.rglob(kind)
        if ".venv" not in path.relative_to(workplace).parts
    ]
    return {
        "gym_commit": GYM_COMMIT,
        "nemo_gym": _installed("nemo-gym"),
        "pandas": _installed("pandas"),
        "workplace_tree": hash_files(tree, files),
        "patches": hash_files(PATCHES, patch_files()),
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def hash_files(base: Path, files: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.relative_to(base)}\0{digest(path)}\n".encode())
    return total.hexdigest()[:16]
