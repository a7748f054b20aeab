#!/usr/bin/env python3
"""Check every node of a Ray cluster before a training job goes there; runs inside a Ray job.

On each alive node a task checks that the paths have the right contents, that EXP_DIR is shared, and that the
Gateways answer. On the head, where the trainer will serve the model, node_trial.py then plays a whole trial at
each Gateway. A trial through another port proves little about a firewall.

Guarantees:
- it ends with one line of JSON, whatever was found, and leaves nothing on the nodes
- it runs where the clone is missing, because `make train` sends this file's text
- large files are compared by size and by their first and last MiB
- it needs the standard library and the trainer's Ray alone

    NODE_CHECK_SPEC='{...}' python3 scripts/training/node_check.py
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

MARK = "NODE_CHECK "
NODE_TIMEOUT_S = 120
ASK_TIMEOUT_S = 10
WHOLE_BYTES = 64 << 20
EDGE_BYTES = 1 << 20
# How long a shared file system may take to show a new file on another node.
SHOWS_AFTER_S = 15


class Spec(TypedDict):
    """What the submitting machine expects of the nodes.

    `paths` holds {"path", "patterns", "what", "sha256"}, `gateways` {"url", "epoch"}; `variables` are those of the
    trials, and `api_port` is the one at which the head serves the model.
    """

    root: str
    rows: str
    paths: list[dict[str, Any]]
    exp_dir: str
    probe: str
    python: str
    gateways: list[dict[str, Any]]
    api_port: int
    variables: dict[str, str]


def fingerprint(path: Path | str, patterns: Iterable[str]) -> str:
    """Hash of a file, or of a folder's files that match `patterns`, with their names.

    Raises OSError if there is none.
    """
    root = Path(path)
    files = [root] if root.is_file() else sorted({file for pattern in patterns for file in root.glob(pattern)})
    total = hashlib.sha256()
    for file in filter(Path.is_file, files):
        total.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode() + _content_hash(file))
    if not files or not root.exists():
        raise FileNotFoundError(2, "No such file or directory" if not root.exists() else "holds none of its files")
    return total.hexdigest()


def _content_hash(file: Path) -> bytes:
    content, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as stream:
        if size > WHOLE_BYTES:
            content.update(stream.read(EDGE_BYTES))
            stream.seek(size - EDGE_BYTES)
        for block in iter(lambda: stream.read(EDGE_BYTES), b""):
            content.update(block)
    return content.digest()


def path_faults(spec: Spec) -> list[str]:
    """What is wrong with the paths on this node, a line each."""
    faults = []
    for wanted in spec["paths"]:
        try:
            differs = fingerprint(wanted["path"], wanted["patterns"]) != wanted["sha256"]
            fault = "other contents than on the submitting machine" if differs else None
        except OSError as error:
            fault = error.strerror
        if fault:
            faults.append(f"{wanted['path']}: {fault} ({wanted['what']})")
    if not os.access(spec["python"], os.X_OK):
        faults.append(f"{spec['python']}: no program there (RELAX_PYTHON)")
    return faults


def shared_fault(spec: Spec) -> str | None:
    """A fault if the submitter's probe does not show in EXP_DIR, or if this node cannot write there."""
    folder, end = Path(spec["exp_dir"]), time.monotonic() + SHOWS_AFTER_S
    probe = folder / spec["probe"]
    while not probe.exists() and time.monotonic() < end:
        time.sleep(0.5)
    if not probe.exists():
        return f"{folder}: does not show what the submitting machine wrote there (EXP_DIR)"
    own = folder / f"{spec['probe']}-{os.getpid()}"
    try:
        own.touch()
        own.unlink()
    except OSError as error:
        return f"{folder}: {error.strerror} (EXP_DIR)"
    return None


def gateway_fault(gateway: dict[str, Any]) -> str | None:
    """A fault if this node does not reach the Gateway that the submitter saw."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"{gateway['url']}/readyz"
    try:
        with opener.open(url, timeout=ASK_TIMEOUT_S) as answer:
            state = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return f"{url}: answered {error.code}"
    except (OSError, ValueError) as error:
        return f"{url}: not reached: {getattr(error, 'reason', error)}"
    if state.get("service_epoch") != gateway["epoch"]:
        return f"{url}: another Gateway answers here than on the submitting machine"
    return None


def look_around(spec: Spec) -> list[str]:
    """Everything that is wrong on this node, a line each."""
    faults = [*path_faults(spec), shared_fault(spec), *map(gateway_fault, spec["gateways"])]
    return [fault for fault in faults if fault]


def play_trials(spec: Spec, address: str) -> tuple[list[str], list[str]]:
    """Have a trial played at each Gateway with the model served at `address`: (faults, notes)."""
    scripts = str(Path(spec["root"]) / "scripts")
    command = ["env", f"PYTHONPATH={scripts}", spec["python"], "-m", "training.node_trial", address]
    played = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, timeout=NODE_TIMEOUT_S)
    lines = played.stdout.splitlines()
    if played.returncode or not lines:
        last = (played.stderr.strip().splitlines() or ["no output"])[-1]
        return [f"the trials ended with {played.returncode}: {last[:300]}"], []
    faults, notes = json.loads(lines[-1])
    return faults, notes


def check(spec: Spec) -> dict[str, Any]:
    """Check all nodes, then play the trials on the head: {"nodes": {address: [fault]}, "trials", "notes"}."""
    # The submitting machine uses `fingerprint` and may have no Ray.
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def on(node: dict[str, Any], work: Any, *arguments: Any) -> Any:
        strategy: Any = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(work).remote(*arguments)

    def result_of(task: Any) -> Any:
        try:
            return ray.get(task, timeout=NODE_TIMEOUT_S)
        except Exception as error:
            return [f"the look at this node failed: {' '.join(str(error).split())[-300:]}"]

    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    alive = [node for node in ray.nodes() if node["Alive"]]
    tasks = {f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})": on(node, look_around, spec) for node in alive}
    result: dict[str, Any] = {"nodes": {name: result_of(task) for name, task in tasks.items()}}
    result |= {"trials": [], "notes": []}
    head = next((node for node in alive if "node:__internal_head__" in node["Resources"]), alive[0])
    if not any(result["nodes"].values()):
        played = result_of(on(head, play_trials, spec, head["NodeManagerAddress"]))
        result["trials"], result["notes"] = played if len(played) == 2 else (played, [])
    return result


if __name__ == "__main__":
    print(MARK + json.dumps(check(json.loads(os.environ["NODE_CHECK_SPEC"]))), flush=True)
