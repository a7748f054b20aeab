#!/usr/bin/env python3
"""Put the weights of Qwen/Qwen3-4B under MODEL_DIR, checked: `make model` (about 8 GB).

Guarantees: it ends well only if the configuration is that of Qwen3-4B, the tokenizer can be
parsed, and every weight file that the index names is there with the size its own header
gives; a folder that is complete needs no network. Files that are there are kept, so an
interrupted download goes on with the missing ones. It compares no hash of a weight file: the
published revision is not pinned here; the result line names the one that was fetched.

    make model MODEL_DIR=/shared/models
    scripts/run.sh fetch_model --revision COMMIT
"""

import json
import os

from common import settings, terminal
from common.terminal import Failure
from inputs import hub

REPO = "Qwen/Qwen3-4B"
# What the trainer's model arguments are written for; another model would load and train to nothing.
SHAPE = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000


class Incomplete(Exception):
    """What a model folder lacks, with the file's name."""


def main():
    values, args = settings.from_command_line(__doc__, "MODEL_DIR", configure=add_options)
    # Imported here: the doctor knows every stage.
    import doctor

    doctor.at_start("model", values)
    folder = values.MODEL_DIR / "Qwen3-4B"
    with hub.disk_faults_in_words("MODEL_DIR", folder):
        try:
            weights = check(folder)
        except Incomplete:
            weights = fetch(folder, args.revision)
    total = sum(path.stat().st_size for path in weights)
    terminal.say(
        f"Qwen3-4B ready: layers={SHAPE['num_hidden_layers']} hidden={SHAPE['hidden_size']} "
        f"weight_files={len(weights)} bytes={total} revision={fetched_revision(folder)} path={folder}"
    )


def add_options(parser):
    parser.add_argument("--revision", default="main", help="branch, tag or commit to fetch (default: main)")


def fetch(folder, revision):
    """Download what is missing of the model, then check it; returns the weight files."""
    with terminal.stage(f"download {REPO}"):
        folder.mkdir(parents=True, exist_ok=True)
        hub.fetch_model(REPO, hub.commit_of(REPO, revision, "model"), folder)
    try:
        return check(folder)
    except Incomplete as fault:
        raise Failure(f"{folder}/{fault}; remove that file (or the folder) and run make model again") from None


def check(folder):
    """Check a model folder; returns the paths of its weight files. Raises Incomplete at the first fault."""
    config = read_json(folder / "config.json")
    for key, value in SHAPE.items():
        if config.get(key) != value:
            raise Incomplete(f"config.json: {key} is {config.get(key)!r}, not {value!r} as in Qwen3-4B")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        read_json(folder / name)
    weight_map = read_json(folder / INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise Incomplete(f"{INDEX}: names no weight files")
    paths = [folder / name for name in sorted(set(map(str, weight_map.values())))]
    for path in paths:
        check_weights(path, {tensor for tensor, name in weight_map.items() if name == path.name})
    return paths


def read_json(path):
    """The object in a JSON file. Raises Incomplete if it is missing, empty or something else."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Incomplete(f"{path.name}: missing") from None
    except (ValueError, RecursionError):
        raise Incomplete(f"{path.name}: not JSON") from None
    if not isinstance(found, dict) or not found:
        raise Incomplete(f"{path.name}: not a JSON object with keys")
    return found


def check_weights(path, tensors):
    """Check that a safetensors file holds `tensors` and has the size in bytes that its header gives."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MAX_HEADER else None
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            expected = 8 + length + max(ends)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        raise Incomplete(f"{path.name}: missing") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise Incomplete(f"{path.name}: no safetensors header") from None
    if size != expected:
        raise Incomplete(f"{path.name}: {size} bytes instead of {expected}")
    if absent := tensors - header.keys():
        raise Incomplete(f"{path.name}: lacks {len(absent)} of the tensors that {INDEX} names, {min(absent)} first")


def fetched_revision(folder):
    """The commit the client noted when it fetched the configuration; "unknown" if it did not."""
    try:
        note = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
        return note.read_text(encoding="utf-8").split("\n", 1)[0].strip() or "unknown"
    except OSError:
        return "unknown"


if __name__ == "__main__":
    terminal.run(main)
