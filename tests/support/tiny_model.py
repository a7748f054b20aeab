"""The files of a published Qwen3-4B, of the right shape, with tiny weights in two files."""

import json
import struct

from inputs import weights


def safetensors(name):
    header = {"__metadata__": {"format": "pt"}, name: {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(64)


def model():
    """The files of a published model, {name: bytes}."""
    shards = {f"model-0000{number}-of-00002.safetensors": f"layer.{number}" for number in (1, 2)}
    return {
        "config.json": json.dumps(weights.SHAPE).encode(),
        "tokenizer.json": b'{"version": "1.0"}',
        "tokenizer_config.json": b'{"eos_token": "x"}',
        weights.INDEX: json.dumps({"weight_map": {tensor: shard for shard, tensor in shards.items()}}).encode(),
        **{shard: safetensors(tensor) for shard, tensor in shards.items()},
    }
