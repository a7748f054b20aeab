#!/usr/bin/env python3
"""Roll the rows out in a Ray job: submit it, follow it to its end, and give its verdict.

On this machine: a private one-node Ray is started (about 20 s) or reused, and the rehearsal
driver runs in it in the trainer's place. With RAY_ADDRESS the same job goes to that cluster,
which sees this clone and RUN_DIR at the same paths. Guarantees: the exit status follows the
job's status alone; a job that does not start within JOB_PENDING_TIMEOUT_S is stopped, and so
is one whose submission is interrupted; credentials stand neither in the job's command line
nor in its variables. The private Ray stays up for the next run; `make stop` ends it.

    make smoke                                  # this is its stage "Ray job"
    PYTHONPATH=scripts .venv/bin/python -m rollouts.submit --split validation --limit 32
"""

import shlex
import signal
import sys

from cluster import follow, jobs, nodes
from cluster.jobs import Interrupted, interrupt
from common import program, terminal
from common import settings as variables
from common.failure import Failure
from common.settings import ROOT
from gateway import trial_request
from inputs import rows
from servers.private_ray import PrivateRay

OPTIONS = (
    "SPLIT",
    "LIMIT",
    "NEMO_GYM_SOURCE_DATA",
    "REHEARSAL_POLICY",
    "NEMO_GYM_N_SAMPLES_PER_PROMPT",
    "REHEARSAL_SAMPLES",
    "REHEARSAL_CONCURRENCY",
    "AGENT_TIMEOUT_S",
    "RAY_ADDRESS",
    "MODEL_URL",
    "MODEL",
)
SECRETS = ("GATEWAY_TOKEN", "MODEL_API_KEY")
CPUS = 1
TAIL_LINES = 10
WIDTH = 160


def add_options(parser):
    parser.add_argument("--cpus", type=float, default=CPUS, metavar="N", help=f"CPUs the driver asks for [{CPUS}]")


def dashboard_url(settings):
    """The dashboard to submit to: the cluster's at RAY_ADDRESS, else that of our own Ray, which is started."""
    if not settings.RAY_ADDRESS:
        ray = PrivateRay(settings, "rehearsal")
        with terminal.stage("rehearsal Ray") as stage:
            ray.start(stage.detail)
        return ray.dashboard_url
    nodes.refuse_loopback_gateway(settings)
    return nodes.dashboard_url(settings)


def samples(settings):
    """Samples of each row: those of training where they are set, else the few of a rehearsal."""
    given = settings.is_given("NEMO_GYM_N_SAMPLES_PER_PROMPT")
    return settings.NEMO_GYM_N_SAMPLES_PER_PROMPT if given else settings.REHEARSAL_SAMPLES


def entrypoint(settings, job):
    """The job's command line; it shows no credential."""
    names = [name for name in trial_request.NAMES if name.startswith("NEMO_GYM_") and name != "NEMO_GYM_URL"]
    gym = [f"{name}={settings.texts[name]}" for name in names]
    agent = shlex.join(["exec", *program.stage("session_client")])
    wrapper = program.stage("job", "--rows", str(settings.rows_path()))
    wrapper += ["--limit", str(settings.LIMIT), "--prompts", str(job.folder / "prompts.jsonl")]
    wrapper += ["--secrets", str(job.folder / "secrets.json")]
    driver = program.room("rollouts.rehearsal", "--policy", settings.REHEARSAL_POLICY)
    driver += ["--agent-command", agent, "--agent-cwd", str(ROOT)]
    driver += ["--agent-env", f"NEMO_GYM_URL={settings.gateway_urls[0]}", *gym]
    driver += ["--agent-timeout", str(settings.AGENT_TIMEOUT_S)]
    driver += ["--n-samples-per-prompt", str(samples(settings))]
    driver += ["--concurrency", str(settings.REHEARSAL_CONCURRENCY), "--dump", str(dump_path(settings, job))]
    return "exec " + shlex.join([*wrapper, "--", *driver])


def dump_path(settings, job):
    return settings.EXP_DIR / "rehearsal" / "rollout_result" / "train" / f"{job.id}.jsonl"


def job_variables(settings):
    """All our variables as they hold here: the cluster's processes may have been started under others."""
    hidden = (*SECRETS, "RAY_ADDRESS")
    return {name: text for name, text in settings.texts.items() if name not in hidden} | {"PYTHONUNBUFFERED": "1"}


class Watch:
    """What the user sees of a running job: its lines, and on a terminal how far it is. Keeps the log."""

    def __init__(self, path, partial, samples):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.partial = path, partial
        self.bar = terminal.Bar("samples", samples)
        self.log = path.open("w", encoding="utf-8")

    def show(self, text):
        self.log.write(text)
        self.log.flush()
        for line in text.splitlines():
            terminal.say(_shown(line))

    def tell(self, status):
        done = 0
        if sys.stderr.isatty() and self.partial.exists():
            done = self.partial.read_bytes().count(b"\n")
        self.bar.step(done - self.bar.done, f"job {status}")

    def tail(self):
        lines = self.path.read_text(encoding="utf-8").splitlines()[-TAIL_LINES:]
        return [f"last lines of {self.path}:", *map(_shown, lines)]


def _shown(line):
    """A job's line for the terminal; the log has it whole."""
    return f"  | {line}" if len(line) <= WIDTH else f"  | {line[:WIDTH]} ..."


def run_job(settings, job, samples, cpus):
    """Submit the job and follow it: the exit status."""
    dump = dump_path(settings, job)
    watch = Watch(settings.RUN_DIR / "logs" / f"{job.id}.log", dump.with_name(dump.name + ".partial"), samples)
    terminal.say(f"job {job.id} at {job.dashboard.url}, log {watch.path}")
    jobs.write_private(job.folder / "secrets.json", {name: settings.texts[name] for name in SECRETS})
    try:
        job.submit(entrypoint(settings, job), job_variables(settings), cpus)
        info = follow.follow(job, settings.JOB_PENDING_TIMEOUT_S, cpus, watch.show, watch.tell)
    except Interrupted as interruption:
        terminal.clear_line()
        job.stop_and_tell()
        return 128 + interruption.args[0]
    terminal.say(f"Ray job {info['status']}: {job.id}")
    if info["status"] == "SUCCEEDED":
        return 0
    # Ray appends the log to its message.
    reason = str(info.get("message") or "").partition(", last available logs")[0].strip()
    print("\n".join([reason, *watch.tail()]), file=sys.stderr)
    return 1


def main():
    settings, args = variables.from_command_line(__doc__, *OPTIONS, configure=add_options)
    count = len(rows.read_rows(settings.rows_path(), settings.LIMIT))
    if settings.REHEARSAL_POLICY == "endpoint" and not settings.MODEL_URL:
        raise Failure("REHEARSAL_POLICY=endpoint needs MODEL_URL, the endpoint that plays the policy")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        job = jobs.open_job(settings.RUN_DIR, jobs.Dashboard(dashboard_url(settings)))
        try:
            return run_job(settings, job, count * samples(settings), args.cpus)
        finally:
            job.close()
    except Interrupted as interruption:
        return 128 + interruption.args[0]


if __name__ == "__main__":
    terminal.run(main)
