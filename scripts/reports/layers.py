"""The layers of a run, each judged with its evidence: services, verifier, model rollout, training step.

Guarantees:
- a layer passes only for what was looked at now; what was not run, or could not be looked at, is called so;
- a training step passes only if the log shows step metrics, and neither an out-of-memory error nor a traceback;
- a reward of 0 passes: it may just be a wrong action; a Ray job's SUCCEEDED is no evidence of any layer;
- nothing is started but the verifier's own check, and no log that somebody may still follow is changed.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cluster import jobs
from common import failure, net, program
from common.files import write_whole
from common.settings import Settings
from gateway.health import RELEASE_S, released
from rollouts import runs
from rollouts.samples import DumpRecord
from servers import ports
from training import actor_log

VERIFIER_LINE = "Workplace Assistant verifier contract passed"
ELSEWHERE = "not run: the verifier listens on the Gym's machine alone; make verify there"
UNSEEN = "not looked at: "
VERIFIER_TIMEOUT_S = 120
DASHBOARD_TIMEOUT_S = 5


class Layer:
    """One layer's verdict, "passed", "failed", "not run" or "not looked at", and its evidence, a line each."""

    def __init__(self, name: str, verdict: str, evidence: list[str]):
        self.name, self.verdict, self.evidence = name, verdict, evidence

    @classmethod
    def judged(cls, name: str, faults: list[str], evidence: list[str]) -> Layer:
        return cls(name, "failed" if faults else "passed", faults or evidence)


def services(states: dict[str, tuple[bool, dict[str, Any]]]) -> Layer:
    """Judge what the Gateways answer: `states` is {url: what readyz gave}."""
    faults, evidence = [], []
    for url, (ready, answer) in states.items():
        evidence.append(f"{url}/readyz: ready, service_epoch {answer.get('service_epoch')}")
        if not ready:
            state = f"not ready: {json.dumps(answer.get('servers', answer))[:300]}" if answer else "no answer"
            faults.append(f"{url}/readyz: {state}; `make gym-up` starts the graph")
    return Layer.judged("services ready", faults, evidence)


def verifier(settings: Settings, urls: Iterable[str]) -> Layer:
    """Play the verifier contract with the stage that owns it, where the verifier is."""
    if not ports.connects(settings.port("resource")):
        if not any(net.is_here(urlsplit(url).hostname) for url in urls):
            return Layer("verifier contract", ELSEWHERE, [])
        nobody = f"nobody listens at {settings.local_url('resource')}, where the verifier would; make gym-up"
        return Layer("verifier contract", UNSEEN + nobody, [])
    command = program.stage("verify_verifier")
    environment = os.environ | {"GYM_BASE_PORT": str(settings.GYM_BASE_PORT)}
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=VERIFIER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Layer("verifier contract", "failed", [f"verify_verifier.py took more than {VERIFIER_TIMEOUT_S} s"])
    lines = (ended.stdout + ended.stderr).strip().splitlines() or ["no output"]
    passed = ended.returncode == 0 and lines[-1].startswith(VERIFIER_LINE)
    return Layer("verifier contract", "passed" if passed else "failed", lines[-1:])


def rollout(run: runs.Run, urls: list[str], silent: Collection[str] = ()) -> Layer:
    """Judge a run's samples, and whether the Gateways released all state; those in `silent` give no answer."""
    faults = [f"{place}: {fault}" for place, sample in run.samples if (fault := sample_fault(sample))]
    if not run.samples:
        faults.append(f"{run.dumps}: holds no samples of this run")
    total = len(run.samples)
    acting = [(place, sample) for place, sample in run.samples if acts(sample)]
    if not acting:
        faults.append(f"{run.dumps}: no sample of {total} took a second turn with tool calls and their results")
    clean, held = released(urls, 0 if silent else RELEASE_S)
    if not clean and not silent:
        faults.append(held)
    evidence = [f"{place}: {described(sample)}" for place, sample in acting[:1]]
    evidence.append(f"{len(acting)} of {total} samples called tools, {total} have a reward; {held}")
    if silent and not faults:
        return Layer("model rollout", f"{UNSEEN}whether {', '.join(silent)} let go of all state", evidence)
    return Layer.judged("model rollout", faults, evidence)


def sample_fault(sample: DumpRecord) -> str | None:
    """What speaks against a sample; None if nothing does."""
    reward = sample["reward"]
    if sample.get("error"):
        return sample["error"]
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        return f"reward {reward!r} is no number"
    if sample["status"] == "truncated":
        return None if sample.get("truncated_by", True) else "truncated, and no budget is named as the reason"
    return None if sample["status"] == "completed" else f"status {sample['status']!r}"


def acts(sample: DumpRecord) -> bool:
    """Whether the policy called tools and went on from their outputs."""
    text = sample["response"] or ""
    return (sample["agent_turns"] or 0) > 1 and "<tool_call>" in text and "<tool_response>" in text


def described(sample: DumpRecord) -> str:
    calls = sample["response"].count("<tool_call>")
    return f"{sample['status']}, reward {sample['reward']}, {sample['agent_turns']} turns, {calls} tool calls"


def complete_log(run: runs.Run, folder: Path) -> str | None:
    """Take the run's log from Ray if Ray has more of it: the job's status there, None if nobody tells it.

    Whoever followed the run may have been cut off, or may still be writing: the log as it was is left alone.
    """
    if not run.dashboard:
        return None
    job = jobs.Job(jobs.Dashboard(run.dashboard, DASHBOARD_TIMEOUT_S), None, run.id)
    try:
        status = job.info().get("status")
        whole = job.logs().encode() if status else b""
    except failure.Failure:
        return None
    followed = max((log.stat().st_size for log in run.logs if log.exists()), default=0)
    if len(whole) > followed:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{run.id}.whole.log"
        write_whole(path, whole)
        run.logs = [path]
    return status


def training_step(run: runs.Run) -> Layer:
    """Judge the actor's log."""
    if not run.logs:
        return Layer("training step", runs.NO_TRAINER, [])
    faults, steps = [], []
    for log in run.logs:
        try:
            findings = actor_log.read(log)
        except OSError as error:
            faults.append(f"{log}: {error.strerror}")
            continue
        faults += [f"{log}:{number}: {text}" for number, text in findings.faults]
        steps += [f"{log}:{number}: {text}" for number, text in findings.steps]
    if not steps:
        faults.append(f"{', '.join(map(str, run.logs))}: no line with the metrics of an optimizer step")
    return Layer.judged("training step", faults, [*steps[-1:], f"{len(steps)} lines with step metrics"])


def summary(layers: Iterable[Layer]) -> tuple[str, bool]:
    """(the verdict over all layers in words, whether a layer keeps it from passing)."""
    layers = list(layers)
    failed = ", ".join(layer.name for layer in layers if layer.verdict == "failed")
    unseen = ", ".join(layer.name for layer in layers if layer.verdict.startswith(UNSEEN))
    parts = [f"failed: {failed}"] if failed else []
    parts += [f"not looked at: {unseen}"] if unseen else []
    return "; ".join(parts) or "passed", bool(parts)
