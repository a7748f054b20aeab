"""The trainer's entrypoint as `make train` starts it, and what a dry run writes in its place.

Guarantees: a signal reaches all that the entrypoint started; a job that it leaves behind after a signal is stopped
and confirmed; paths among the variables mean the same wherever the entrypoint runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

from cluster import foreground, jobs
from common.failure import Failure
from common.files import write_whole
from rollouts import runs
from training import arguments, submit
from training.container import inside
from training.plan import RELAX_FILES, Plan

LOCKED = 75
SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATHS = ("RUN_DIR", "EXP_DIR", "MODEL_DIR", "DATA_ROOT", "RELAX_ROOT", "RELAX_PYTHON", "TRAIN_ARGUMENTS")


class Entrypoint:
    """The entrypoint at work: signals go to it, and a job it leaves behind is stopped."""

    def __init__(self, plan: Plan):
        assert plan.task, "a plan without faults has its rows"
        self.plan, self.settings, self.rows = plan, plan.settings, plan.task.path
        self.child: subprocess.Popen | None = None
        self.signalled: int | None = None
        self.earlier = {job.id for job in jobs.open_jobs(self.settings.RUN_DIR)}

    def environment(self) -> dict[str, str]:
        """All variables as they hold here."""
        paths = {name: str(getattr(self.settings, name)) for name in PATHS}
        own = {"NEMO_GYM_SOURCE_DATA": str(self.rows), "SUBMIT_PYTHON": sys.executable}
        kept = {name: text for name, text in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
        return kept | self.settings.texts | paths | own

    def forward(self, number: int, frame: FrameType | None) -> None:
        self.signalled = number
        if self.child:
            # The signal goes to the group: the entrypoint's shell would wait for what it has started.
            os.killpg(self.child.pid, number)

    def run(self) -> int:
        """Run the entrypoint to its end: the exit status. Raises Failure."""
        for number in SIGNALS:
            signal.signal(number, self.forward)
        environment = self.environment()
        folder = self.settings.RUN_DIR / "train"
        folder.mkdir(parents=True, exist_ok=True)
        # Written once; submit.py reads it under the entrypoint. Nobody else can enter the folder.
        with tempfile.TemporaryDirectory(prefix="plan-", dir=folder) as private:
            path = self.plan.decided().write(Path(private))
            command = inside(self.settings, [*self.plan.command(), "--plan", str(path)], environment)
            self.child = subprocess.Popen(command, env=environment, start_new_session=True)
            if self.signalled:
                os.killpg(self.child.pid, self.signalled)
            status = self.child.wait()
        if self.signalled:
            for job in jobs.open_jobs(self.settings.RUN_DIR):
                if job.id not in self.earlier:
                    job.stop_and_tell()
                    job.close()
            return 128 + self.signalled
        if status == LOCKED:
            raise Failure("the trainer's entrypoint is locked by another submission on this machine (75); wait for it")
        return status if status >= 0 else 128 - status


def write_submission(plan: Plan) -> Path:
    """Write what would be submitted, for a dry run: its path."""
    assert plan.task, "a plan without faults has its rows"
    settings = plan.settings
    job_id = "<submission_id>"
    token = jobs.jobs_folder(settings.RUN_DIR) / job_id / "token"
    words = [*sourced_model_args(settings.RELAX_ROOT / RELAX_FILES[1]), *arguments.command_line(plan.arguments, token)]
    prompts = submit.prompts_path(settings.EXP_DIR / runs.RUN_NAME, job_id)
    submission = {
        "entrypoint_command": plan.command(),
        "job": {
            "submission_id": "train-<time>-<process>-<random>",
            "entrypoint": submit.entrypoint(settings, prompts, words),
            "entrypoint_num_cpus": foreground.CPUS,
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


def sourced_model_args(path: Path) -> list[str]:
    """MODEL_ARGS as the shell has them after sourcing the trainer's file."""
    script = 'source "$1" && printf "%s\\0" "${MODEL_ARGS[@]}"'
    done = subprocess.run(["bash", "-c", script, "bash", str(path)], capture_output=True, text=True)
    if done.returncode or not done.stdout:
        raise Failure(f"{path}: sets no MODEL_ARGS")
    return done.stdout.split("\0")[:-1]
