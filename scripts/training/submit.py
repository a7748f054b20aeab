#!/usr/bin/env python3
"""Submit the training job and follow it to its end: what the trainer's entrypoint leads to.

Called by scripts/run-qwen3-4B-8xgpu.sh, which the entrypoint starts; `make train` starts the
entrypoint. Guarantees: the id is new, and on file before Ray hears of it; the job's runtime
environment is the entrypoint's (RUNTIME_ENV_JSON) with the trainer's Python and checkout put in,
and never a working dir; no credential is in the job's command line or variables; the exit status
follows the job's status alone; Ctrl-C stops the job and confirms it. When the job fails, the last
lines of its log and of its workers' logs are shown, each with its path. A job that succeeded
has not thereby trained: `make accept` judges that.

Standard library, and what comes with Ray: it runs under the trainer's Python.

    PYTHONPATH=scripts python3 -m training.submit -- MODEL_ARGS...
"""

import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path

from cluster import follow as ray_follow
from cluster import jobs, nodes
from cluster.jobs import Interrupted, interrupt
from cluster.worker_logs import worker_tails
from common import program, terminal
from common import settings as variables
from common.failure import Failure
from common.files import write_whole
from common.settings import read_token
from gateway import trial_request
from inputs import rows
from rollouts import growth
from rollouts import runs as rollouts_runs
from training import arguments, progress

CPUS = 1
TAIL_LINES = 15
# A head node's dashboard may take minutes to come back, and the job does not need it.
SILENCE_S = 900
ENTRYPOINT_VARIABLES = ("RUNTIME_ENV_JSON", "MODEL_CONFIG_DIR", "RELAX_ENTRYPOINT_MODE")
MODULE = "relax.entrypoints.train"


def add_options(parser):
    parser.add_argument("--cpus", type=float, default=CPUS, metavar="N", help=f"CPUs the driver asks for [{CPUS}]")
    parser.add_argument("model", nargs="*", metavar="MODEL_ARG", help="after --: the trainer's MODEL_ARGS")


def checkout():
    """The trainer's checkout that the entrypoint belongs to. Raises Failure outside the entrypoint."""
    missing = [name for name in ENTRYPOINT_VARIABLES if not os.environ.get(name)]
    if missing or os.environ["RELAX_ENTRYPOINT_MODE"] != "ray-job":
        what = f"{missing[0]} is not set" if missing else "RELAX_ENTRYPOINT_MODE is not ray-job"
        raise Failure(f"{what}; this runs under the trainer's scripts/entrypoint/ray-job.sh: make train")
    return Path(os.environ["MODEL_CONFIG_DIR"]).parent.parent


def runtime_env(text, python, relax_root):
    """The entrypoint's runtime environment with the trainer's Python and checkout put in. Raises Failure."""
    try:
        found = json.loads(text)
        kept = found.get("env_vars", {})
        fits = isinstance(kept, dict) and all(isinstance(value, str) for value in kept.values())
    except (ValueError, AttributeError):
        fits = False
    if not fits:
        raise Failure("RUNTIME_ENV_JSON is not a JSON object with env_vars, an object of texts")
    if "working_dir" in found:
        raise Failure("RUNTIME_ENV_JSON has a working_dir, which would upload the checkout; unset WORKING_DIR")
    earlier = [part for part in kept.get("PYTHONPATH", "").split(":") if part]
    path = ":".join(dict.fromkeys([str(relax_root), *earlier]))
    return found | {"py_executable": str(python), "env_vars": kept | {"PYTHONPATH": path}}


def job_variables(settings, token_file):
    """The session client's variables for the job, none of them a secret."""
    texts = {name: settings.texts[name] for name in trial_request.NAMES if name != "GATEWAY_TOKEN"}
    urls = {"NEMO_GYM_URL": settings.gateway_urls[0], "GYM_URLS": ",".join(settings.GYM_URLS or [])}
    return texts | urls | {"GATEWAY_TOKEN_FILE": str(token_file or ""), "PYTHONUNBUFFERED": "1"}


def entrypoint(settings, path, prompts, words):
    """The job's command line: the wrapper, then the trainer's driver with `words`."""
    python = str(settings.RELAX_PYTHON)
    wrapper = program.stage("job", "--rows", str(path), "--limit", str(settings.LIMIT), python=python)
    return "exec " + shlex.join([*wrapper, "--prompts", str(prompts), "--", python, "-m", MODULE, *words])


