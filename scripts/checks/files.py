"""Rows and model: there, whole, and those that are pinned; or else to be had from the hub."""

from checks.machine import MB, room
from checks.probe import fail, failed, ok, warn
from common import files
from common.failure import Failure
from inputs import hub, pins, rows
from inputs import weights as inputs_weights

MODEL_MB = 8300


def task_rows(case):
    """The rows of the split, by hash, or those of NEMO_GYM_SOURCE_DATA, each by what a row must have."""
    s = case.settings
    if s.NEMO_GYM_SOURCE_DATA:
        found = rows.read_rows(s.NEMO_GYM_SOURCE_DATA, s.LIMIT)
        return ok(f"{len(found)} rows of {s.NEMO_GYM_SOURCE_DATA}, all fit to run")
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
    # Other stages fetch rows by themselves; training takes what is there.
    what = f"rows of {split} not there yet at {path}; the hub has them"
    return failed(f"{what}; {command}") if case.stage == "train" else ok(f"{what}: {command}")


def model(case):
    """The model folder is whole, or, where it is to be fetched, the hub has it and there is room."""
    folder = case.settings.MODEL_DIR / "Qwen3-4B"
    try:
        weights = inputs_weights.check(folder)
    except (inputs_weights.Incomplete, OSError) as fault:
        return _absent(case, f"{folder}: {fault}")
    size = sum(path.stat().st_size for path in weights)
    return ok(f"{folder} whole: {len(weights)} weight files, {size / 1e9:.1f} GB")


def _absent(case, what):
    if case.stage == "model":
        hub.refuse_unreachable(inputs_weights.REPO, "main", "model")
        return ok(f"{what}; the hub has it")
    if case.trains:
        return failed(f"{what}; make model, or set MODEL_DIR")
    begun = (case.settings.MODEL_DIR / "Qwen3-4B").exists()
    return warn(what, "make model") if begun else ok(f"{what.partition(': ')[0]}: none, and only training needs it")


def room_for_model(case):
    """Room for what is still missing of the model."""
    if case.stage != "model" and not case.trains:
        return ok("not asked: only training needs a model")
    folder = case.settings.MODEL_DIR / "Qwen3-4B"
    held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // MB
    missing = max(0, MODEL_MB - held)
    return room("MODEL_DIR", folder, missing, missing)
