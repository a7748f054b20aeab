#!/usr/bin/env python3
"""Roll the rows out in a Ray job: submit it, follow it to its end, and give its verdict.

On this machine: a private one-node Ray is started (about 20 s) or reused, and the rehearsal driver runs in
it in the trainer's place. With RAY_ADDRESS the same job goes to that cluster, which sees this clone and
RUN_DIR at the same paths. The private Ray stays up for the next run; `make stop` ends it.

Guarantees:
- the exit status follows the job's status alone
- a job that does not start within JOB_PENDING_TIMEOUT_S is stopped, and so is one that is interrupted
- no credential is in the job's command line or variables

    make smoke                                  # this is its stage "Ray job"
    PYTHONPATH=scripts .venv/bin/python -m rollouts.submit --split validation --limit 32
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from cluster import follow, foreground, jobs, nodes
from common import program, terminal
from common import settings as variables
from common.failure import Failure
from common.files import write_private, write_whole
from common.settings import ROOT, Settings
from gateway import trial_request
from rollouts import prompts, runs
from servers.private_ray import PrivateRay

OPTIONS = (
    "SPLIT", "LIMIT", "NEMO_GYM_SOURCE_DATA", "REHEARSAL_POLICY", "NEMO_GYM_N_SAMPLES_PER_PROMPT", "REHEARSAL_SAMPLES",
    "REHEARSAL_CONCURRENCY", "AGENT_TIMEOUT_S", "RAY_ADDRESS", "MODEL_URL", "MODEL",
)  # fmt: skip
PROMPTS = "prompts.jsonl"
SECRETS = ("GATEWAY_TOKEN", "MODEL_API_KEY")
WIDTH = 160


def dashboard_url(settings: Settings) -> str:
    """The dashboard to submit to: that of the cluster at RAY_ADDRESS, else of our own Ray, which is started."""
    if not settings.RAY_ADDRESS:
        ray = PrivateRay(settings, "rehearsal")
        with terminal.stage("rehearsal Ray") as stage:
            ray.start(stage.detail)
        return ray.dashboard_url
    nodes.refuse_loopback_gateway(settings)
    return nodes.dashboard_url(settings)


def samples(settings: Settings) -> int:
    """Samples of each row: training's number if it is set, else a rehearsal's few."""
    given = settings.is_given("NEMO_GYM_N_SAMPLES_PER_PROMPT")
    return settings.NEMO_GYM_N_SAMPLES_PER_PROMPT if given else settings.REHEARSAL_SAMPLES


def entrypoint(settings: Settings, job: jobs.Job) -> str:
    """The job's command line; it shows no credential."""
    names = [name for name in trial_request.NAMES if name.startswith("NEMO_GYM_") and name != "NEMO_GYM_URL"]
    gym = [f"{name}={settings.texts[name]}" for name in names]
    agent = shlex.join(["exec", *program.stage("session_client")])
    wrapper = program.stage("job", "--secrets", str(job.folder / "secrets.json"))
    driver = program.room("rollouts.rehearsal", "--policy", settings.REHEARSAL_POLICY)
    driver += ["--prompt-data", str(job.folder / PROMPTS)]
    driver += ["--agent-command", agent, "--agent-cwd", str(ROOT)]
    driver += ["--agent-env", f"NEMO_GYM_URL={settings.gateway_urls[0]}", *gym]
    driver += ["--agent-timeout", str(settings.AGENT_TIMEOUT_S)]
    driver += ["--n-samples-per-prompt", str(samples(settings))]
    driver += ["--concurrency", str(settings.REHEARSAL_CONCURRENCY), "--dump", str(dump_path(settings, job))]
    return "exec " + shlex.join([*wrapper, "--", *driver])


def dump_path(settings: Settings, job: jobs.Job) -> Path:
    return runs.rehearsal_dumps(settings) / f"{job.id}.jsonl"


def job_variables(settings: Settings) -> dict[str, str]:
    """All our variables as they hold here; the cluster's processes may have been started with others."""
    hidden = (*SECRETS, "RAY_ADDRESS")
    return {name: text for name, text in settings.texts.items() if name not in hidden} | {"PYTHONUNBUFFERED": "1"}


class Output:
    """What the user sees of a running job: its lines, and on a terminal its progress. It keeps the log."""

    def __init__(self, path: Path, partial: Path, samples: int):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.partial = path, partial
        self.bar = terminal.Bar("samples", samples)
        self.log = path.open("w", encoding="utf-8")

    def show(self, text: str) -> None:
        self.log.write(text)
        self.log.flush()
        for line in text.splitlines():
            terminal.say(f"  | {line}" if len(line) <= WIDTH else f"  | {line[:WIDTH]} ...")

    def tell(self, status: str) -> None:
        done = 0
        if sys.stderr.isatty() and self.partial.exists():
            done = self.partial.read_bytes().count(b"\n")
        self.bar.step(done - self.bar.done, f"job {status}")


def run_job(settings: Settings, job: jobs.Job, lines: list[str], cpus: float) -> int:
    """Submit the job and follow it: the exit status."""
    dump = dump_path(settings, job)
    partial = dump.with_name(dump.name + ".partial")
    output = Output(settings.RUN_DIR / "logs" / f"{job.id}.log", partial, len(lines) * samples(settings))
    terminal.say(f"job {job.id} at {job.dashboard.url}, log {output.path}")
    write_whole(job.folder / PROMPTS, lines)
    write_private(job.folder / "secrets.json", json.dumps({name: settings.texts[name] for name in SECRETS}))
    job.submit(entrypoint(settings, job), job_variables(settings), cpus)
    info = follow.follow(job, settings.JOB_PENDING_TIMEOUT_S, cpus, output.show, output.tell)
    terminal.say(f"Ray job {info['status']}: {job.id}")
    if info["status"] == "SUCCEEDED":
        return 0
    foreground.tell_failure(info, output.path)
    return 1


def main() -> int:
    settings, args = variables.from_command_line(__doc__, *OPTIONS, options=foreground.CPUS_OPTION)
    lines = prompts.of_rows(settings.rows_path(), settings.LIMIT)
    if settings.REHEARSAL_POLICY == "endpoint" and not settings.MODEL_URL:
        raise Failure("REHEARSAL_POLICY=endpoint needs MODEL_URL, the endpoint that plays the policy")
    return foreground.run(
        lambda: jobs.open_job(settings.RUN_DIR, jobs.Dashboard(dashboard_url(settings))),
        lambda job: run_job(settings, job, lines, args.cpus),
    )


if __name__ == "__main__":
    terminal.run(main)