def write_token(settings, folder):
    """Put the Gateway's token into a file only its owner can read: its path, or None without one."""
    token = read_token(settings)
    if not token:
        return None
    path = folder / "token"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token + "\n")
    return path


class Run:
    """One training run: its job, where its things lie, and its record for `make accept`."""

    def __init__(self, settings, job, relax_root, model_args):
        path = arguments.rows_path(settings)
        self.settings, self.job, self.relax_root = settings, job, relax_root
        self.task = arguments.Task(settings, path, len(rows.read_rows(path, settings.LIMIT)))
        self.token_file = write_token(settings, job.folder)
        known = arguments.values(settings, self.task, self.token_file)
        source = settings.TRAIN_ARGUMENTS
        self.arguments = arguments.read_arguments(source, known, bool(settings.TRAIN_PROJECT))
        arguments.check_numbers(self.arguments, source)
        if faults := arguments.contradictions(self.arguments, settings, self.task):
            raise Failure("; ".join(faults))
        self.words = [*model_args, *arguments.command_line(self.arguments)]
        self.folder = settings.EXP_DIR / rollouts_runs.RUN_NAME
        self.dumps = self.folder / "rollout_result" / "train"
        self.log = settings.RUN_DIR / "logs" / f"{job.id}.log"

    def record(self, before):
        """Write down what this run is, before it is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        runs = self.folder / "runs"
        runs.mkdir(exist_ok=True)
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
        write_whole(runs / f"{self.job.id}.json", json.dumps(facts, indent=1) + "\n")

    def submit(self, cpus):
        """Submit the job: the Watch that follows it. All that may fail here does so before Ray hears of it."""
        try:
            before = growth.marks(self.dumps)
            self.record(before)
            reader = growth.DumpReader(self.dumps, before)
            watch = progress.Watch(self.log, reader, self.task, self.settings.TRAIN_STALL_S)
        except OSError as error:
            raise Failure(f"{error.filename}: {error.strerror}; EXP_DIR and RUN_DIR have to be writable") from None
        environment = runtime_env(os.environ["RUNTIME_ENV_JSON"], self.settings.RELAX_PYTHON, self.relax_root)
        command = entrypoint(self.settings, self.task.path, self.folder / "runs" / f"{self.job.id}.rows", self.words)
        self.job.submit(command, job_variables(self.settings, self.token_file), cpus, environment)
        return watch

    def follow(self, cpus):
        """Submit and follow: the exit status."""
        terminal.say(f"job {self.job.id} at {self.job.dashboard.url}, log {self.log}")
        try:
            watch = self.submit(cpus)
            limit = self.settings.JOB_PENDING_TIMEOUT_S
            info = ray_follow.follow(self.job, limit, cpus, watch.show, watch.tell, SILENCE_S)
        except Interrupted as interruption:
            terminal.clear_line()
            self.job.stop_and_tell()
            return 128 + interruption.args[0]
        if info["status"] == "SUCCEEDED":
            watch.wait_all()
        watch.close()
        terminal.say(f"Ray job {info['status']}: {self.job.id}")
        terminal.say(f"{watch.progress.line()}; dumps {self.dumps}")
        if info["status"] == "SUCCEEDED":
            terminal.say("This proves no rollout and no training step: make accept")
            return 0
        return self.failed(info)

    def failed(self, info):
        # Ray appends the log to its message.
        reason = str(info.get("message") or "").partition(", last available logs")[0].strip()
        lines = self.log.read_text(encoding="utf-8").splitlines()[-TAIL_LINES:]
        tails = worker_tails(self.job.dashboard, info.get("job_id"))
        shown = [reason, f"last lines of {self.log}:", *(f"  | {line[:300]}" for line in lines), *tails]
        print("\n".join(shown), file=sys.stderr, flush=True)
        return 1


def main():
    settings, args = variables.from_command_line(__doc__, configure=add_options)
    relax_root = checkout()
    if not args.model:
        raise Failure(f"{os.environ['MODEL_CONFIG_DIR']}/qwen3-4B.sh gave no MODEL_ARGS")
    dashboard = jobs.Dashboard(nodes.dashboard_url(settings))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        job = jobs.open_job(settings.RUN_DIR, dashboard, "train", settings.RELAX_PYTHON)
        try:
            return Run(settings, job, relax_root, args.model).follow(args.cpus)
        except Failure:
            # Before it was submitted there is nothing to stop.
            job.ended = job.ended or not job.submitted
            raise
        finally:
            job.close()
    except Interrupted as interruption:
        return 128 + interruption.args[0]


if __name__ == "__main__":
    terminal.run(main)
