#!/usr/bin/env python3
"""Submit the training job and follow it to its end: what the trainer's entrypoint leads to.

scripts/run-qwen3-4B-8xgpu.sh calls it; the trainer's entrypoint starts that, and `make train` starts the
entrypoint with the plan that it wrote. Started by hand, the run script leaves the plan to this program.

Guarantees:
- the job's id is new, and on file before Ray hears of it
- the job's runtime environment is the entrypoint's (RUNTIME_ENV_JSON) with the trainer's Python and checkout
  put in, and never a working dir
- no credential is in the job's command line or variables
- the exit status follows the job's status alone; Ctrl-C stops the job and confirms it
- when the job fails, the last lines of its log and of its workers' logs are shown, each with its path

A job that succeeded need not have trained: `make accept` judges that. It runs under the trainer's Python, with
the standard library and what comes with Ray.

    PYTHONPATH=scripts python3 -m training.submit -- MODEL_ARGS...
"""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

from cluster import follow, foreground, jobs, nodes
from cluster.worker_logs import worker_tails
from common import program, terminal
from common import settings as variables
from common.failure import Failure
from common.files import write_private, write_whole
from common.settings import Settings, read_token
from gateway import trial_request
from rollouts import growth, runs
from training import arguments, plan, progress

# A head node's dashboard may take minutes to come back, and the job does not need it.
SILENCE_S = 900
ENTRYPOINT_VARIABLES = ("RUNTIME_ENV_JSON", "MODEL_CONFIG_DIR", "RELAX_ENTRYPOINT_MODE")
MODULE = "relax.entrypoints.train"
OPTIONS = foreground.CPUS_OPTION | {
    "--plan": {"type": Path, "metavar": "FILE", "help": "the plan that make train wrote [made here]"},
    "model": {"nargs": "*", "metavar": "MODEL_ARG", "help": "after --: the trainer's MODEL_ARGS"},
}


def checkout() -> Path:
    """The checkout of the entrypoint that started us. Raises Failure outside an entrypoint."""
    missing = [name for name in ENTRYPOINT_VARIABLES if not os.environ.get(name)]
    if missing or os.environ["RELAX_ENTRYPOINT_MODE"] != "ray-job":
        what = f"{missing[0]} is not set" if missing else "RELAX_ENTRYPOINT_MODE is not ray-job"
        raise Failure(f"{what}; this runs under the trainer's scripts/entrypoint/ray-job.sh: make train")
    # The entrypoint sets it as <checkout>/scripts/entrypoint/../models.
    return Path(os.path.normpath(os.environ["MODEL_CONFIG_DIR"])).parents[1]


def runtime_env(text: str, python: Path | str, relax_root: Path | str) -> dict[str, Any]:
    """The entrypoint's runtime environment with the trainer's Python and checkout put in. Raises Failure."""
    try:
        given = json.loads(text)
        kept = given.get("env_vars", {})
    except (ValueError, AttributeError):
        given, kept = {}, None
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
        raise Failure("RUNTIME_ENV_JSON is not a JSON object with env_vars, an object of texts")
    if "working_dir" in given:
        raise Failure("RUNTIME_ENV_JSON has a working_dir, which would upload the checkout; unset WORKING_DIR")
    earlier = [part for part in kept.get("PYTHONPATH", "").split(":") if part]
    path = ":".join(dict.fromkeys([str(relax_root), *earlier]))
    return given | {"py_executable": str(python), "env_vars": kept | {"PYTHONPATH": path}}


def job_variables(settings: Settings, token_file: Path | str | None) -> dict[str, str]:
    """The session client's variables for the job, without a secret."""
    texts = {name: settings.texts[name] for name in trial_request.NAMES if name != "GATEWAY_TOKEN"}
    urls = {"NEMO_GYM_URL": settings.gateway_urls[0], "GYM_URLS": ",".join(settings.GYM_URLS or [])}
    return texts | urls | {"GATEWAY_TOKEN_FILE": str(token_file or ""), "PYTHONUNBUFFERED": "1"}


def prompts_path(folder: Path, job_id: str) -> Path:
    """A run's prompt file among its results. The trainer tells the format by the end of the name."""
    return folder / "runs" / f"{job_id}.prompts.jsonl"


def entrypoint(settings: Settings, prompts: Path, words: list[str]) -> str:
    """The job's command line: the wrapper, then the trainer's driver with `words`."""
    python = str(settings.RELAX_PYTHON)
    driver = [python, "-m", MODULE, *words, "--prompt-data", str(prompts)]
    return "exec " + shlex.join(program.stage("job", "--", *driver, python=python))


