"""What a complete folder of Qwen3-4B holds: configuration, tokenizer, and every weight file that its index names.

Guarantees: a folder passes only if its configuration is that of Qwen3-4B, its tokenizer can be parsed,
and each weight file has the size that its own header gives. It compares no hashes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

REPO = "Qwen/Qwen3-4B"
# The model that the trainer's arguments describe; another one would load and learn nothing.
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


def check(folder: Path) -> list[Path]:
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


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises Incomplete if it is missing, empty or something else."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Incomplete(f"{path.name}: missing") from None
    except (ValueError, RecursionError):
        raise Incomplete(f"{path.name}: not JSON") from None
    if not isinstance(content, dict) or not content:
        raise Incomplete(f"{path.name}: not a JSON object with keys")
    return content


def check_weights(path: Path, tensors: set[str]) -> None:
    """Check that a safetensors file holds `tensors` and has the size that its header gives. Raises Incomplete."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length if length <= MAX_HEADER else 0))
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
