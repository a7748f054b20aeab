"""The plan of a training run: made and checked on the submitting machine, then written for submit.py to read.

Guarantees:
- every fault is found in one go, and none stops the other checks
- checks start, write and change nothing
- a written plan holds no secret, and only its owner can read it

What only a node can tell, node_check.py checks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cluster import nodes
from cluster.jobs import REQUEST_TIMEOUT_S, Dashboard
from common import terminal
from common.failure import Failure
from common.files import write_whole
from common.git import commit
from common.net import readyz
from common.settings import ROOT, Settings
from rollouts import prompts, runs
from training import arguments

RUN_SCRIPT = ROOT / "scripts" / "run-qwen3-4B-8xgpu.sh"
RELAX_FILES = ("scripts/entrypoint/ray-job.sh", "scripts/models/qwen3-4B.sh", "relax/entrypoints/train.py")
MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "*.safetensors", "*.index.json")
# For some seconds the dashboard still counts the GPUs of a job that ended.
GPUS_LATE_S = 20
FORBIDDEN = {
    "RAY_NO_WAIT": "the job is followed in the foreground",
    "WORKING_DIR": "Ray would pack and upload the checkout",
}


@dataclass(frozen=True)
class RunPlan:
    """What a run does: its task, the trainer's arguments, and the lines of its prompt file."""

    task: arguments.Task
    arguments: arguments.Arguments
    prompts: list[str]

    def write(self, folder: Path) -> Path:
        """Write it into a folder that only its owner can enter: the plan's path."""
        path, prompts_path = folder / "plan.json", folder / "prompts.jsonl"
        write_whole(prompts_path, self.prompts)
        task = asdict(self.task) | {"path": str(self.task.path)}
        plan = {"task": task, "arguments": self.arguments, "prompts": str(prompts_path)}
        write_whole(path, json.dumps(plan, indent=1) + "\n")
        return path


