#!/usr/bin/env python3
"""Train Qwen3-4B on the rows: check everything, print the plan, submit through the trainer's entrypoint.

On a machine that reaches the cluster's dashboard and has the trainer's checkout, usually the
cluster's head; takes a minute until the job is submitted, then as long as the job. Checked are the
budgets, the paths and their contents on every node, the way from each node to the Gateways and
from the Gym's machine back to the model, free GPUs and running jobs: the entrypoint would stop
those, so they are refused unless FORCE=1. Guarantees: every fault found is named before anything is
submitted; the training job's status is the exit status; Ctrl-C stops the job and confirms it.
With DRY_RUN=1 nothing is submitted, the look at the nodes included. It judges no result: `make accept`.

    make train LIMIT=32
    make train LIMIT=32 DRY_RUN=1
    make train LIMIT=1 NEMO_GYM_NUM_ROLLOUT=1 NEMO_GYM_N_SAMPLES_PER_PROMPT=1      # the chain, once
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from checks import registry
from cluster import jobs
from common import settings as variables
from common import terminal
from common.failure import Failure
from common.files import write_whole
from rollouts import runs as rollouts_runs
from training import arguments, nodes, submit
from training.container import inside
from training.plan import RELAX_FILES, Plan

OPTIONS = (
    "SPLIT", "LIMIT", "NEMO_GYM_SOURCE_DATA", "RAY_ADDRESS", "RELAX_ROOT", "DRY_RUN", "FORCE",
    "NEMO_GYM_NUM_ROLLOUT", "NEMO_GYM_ROLLOUT_BATCH_SIZE", "NEMO_GYM_N_SAMPLES_PER_PROMPT",
    "NEMO_GYM_GLOBAL_BATCH_SIZE", "NEMO_GYM_MAX_PROMPT_LEN", "NEMO_GYM_MAX_RESPONSE_LEN",
    "NEMO_GYM_MAX_CONTEXT_LEN", "NEMO_GYM_MAX_TOKENS_PER_GPU", "NEMO_GYM_DEADLINE_S", "AGENT_TIMEOUT_S",
    "TRAIN_ARGUMENTS",
)  # fmt: skip
LOCKED = 75
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def write_submission(plan):
    """Write what would be submitted, for a dry run: its path."""
    settings = plan.settings
    model_args = sourced_model_args(settings.RELAX_ROOT / RELAX_FILES[1])
    job_id = "<submission_id>"
    words = [
        *model_args,
        *arguments.command_line(plan.arguments, jobs.jobs_folder(settings.RUN_DIR) / job_id / "token"),
    ]
    prompts = submit.prompts_path(settings.EXP_DIR / rollouts_runs.RUN_NAME, job_id)
    submission = {
        "entrypoint_command": plan.command(),
        "job": {
            "submission_id": "train-<time>-<process>-<random>",
            "entrypoint": submit.entrypoint(settings, prompts, words),
            "entrypoint_num_cpus": submit.CPUS,
            "runtime_env": {
                "RUNTIME_ENV_JSON": "what the entrypoint gives, and:",
                "py_executable": str(settings.RELAX_PYTHON),
                "env_vars": {"PYTHONPATH": f"{settings.RELAX_ROOT}:..."} | submit.job_variables(settings, None),
            },
        },
    }
    path = settings.RUN_DIR / "train" / "submission.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(submission, indent=1) + "\n")
    return path


def sourced_model_args(path):
    """MODEL_ARGS as the shell has them after sourcing the trainer's file."""
    script = 'source "$1" && printf "%s\\0" "${MODEL_ARGS[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", str(path)], capture_output=True, text=True)
    if done.returncode or not done.stdout:
        raise Failure(f"{path}: sets no MODEL_ARGS")
    return done.stdout.split("\0")[:-1]


class Submission:
    """The entrypoint at work: signals go to it, and a job it leaves behind is stopped."""

    def __init__(self, plan):
        self.plan, self.settings = plan, plan.settings
        self.child, self.signalled = None, None
        self.earlier = {job.id for job in jobs.open_jobs(self.settings.RUN_DIR)}

    def environment(self):
        """All variables as they hold here, in words that mean the same wherever the child starts."""
        texts = dict(self.settings.texts)
        for name in ("RUN_DIR", "EXP_DIR", "MODEL_DIR", "DATA_ROOT", "RELAX_ROOT", "RELAX_PYTHON", "TRAIN_ARGUMENTS"):
            texts[name] = str(getattr(self.settings, name))
        texts |= {"NEMO_GYM_SOURCE_DATA": str(self.plan.task.path), "SUBMIT_PYTHON": sys.executable}
        kept = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
        return kept | texts

    def forward(self, number, frame):
        self.signalled = number
        if self.child:
            # Its group: the entrypoint's shell would wait for what it has started.
            os.killpg(self.child.pid, number)

    def run(self):
        """Run the entrypoint to its end: the exit status. Raises Failure."""
        for number in SIGNALS:
            signal.signal(number, self.forward)
        environment = self.environment()
        folder = self.settings.RUN_DIR / "train"
        folder.mkdir(parents=True, exist_ok=True)
        # Written once, read by the entrypoint; nobody else can enter the folder.
        with tempfile.TemporaryDirectory(prefix="plan-", dir=folder) as private:
            path = self.plan.decided().write(Path(private))
            command = inside(self.settings, [*self.plan.command(), "--plan", str(path)], environment)
            self.child = subprocess.Popen(command, env=environment, start_new_session=True)
            if self.signalled:
                os.killpg(self.child.pid, self.signalled)
            status = self.child.wait()
        if self.signalled:
            self.stop_left_behind()
            return 128 + self.signalled
        if status == LOCKED:
            raise Failure("the trainer's entrypoint is locked by another submission on this machine (75); wait for it")
        return status if status >= 0 else 128 - status

    def stop_left_behind(self):
        for job in jobs.open_jobs(self.settings.RUN_DIR):
            if job.id not in self.earlier:
                job.stop_and_tell()
                job.close()


def refuse(faults):
    if faults:
        for fault in faults[:-1]:
            print(f"error: {fault}", file=sys.stderr)
        raise Failure(faults[-1])


def main():
    settings, _ = variables.from_command_line(__doc__, *OPTIONS)
    registry.at_start("train", settings)
    plan = Plan(settings)
    plan.look(plan.environment, plan.rows, plan.budgets, plan.paths, plan.services)
    if settings.RAY_ADDRESS or settings.DRY_RUN == "0":
        plan.look(plan.cluster)
    plan.show()
    refuse(plan.faults)
    if settings.DRY_RUN == "1":
        path = write_submission(plan)
        terminal.say(f"Dry run: nothing submitted, the nodes not looked at; the submission is in {path}")
        return 0
    with terminal.stage("nodes") as stage:
        started = time.monotonic()
        notes = nodes.look(plan)
        stage.note = f"{len(notes['nodes'])} looked at in {time.monotonic() - started:.0f} s"
    for note in notes["notes"]:
        terminal.say(f"  {note}")
    return Submission(plan).run()


if __name__ == "__main__":
    terminal.run(main)
