#!/usr/bin/env python3
"""Judge a run layer by layer, each with its evidence: services, verifier, model rollout, training step.

Reads the newest run's dump and log (or --dump, --log), asks the Gateways, and plays the verifier
contract again where the verifier is on this machine; a few seconds, nothing is started or changed.
Guarantees: a layer is called passed only for what was looked at now; what was not run is called so, and
what could not be looked at, which is no pass either. A training run's log is completed from Ray where
Ray still has it: whoever followed the run may have been cut off. A training step is passed only if
the log shows step metrics, and neither an out-of-memory error nor a traceback. The verdict is printed
and written to RUN_DIR/accept.json. A reward of 0 passes: it may just be a wrong action. A Ray job's
SUCCEEDED is no evidence of any layer.

    make accept
    scripts/run.sh accept --dump data/experiments/rehearsal/rollout_result/train/ID.jsonl
"""

import json
import math
import os
import subprocess
import time
from pathlib import Path
from urllib.parse import urlsplit

from cluster import jobs
from common import failure, net, program, terminal
from common import settings as variables
from common.files import write_whole
from common.net import readyz
from gateway.health import RELEASE_S, released
from rollouts import runs
from servers import ports
from training import actor_log

VERIFIER_LINE = "Workplace Assistant verifier contract passed"
ELSEWHERE = "not run: the verifier listens on the Gym's machine alone; make verify there"
UNSEEN = "not looked at: "
VERIFIER_TIMEOUT_S = 120
DASHBOARD_TIMEOUT_S = 5


class Layer:
    """One layer's verdict, "passed", "failed", "not run" or "not looked at", and its evidence, a line each."""

    def __init__(self, name, verdict, evidence):
        self.name, self.verdict, self.evidence = name, verdict, evidence

    @classmethod
    def judged(cls, name, faults, evidence):
        return cls(name, "failed" if faults else "passed", faults or evidence)


def services(states):
    """Judge what the Gateways said of themselves: `states` is {url: what readyz gave}."""
    faults, evidence = [], []
    for url, (ready, answer) in states.items():
        evidence.append(f"{url}/readyz: ready, service_epoch {answer.get('service_epoch')}")
        if not ready:
            said = f"not ready: {json.dumps(answer.get('servers', answer))[:300]}" if answer else "no answer"
            faults.append(f"{url}/readyz: {said}; `make gym-up` starts the graph")
    return Layer.judged("services ready", faults, evidence)


def verifier(settings, urls):
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


def rollout(run, urls, silent=()):
    """Judge the samples of a run and that the Gateways let go of all state; those in `silent` were no answer."""
    faults = [f"{place}: {fault}" for place, item in run.samples if (fault := sample_fault(item))]
    if not run.samples:
        faults.append(f"{run.dumps}: holds no samples of this run")
    acting = [(place, item) for place, item in run.samples if acts(item)]
    if not acting:
        faults.append(
            f"{run.dumps}: no sample of {len(run.samples)} took a second turn with tool calls and their results"
        )
    clean, said = released(urls, 0 if silent else RELEASE_S)
    if not clean and not silent:
        faults.append(said)
    evidence = [f"{place}: {described(item)}" for place, item in acting[:1]]
    total = len(run.samples)
    evidence.append(f"{len(acting)} of {total} samples called tools, {total} have a reward; {said}")
    if silent and not faults:
        return Layer("model rollout", f"{UNSEEN}whether {', '.join(silent)} let go of all state", evidence)
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


def complete_log(run, folder):
    """Take the run's log from Ray, where Ray has more of it than who followed the run: the job's status there.

    None where nobody tells. The log as it was is left alone: somebody may be following still.
    """
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


def training_step(run):
    """Judge the actor's log: step metrics are there, and no out-of-memory error and no traceback."""
    if not run.logs:
        return Layer("training step", runs.NO_TRAINER, [])
    faults, steps = [], []
    for log in run.logs:
        try:
            found = actor_log.read(log)
        except OSError as error:
            faults.append(f"{log}: {error.strerror}")
            continue
        faults += [f"{log}:{number}: {text}" for number, text in found.faults]
        steps += [f"{log}:{number}: {text}" for number, text in found.steps]
    if not steps:
        faults.append(f"{', '.join(map(str, run.logs))}: no line with the metrics of an optimizer step")
    return Layer.judged("training step", faults, [*steps[-1:], f"{len(steps)} lines with step metrics"])


def write_report(path, run, layers):
    """Put the verdict at `path` as JSON, whole or not at all."""
    shown = [{"layer": each.name, "verdict": each.verdict, "evidence": each.evidence} for each in layers]
    report = {
        "dump": str(run.dumps),
        "run": run.id,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "layers": shown,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(report, indent=1) + "\n")


def show(layers):
    for layer in layers:
        terminal.say(f"{layer.name + ':':<20}{layer.verdict}")
        for line in layer.evidence[:5]:
            terminal.say(f"    {line}")
        if len(layer.evidence) > 5:
            terminal.say(f"    and {len(layer.evidence) - 5} more")


def summary(layers):
    """(the verdict over all layers in words, whether one of them keeps it from passing)."""
    failed = ", ".join(layer.name for layer in layers if layer.verdict == "failed")
    unseen = ", ".join(layer.name for layer in layers if layer.verdict.startswith(UNSEEN))
    parts = [f"failed: {failed}"] if failed else []
    parts += [f"not looked at: {unseen}"] if unseen else []
    return "; ".join(parts) or "passed", bool(parts)


def add_options(parser):
    parser.add_argument("--dump", type=Path, metavar="FILE", help="the rollout dump to judge [the newest run's]")
    parser.add_argument(
        "--log", type=Path, action="append", metavar="FILE", help="log of the trainer's actor; may stand several times"
    )


def main():
    settings, args = variables.from_command_line(
        __doc__, "NEMO_GYM_URL", "GYM_BASE_PORT", "RUN_DIR", "EXP_DIR", configure=add_options
    )
    run = runs.of_dump(args.dump) if args.dump else runs.newest(settings)
    if run.dashboard and not args.log:
        status = complete_log(run, settings.RUN_DIR / "logs")
        terminal.say(f"run {run.id}: Ray {f'has it as {status}' if status else 'does not know it any more'}")
    run.logs = args.log or run.logs
    urls = run.gateways or settings.gateway_urls
    states = {url: readyz(url) for url in urls}
    silent = [url for url, (_, answer) in states.items() if not answer]
    layers = [services(states), verifier(settings, urls), rollout(run, urls, silent), training_step(run)]
    show(layers)
    write_report(settings.RUN_DIR / "accept.json", run, layers)
    said, missing = summary(layers)
    terminal.say(f"acceptance {said} ({settings.RUN_DIR}/accept.json)")
    return 1 if missing else 0


if __name__ == "__main__":
    terminal.run(main)
