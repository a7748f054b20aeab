"""What must hold before a training job is submitted, looked at from the submitting machine.

Guarantees: every fault is found in one go, none stops the look at the rest; nothing is started,
written or changed. The plan is what was found, a line each. What only a node can tell is
node_look.py's.
"""

import hashlib
import json
import os
import shlex
import time

from cluster import jobs as ray_jobs
from cluster import nodes
from common import terminal
from common.failure import Failure
from common.git import commit
from common.net import readyz
from common.settings import ROOT
from inputs import rows as inputs_rows
from rollouts import runs
from training import arguments

RUN_SCRIPT = ROOT / "scripts" / "run-qwen3-4B-8xgpu.sh"
RELAX_FILES = ("scripts/entrypoint/ray-job.sh", "scripts/models/qwen3-4B.sh", "relax/entrypoints/train.py")
MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "*.safetensors", "*.index.json")
# The dashboard goes on for some seconds to count what an ended job had.
GPUS_LATE_S = 20
FORBIDDEN = {
    "RAY_NO_WAIT": "the job is followed in the foreground",
    "WORKING_DIR": "Ray would pack and upload the checkout",
}


class Plan:
    """What would be submitted, what was found, and what speaks against it."""

    def __init__(self, settings):
        self.settings = settings
        self.lines, self.faults = [], []
        self.task = self.arguments = self.dashboard = None
        self.gateways = []

    def note(self, name, text):
        self.lines.append(f"  {name + ':':<14}{text}")

    def look(self, *checks):
        """Run the checks; each fault is kept, and the others still run."""
        for check in checks:
            try:
                check()
            except Failure as fault:
                self.faults.append(str(fault))

    def environment(self):
        for name, reason in FORBIDDEN.items():
            if os.environ.get(name):
                self.faults.append(f"{name} is set; {reason}: unset it")

    def rows(self):
        path = arguments.rows_path(self.settings)
        try:
            count = len(inputs_rows.read_rows(path, self.settings.LIMIT))
        except Failure:
            # The budgets are worth a look without the rows, too.
            count = self.settings.LIMIT or self.settings.NEMO_GYM_ROLLOUT_BATCH_SIZE
            self.task = arguments.Task(self.settings, path, count)
            self.note("rows", f"not read; the figures below are for {count} of them")
            raise
        self.task = arguments.Task(self.settings, path, count)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self.note("rows", f"{count} of {path}, sha256 {digest[:16]}")

    def budgets(self):
        source = self.settings.TRAIN_ARGUMENTS
        known = arguments.values(self.settings, self.task)
        self.arguments = arguments.read_arguments(source, known, bool(self.settings.TRAIN_PROJECT))
        arguments.check_numbers(self.arguments, source)
        self.faults += arguments.contradictions(self.arguments, self.settings, self.task)
        for line in arguments.describe(self.arguments, self.settings, self.task):
            self.note(*line)

    def paths(self):
        self.checkout()
        self.model()
        self.note("repository", f"{ROOT} at {commit(ROOT)}")
        self.note("results", self.settings.EXP_DIR / runs.RUN_NAME)

    def checkout(self):
        s = self.settings
        missing = [name for name in RELAX_FILES if not (s.RELAX_ROOT / name).is_file()]
        if missing:
            self.faults.append(f"{s.RELAX_ROOT}/{missing[0]}: not there; set RELAX_ROOT to a checkout, or make relax")
        else:
            self.note("trainer", f"{s.RELAX_ROOT} at {commit(s.RELAX_ROOT)}")

    def model(self):
        model = self.settings.MODEL_DIR / arguments.MODEL_NAME
        lacking = [
            name for name in MODEL_FILES[:2] if not (model / name).is_file() or not (model / name).stat().st_size
        ]
        if lacking:
            self.faults.append(f"{model}/{lacking[0]}: not there or empty; set MODEL_DIR, or make model")
        self.note("model", model)

    def services(self):
        fingerprints = {}
        for url in self.settings.gateway_urls:
            ready, answer = readyz(url)
            if not ready:
                self.faults.append(
                    f"{url}/readyz: {'not ready' if answer else 'no answer'}; make gym-up, or set GYM_HOST"
                )
                continue
            self.gateways.append({"url": url, "epoch": answer.get("service_epoch")})
            fingerprints[url] = json.dumps(answer.get("environment"), sort_keys=True)
            pinned = str(answer.get("gym_commit"))[:12]
            self.note("gateway", f"{url} ready, {pinned}, service_epoch {answer.get('service_epoch')}")
        if len(set(fingerprints.values())) > 1:
            self.faults.append(f"{', '.join(fingerprints)}: not the same environment; a reward must mean the same")

    def cluster(self, timeout_s=ray_jobs.REQUEST_TIMEOUT_S, patience_s=GPUS_LATE_S):
        if not self.settings.RAY_ADDRESS:
            raise Failure("RAY_ADDRESS is empty; set it to the cluster's <head>:6379, or make ray-up starts one here")
        self.dashboard = ray_jobs.Dashboard(nodes.dashboard_url(self.settings), timeout_s)
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

    def gpus(self, jobs, patience_s):
        """Enough GPUs on one node: free ones, or all where the jobs that hold them are to be stopped."""
        source = self.settings.TRAIN_ARGUMENTS
        total, largest = arguments.gpus_asked(self.arguments, source) if self.arguments else (0, 0)
        taking_over = bool(jobs) and self.settings.FORCE == "1"
        end = time.monotonic() + (0 if jobs else patience_s)
        while True:
            found = nodes.nodes(self.dashboard)
            free = [node.gpus if taking_over else node.free_gpus for node in found]
            enough = sum(free) >= total and max(free, default=0) >= largest
            if enough or time.monotonic() > end:
                break
            time.sleep(1)
        for node in found:
            self.note("node", node)
        self.note("GPUs", f"{total} asked, {sum(free):g} {'in all' if taking_over else 'free'}")
        if not enough:
            seen = "; ".join(map(str, found)) or "no node"
            self.faults.append(f"{total} GPUs asked, {largest} of them on one node; free: {seen}")

    def command(self):
        """The command that hands the run script to the entrypoint."""
        entrypoint = self.settings.RELAX_ROOT / "scripts" / "entrypoint" / "ray-job.sh"
        return ["bash", str(entrypoint), str(RUN_SCRIPT)]

    def show(self):
        terminal.say("Plan")
        order = ["cluster", "node", "running", "GPUs", "gateway"]
        rank = {f"  {name + ':':<14}": index for index, name in enumerate(order)}
        for line in sorted(self.lines, key=lambda line: rank.get(line[:16], len(order))):
            terminal.say(line)
        terminal.say(f"  {'command:':<14}{shlex.join(self.command())}")
