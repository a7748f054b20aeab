"""Rows and model: there, whole, and as pinned; otherwise, whether the hub can give them.

Guarantees: nothing is fetched; the hub is asked only for what is missing.
"""

from __future__ import annotations

from checks.machine import MB, room
from checks.probe import Case, Finding, fail, failed, ok, warn
from common import files
from common.failure import Failure
from inputs import hub, pins, rows, weights

MODEL_MB = 8300


def task_rows(case: Case) -> Finding:
    """The rows of the split by their hash, or those of NEMO_GYM_SOURCE_DATA by what a row must have."""
    s = case.settings
    if s.NEMO_GYM_SOURCE_DATA:
        numbered = rows.read_numbered(s.NEMO_GYM_SOURCE_DATA, s.LIMIT)
        if fault := rows.repeated_id(numbered):
            return warn(f"{s.NEMO_GYM_SOURCE_DATA}: {fault}", "give each row an id of its own")
        return ok(f"{len(numbered)} rows of {s.NEMO_GYM_SOURCE_DATA}, all fit to run")
    split = "train" if case.trains and not s.is_given("SPLIT") else s.SPLIT
    path, lock = s.rows_path(split), pins.read_lock(pins.LOCK)
    pin = lock["splits"][split]
    try:
        digest = files.sha256_of(path)
    except OSError as error:
        return fail(f"{path}: {error.strerror}", "move away what is in its way, or set DATA_ROOT to another folder")
    if digest == pin["sha256"]:
        return ok(f"{pin['rows']} rows of {split} at {path}, sha256 as pinned")
    command = f"make data SPLIT={split}"
    if digest is not None:
        keep = f"{command} replaces them; to keep edits, move them first and name them in NEMO_GYM_SOURCE_DATA"
        return warn(f"rows of {split} at {path} are not those pinned (sha256 {digest[:16]}): edited or damaged", keep)
    if "package" in pin:
        return ok(f"rows of {split} not there yet; {command} takes them from {pin['package']}")
    try:
        hub.refuse_unreachable(lock["repo_id"], lock["revision"], "dataset")
    except Failure as fault:
        return failed(f"rows of {split} not there yet at {path}, and {fault}")
    # Only training does not fetch its rows itself.
    what = f"rows of {split} not there yet at {path}; the hub has them"
    return fail(what, command) if case.stage == "train" else ok(f"{what}: {command}")


def model(case: Case) -> Finding:
    """The model folder is whole; where it is to be fetched, the hub has the model."""
    folder = case.settings.MODEL_DIR / "Qwen3-4B"
    try:
        paths = weights.check(folder)
    except (weights.Incomplete, OSError) as fault:
        what = f"{folder}: {fault}"
    else:
        size = sum(path.stat().st_size for path in paths)
        return ok(f"{folder} whole: {len(paths)} weight files, {size / 1e9:.1f} GB")
    if case.stage == "model":
        hub.refuse_unreachable(weights.REPO, "main", "model")
        return ok(f"{what}; the hub has it")
    if case.trains:
        return failed(f"{what}; make model, or set MODEL_DIR")
    return warn(what, "make model") if folder.exists() else ok(f"{folder}: none, and only training needs it")


def room_for_model(case: Case) -> Finding:
    """Room for what is still missing of the model."""
    if case.stage != "model" and not case.trains:
        return ok("not asked: only training needs a model")
    folder = case.settings.MODEL_DIR / "Qwen3-4B"
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // MB
    missing = max(0, MODEL_MB - held)
    return room("MODEL_DIR", folder, missing, missing)