def read(path: Path) -> RunPlan:
    """The plan that `make train` wrote. Raises Failure."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        task = arguments.Task(**plan["task"] | {"path": Path(plan["task"]["path"])})
        with open(plan["prompts"], encoding="utf-8") as lines:
            return RunPlan(task, [(flag, texts) for flag, texts in plan["arguments"]], list(lines))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path}: no plan of a training run ({type(error).__name__}); make train writes one") from None


def decide(settings: Settings) -> RunPlan:
    """The plan of the run that the settings ask for. Raises Failure."""
    plan = Plan(settings)
    plan.rows()
    plan.budgets()
    if plan.faults:
        raise Failure("; ".join(plan.faults))
    return plan.decided()


class Plan:
    """What would be submitted, and what speaks against it."""

    task: arguments.Task
    dashboard: Dashboard

    def __init__(self, settings: Settings):
        self.settings = settings
        self.lines: list[str] = []
        self.faults: list[str] = []
        self.arguments: arguments.Arguments = []
        self.prompts: list[str] = []
        self.gateways: list[dict[str, Any]] = []

    def decided(self) -> RunPlan:
        """What the run does, once rows and budgets were checked."""
        return RunPlan(self.task, self.arguments, self.prompts)

    def note(self, name: str, text: object) -> None:
        self.lines.append(f"  {name + ':':<14}{text}")

    def look(self, *checks: Callable[[], None]) -> None:
        """Run the checks; each fault is kept, and the others still run."""
        for check in checks:
            try:
                check()
            except Failure as fault:
                self.faults.append(str(fault))

    def environment(self) -> None:
        for name, reason in FORBIDDEN.items():
            if os.environ.get(name):
                self.faults.append(f"{name} is set; {reason}: unset it")

    def rows(self) -> None:
        path = arguments.rows_path(self.settings)
        try:
            self.prompts = prompts.of_rows(path, self.settings.LIMIT)
        except Failure:
            # The budgets can be checked without the rows.
            count = self.settings.LIMIT or self.settings.NEMO_GYM_ROLLOUT_BATCH_SIZE
            self.task = arguments.Task.of(self.settings, path, count)
            self.note("rows", f"not read; the figures below are for {count} of them")
            raise
        self.task = arguments.Task.of(self.settings, path, len(self.prompts))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.note("rows", f"{self.task.count} of {path}, sha256 {digest[:16]}")

    def budgets(self) -> None:
        source = self.settings.TRAIN_ARGUMENTS
        known = arguments.values(self.settings, self.task)
        self.arguments = arguments.read_arguments(source, known, bool(self.settings.TRAIN_PROJECT))
        arguments.check_numbers(self.arguments, source)
        self.faults += arguments.contradictions(self.arguments, self.settings, self.task)
        for line in arguments.describe(self.arguments, self.settings, self.task):
            self.note(*line)

    def paths(self) -> None:
        self.checkout()
        self.model()
        self.note("repository", f"{ROOT} at {commit(ROOT)}")
        self.note("results", self.settings.EXP_DIR / runs.RUN_NAME)

    def checkout(self) -> None:
        s = self.settings
        missing = [name for name in RELAX_FILES if not (s.RELAX_ROOT / name).is_file()]
        if missing:
            self.faults.append(f"{s.RELAX_ROOT}/{missing[0]}: not there; set RELAX_ROOT to a checkout, or make relax")
        else:
            self.note("trainer", f"{s.RELAX_ROOT} at {commit(s.RELAX_ROOT)}")

    def model(self) -> None:
        model = self.settings.MODEL_DIR / arguments.MODEL_NAME
        files = [model / name for name in MODEL_FILES[:2]]
        lacking = [path for path in files if not path.is_file() or not path.stat().st_size]
        if lacking:
            self.faults.append(f"{lacking[0]}: not there or empty; set MODEL_DIR, or make model")
        self.note("model", model)

    def services(self) -> None:
        fingerprints = {}
        for url in self.settings.gateway_urls:
            ready, answer = readyz(url)
            if not ready:
                state = "not ready" if answer else "no answer"
                self.faults.append(f"{url}/readyz: {state}; make gym-up, or set GYM_HOST")
                continue
            self.gateways.append({"url": url, "epoch": answer.get("service_epoch")})
            fingerprints[url] = json.dumps(answer.get("environment"), sort_keys=True)
            commit_shown = str(answer.get("gym_commit"))[:12]
            self.note("gateway", f"{url} ready, {commit_shown}, service_epoch {answer.get('service_epoch')}")
        if len(set(fingerprints.values())) > 1:
            self.faults.append(f"{', '.join(fingerprints)}: not the same environment; a reward must mean the same")

    def cluster(self, timeout_s: int = REQUEST_TIMEOUT_S, patience_s: float = GPUS_LATE_S) -> None:
        if not self.settings.RAY_ADDRESS:
            raise Failure("RAY_ADDRESS is empty; set it to the cluster's <head>:6379, or make ray-up starts one here")
        self.dashboard = Dashboard(nodes.dashboard_url(self.settings), timeout_s)
        nodes.refuse_loopback_gateway(self.settings)
        self.note("cluster", f"{self.settings.RAY_ADDRESS}, dashboard {self.dashboard.url}")
        jobs = nodes.live_jobs(self.dashboard)
        for job in jobs:
            self.note("running", job)
        if jobs and self.settings.FORCE == "0":
            self.faults.append(
                f"{len(jobs)} job(s) run on {self.settings.RAY_ADDRESS}, which the trainer's entrypoint would stop: "
                f"{'; '.join(jobs)[:300]}; wait for them, or FORCE=1"
            )
        self.gpus(jobs, patience_s)

    def gpus(self, jobs: list[str], patience_s: float) -> None:
        """Enough GPUs, and enough on one node: free ones, or with FORCE=1 those of the running jobs, too."""
        source = self.settings.TRAIN_ARGUMENTS
        total, largest = arguments.gpus_asked(self.arguments, source) if self.arguments else (0, 0)
        taking_over = bool(jobs) and self.settings.FORCE == "1"
        end = time.monotonic() + (0 if jobs else patience_s)
        while True:
            alive = nodes.nodes(self.dashboard)
            free = [node.gpus if taking_over else node.free_gpus for node in alive]
            enough = sum(free) >= total and max(free, default=0) >= largest
            if enough or time.monotonic() > end:
                break
            time.sleep(1)
        for node in alive:
            self.note("node", node)
        self.note("GPUs", f"{total} asked, {sum(free):g} {'in all' if taking_over else 'free'}")
        if not enough:
            seen = "; ".join(map(str, alive)) or "no node"
            self.faults.append(f"{total} GPUs asked, {largest} of them on one node; free: {seen}")

    def command(self) -> list[str]:
        """The command that hands the run script to the entrypoint."""
        entrypoint = self.settings.RELAX_ROOT / "scripts" / "entrypoint" / "ray-job.sh"
        return ["bash", str(entrypoint), str(RUN_SCRIPT)]

    def show(self) -> None:
        terminal.say("Plan")
        order = ["cluster", "node", "running", "GPUs", "gateway"]
        rank = {f"  {name + ':':<14}": index for index, name in enumerate(order)}
        for line in sorted(self.lines, key=lambda line: rank.get(line[:16], len(order))):
            terminal.say(line)
        terminal.say(f"  {'command:':<14}{shlex.join(self.command())}")