def write_token(settings: Settings, folder: Path) -> Path | None:
    """Write the Gateway's token to a file that only its owner can read: its path, or None without a token."""
    token = read_token(settings)
    if not token:
        return None
    write_private(folder / "token", token + "\n")
    return folder / "token"


class Run:
    """One training run: its job, the places of its files, and its record for `make accept`."""

    def __init__(self, settings: Settings, job: jobs.Job, relax_root: Path, planned: plan.RunPlan, model: list[str]):
        self.settings, self.job, self.relax_root, self.planned = settings, job, relax_root, planned
        self.task, self.token_file = planned.task, write_token(settings, job.folder)
        token_file = self.token_file or settings.GATEWAY_TOKEN_FILE or ""
        self.words = [*model, *arguments.command_line(planned.arguments, token_file)]
        self.folder = settings.EXP_DIR / runs.RUN_NAME
        self.prompts = prompts_path(self.folder, job.id)
        self.dumps = self.folder / "rollout_result" / "train"
        self.log = settings.RUN_DIR / "logs" / f"{job.id}.log"

    def record(self, before: dict[str, growth.Mark]) -> None:
        """Write down what this run is before it begins, and the rows that it gets."""
        self.prompts.parent.mkdir(parents=True, exist_ok=True)
        facts = {
            "submission_id": self.job.id,
            "started": time.time(),
            "dashboard": self.job.dashboard.url,
            "log": str(self.log),
            "dumps": str(self.dumps),
            "dumps_before": before,
            "gateways": self.settings.gateway_urls,
            "rows": str(self.task.path),
            "samples_per_prompt": self.task.samples,
            "rollout_batch_size": self.task.batch,
            "rollouts": self.task.rollouts,
            "trainer": str(self.relax_root),
            "arguments": self.words,
        }
        write_whole(self.prompts, self.planned.prompts)
        write_whole(self.prompts.with_name(f"{self.job.id}.json"), json.dumps(facts, indent=1) + "\n")

    def submit(self, cpus: float) -> progress.Watch:
        """Submit the job: the Watch that follows it. Files that cannot be written fail before Ray hears of the job."""
        try:
            before = growth.marks(self.dumps)
            self.record(before)
            reader = growth.DumpReader(self.dumps, before)
            watch = progress.Watch(self.log, reader, self.task, self.settings.TRAIN_STALL_S)
        except OSError as error:
            raise Failure(f"{error.filename}: {error.strerror}; EXP_DIR and RUN_DIR have to be writable") from None
        environment = runtime_env(os.environ["RUNTIME_ENV_JSON"], self.settings.RELAX_PYTHON, self.relax_root)
        self.job.submit(
            entrypoint(self.settings, self.prompts, self.words),
            job_variables(self.settings, self.token_file),
            cpus,
            environment,
        )
        return watch

    def follow(self, cpus: float) -> int:
        """Submit the job and follow it: the exit status."""
        terminal.say(f"job {self.job.id} at {self.job.dashboard.url}, log {self.log}")
        watch = self.submit(cpus)
        limit = self.settings.JOB_PENDING_TIMEOUT_S
        info = follow.follow(self.job, limit, cpus, watch.show, watch.tell, SILENCE_S)
        if info["status"] == "SUCCEEDED":
            watch.wait_all()
        watch.close()
        terminal.say(f"Ray job {info['status']}: {self.job.id}")
        terminal.say(f"{watch.progress.line()}; dumps {self.dumps}")
        if info["status"] == "SUCCEEDED":
            terminal.say("This proves no rollout and no training step: make accept")
            return 0
        foreground.tell_failure(info, self.log, worker_tails(self.job.dashboard, info.get("job_id")))
        return 1


def main() -> int:
    settings, args = variables.from_command_line(__doc__, options=OPTIONS)
    relax_root = checkout()
    if not args.model:
        raise Failure(f"{os.environ['MODEL_CONFIG_DIR']}/qwen3-4B.sh gave no MODEL_ARGS")
    dashboard = jobs.Dashboard(nodes.dashboard_url(settings))
    planned = plan.read(args.plan) if args.plan else plan.decide(settings)
    return foreground.run(
        lambda: jobs.open_job(settings.RUN_DIR, dashboard, "train", settings.RELAX_PYTHON),
        lambda job: Run(settings, job, relax_root, planned, args.model).follow(args.cpus),
    )


if __name__ == "__main__":
    terminal.run(main)
