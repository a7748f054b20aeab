#!/usr/bin/env python3
"""Look at every node of a Ray cluster before a training job goes there; runs inside a Ray job.

`make train` sends this file's text along, so that it runs where the clone is missing, too. For
each alive node a small task says whether the paths are there with the right contents, whether
what one node writes to EXP_DIR shows on the others, and whether the Gateways answer. On the head, where
the trainer will serve the model, one whole trial is then played at each Gateway with a policy that
does nothing: it shows that the callback address is allowed, and reached from the Gym's machine.
Guarantees: one line of JSON at the end, whatever was found; nothing is left on the nodes. Weight
files are compared by size, and by hash of their first and last MiB. Standard library and the
trainer's Ray; a session's address and reachability at another port prove little about a firewall.

    NODE_CHECK_SPEC='{...}' python3 scripts/training/node_check.py
"""

import hashlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

MARK = "NODE_CHECK "
NODE_TIMEOUT_S = 120
ASK_TIMEOUT_S = 10
WHOLE_BYTES = 64 << 20
EDGE_BYTES = 1 << 20
# How long a shared file system may take to show a new file on another node.
SHOWS_AFTER_S = 15


def fingerprint(path, patterns):
    """Hash of a file, or of the files in a folder that match `patterns`, their names included.

    Raises OSError where nothing is found.
    """
    root = Path(path)
    files = [root] if root.is_file() else sorted({file for each in patterns for file in root.glob(each)})
    total = hashlib.sha256()
    for file in filter(Path.is_file, files):
        total.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode() + _content_hash(file))
    if not files or not root.exists():
        raise FileNotFoundError(2, "No such file or directory" if not root.exists() else "holds none of its files")
    return total.hexdigest()


def _content_hash(file):
    content, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as stream:
        if size > WHOLE_BYTES:
            content.update(stream.read(EDGE_BYTES))
            stream.seek(size - EDGE_BYTES)
        for block in iter(lambda: stream.read(EDGE_BYTES), b""):
            content.update(block)
    return content.digest()


def path_faults(spec):
    """What is wrong with the paths on this node, a line each."""
    faults = []
    for each in spec["paths"]:
        try:
            found = fingerprint(each["path"], each["patterns"])
        except OSError as error:
            faults.append(f"{each['path']}: {error.strerror} ({each['what']})")
            continue
        if found != each["sha256"]:
            faults.append(f"{each['path']}: other contents than on the submitting machine ({each['what']})")
    if not os.access(spec["python"], os.X_OK):
        faults.append(f"{spec['python']}: no program there (RELAX_PYTHON)")
    return faults


def shared_fault(spec):
    """Whether the submitter's probe shows in EXP_DIR, and whether this node can write there."""
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


def gateway_fault(gateway):
    """Whether this node reaches the Gateway the submitter saw."""
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


def look_around(spec):
    """Everything that is wrong on the node this runs on, a line each."""
    found = [*path_faults(spec), shared_fault(spec), *map(gateway_fault, spec["gateways"])]
    return [fault for fault in found if fault]


def play_trials(spec, address):
    """Have a trial played at each Gateway with the model served at `address`: (faults, notes)."""
    scripts = str(Path(spec["root"]) / "scripts")
    command = ["env", f"PYTHONPATH={scripts}", spec["python"], "-m", "training.node_trial", address]
    played = subprocess.run(command, input=json.dumps(spec), capture_output=True, text=True, timeout=NODE_TIMEOUT_S)
    lines = played.stdout.splitlines()
    if played.returncode or not lines:
        last = (played.stderr.strip().splitlines() or ["no output"])[-1]
        return [f"the trials ended with {played.returncode}: {last[:300]}"], []
    return tuple(json.loads(lines[-1]))


def check(spec):
    """Look at all nodes, then play the trials on the head: {"nodes": {address: [fault]}, "trials", "notes"}."""
    # Imported here: the submitting machine reads fingerprints with this module and may have no Ray.
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def on(node, work, *arguments):
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(work).remote(*arguments)

    def told(task):
        try:
            return ray.get(task, timeout=NODE_TIMEOUT_S)
        except Exception as error:
            return [f"the look at this node failed: {' '.join(str(error).split())[-300:]}"]

    ray.init(log_to_driver=False, logging_level="ERROR")
    alive = [node for node in ray.nodes() if node["Alive"]]
    tasks = {f"{node['NodeManagerAddress']} ({node['NodeID'][:8]})": on(node, look_around, spec) for node in alive}
    result = {"nodes": {name: told(task) for name, task in tasks.items()}, "trials": [], "notes": []}
    head = next((node for node in alive if "node:__internal_head__" in node["Resources"]), alive[0])
    if not any(result["nodes"].values()):
        played = told(on(head, play_trials, spec, head["NodeManagerAddress"]))
        result["trials"], result["notes"] = played if len(played) == 2 else (played, [])
    return result


def main():
    if "NODE_CHECK_SPEC" not in os.environ:
        known = sys.argv[1:] in (["-h"], ["--help"])
        print(__doc__.strip(), file=sys.stdout if known else sys.stderr)
        return 0 if known else 2
    print(MARK + json.dumps(check(json.loads(os.environ["NODE_CHECK_SPEC"]))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
