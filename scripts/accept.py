#!/usr/bin/env python3
"""Judge a run layer by layer, each with its evidence: services, verifier, model rollout, training step.

Reads the newest rehearsal's dump (or --dump), asks the Gateway, and plays the verifier
contract again; a few seconds, nothing is started or changed. Guarantees: a layer is called
passed only for what was looked at now; what was not run is called so. The verdict is printed
and written to RUN_DIR/accept.json. A reward of 0 passes: it may just be a wrong action. A
Ray job's SUCCEEDED is no evidence of any layer.

    make accept
    scripts/run.sh accept --dump data/experiments/rehearsal/rollout_result/train/ID.jsonl
"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import local
import rollout_dump
import settings as variables
import terminal
from settings import ROOT
from terminal import Failure

VERIFIER_LINE = "Workplace Assistant verifier contract passed"
NO_TRAINER = "not run: rehearsal driver, no trainer on this machine"
ASK_TIMEOUT_S = 5
RELEASE_S = 15
VERIFIER_TIMEOUT_S = 120


class Layer:
    """One layer's verdict, "passed", "failed" or "not run", and the evidence for it, a line each."""

    def __init__(self, name, verdict, evidence):
        self.name, self.verdict, self.evidence = name, verdict, evidence

    @classmethod
    def judged(cls, name, faults, evidence):
        return cls(name, "failed" if faults else "passed", faults or evidence)


def readyz(settings):
    """What the Gateway says of itself: (ready, answer). The answer is {} where nobody answers."""
    status, body = local.get(f"{settings.gateway_url}/readyz", ASK_TIMEOUT_S)
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    answer = answer if isinstance(answer, dict) else {}
    return status == 200 and answer.get("ready") is True, answer


def services(settings):
    ready, answer = readyz(settings)
    url = f"{settings.gateway_url}/readyz"
    if not ready:
        said = f"not ready: {json.dumps(answer.get('servers', answer))[:300]}" if answer else "no answer"
        return Layer("services ready", "failed", [f"{url}: {said}; `make gym-up` starts the graph"])
    return Layer("services ready", "passed", [f"{url}: ready, service_epoch {answer.get('service_epoch')}"])


def verifier(settings):
    """Play the verifier contract with the stage that owns it."""
    command = [sys.executable, str(ROOT / "scripts" / "verify_verifier.py")]
    environment = os.environ | {"GYM_BASE_PORT": str(settings.GYM_BASE_PORT)}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=VERIFIER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Layer("verifier contract", "failed", [f"verify_verifier.py took more than {VERIFIER_TIMEOUT_S} s"])
    lines = (ended.stdout + ended.stderr).strip().splitlines() or ["no output"]
    passed = ended.returncode == 0 and lines[-1].startswith(VERIFIER_LINE)
    return Layer("verifier contract", "passed" if passed else "failed", lines[-1:])


def newest_dump(settings, since=0.0):
    """The newest rehearsal's dump, written after `since` (seconds of the epoch). Raises Failure if there is none."""
    folder = settings.EXP_DIR / "rehearsal" / "rollout_result" / "train"
    found = [path for path in folder.glob("*.jsonl") if path.stat().st_mtime >= since]
    if not found:
        raise Failure(f"{folder}: no rollout dump there; `make smoke` rolls the rows out")
    return max(found, key=lambda path: path.stat().st_mtime)


def rollout(path, records, settings):
    """Judge the samples of a dump and that the Gateway let go of all state."""
    faults = [f"{path}:{number}: {fault}" for number, item in enumerate(records, 1) if (fault := sample_fault(item))]
    if not records:
        faults.append(f"{path}: holds no samples")
    acting = [number for number, item in enumerate(records, 1) if acts(item)]
    if not acting:
        faults.append(f"{path}: no sample of {len(records)} took a second turn with tool calls and their results")
    clean, said = released(settings)
    if not clean:
        faults.append(said)
    evidence = [f"{path}:{acting[0]}: {described(records[acting[0] - 1])}"] if acting else []
    evidence.append(f"{len(acting)} of {len(records)} samples called tools, {len(records)} have a reward; {said}")
    return Layer.judged("model rollout", faults, evidence)


def sample_fault(item):
    """What speaks against a sample; None if nothing does."""
    reward = item["reward"]
    if item.get("error"):
        return item["error"]
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        return f"reward {reward!r} is no number"
    if item["status"] == "truncated":
        return None if item.get("truncated_by", True) else "truncated, and no budget is named as the reason"
    return None if item["status"] == "completed" else f"status {item['status']!r}"


def acts(item):
    """Whether the policy called tools and went on from what they answered."""
    text = item["response"] or ""
    return (item["agent_turns"] or 0) > 1 and "<tool_call>" in text and "<tool_response>" in text


def described(item):
    calls = item["response"].count("<tool_call>")
    return f"{item['status']}, reward {item['reward']}, {item['agent_turns']} turns, {calls} tool calls"


def released(settings, patience_s=RELEASE_S):
    """Wait until the Gateway holds no trial and the environment no session: (whether, what was said)."""
    deadline = time.monotonic() + patience_s
    while True:
        _, answer = readyz(settings)
        counts = {name: answer.get(name) for name in ("active_trials", "open_sessions")}
        said = " ".join(f"{name}={'unknown' if count is None else count}" for name, count in counts.items())
        if set(counts.values()) == {0} or time.monotonic() > deadline:
            return set(counts.values()) == {0}, said
        time.sleep(0.2)


def write_report(path, dump, layers):
    """Put the verdict at `path` as JSON, whole or not at all."""
    shown = [{"layer": each.name, "verdict": each.verdict, "evidence": each.evidence} for each in layers]
    report = {"dump": str(dump), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "layers": shown}
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def show(layers):
    for layer in layers:
        terminal.say(f"{layer.name + ':':<20}{layer.verdict}")
        for line in layer.evidence[:5]:
            terminal.say(f"    {line}")
        if len(layer.evidence) > 5:
            terminal.say(f"    and {len(layer.evidence) - 5} more")


def add_options(parser):
    parser.add_argument("--dump", type=Path, metavar="FILE", help="the rollout dump to judge [the newest rehearsal's]")


def main():
    settings, args = variables.from_command_line(
        __doc__, "NEMO_GYM_URL", "GYM_BASE_PORT", "RUN_DIR", "EXP_DIR", configure=add_options
    )
    dump = args.dump or newest_dump(settings)
    records = rollout_dump.read_dump(dump)
    layers = [
        services(settings),
        verifier(settings),
        rollout(dump, records, settings),
        Layer("training step", NO_TRAINER, []),
    ]
    show(layers)
    write_report(settings.RUN_DIR / "accept.json", dump, layers)
    failed = [layer.name for layer in layers if layer.verdict == "failed"]
    terminal.say(
        f"acceptance {'failed: ' + ', '.join(failed) if failed else 'passed'} ({settings.RUN_DIR}/accept.json)"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    terminal.run(main)
