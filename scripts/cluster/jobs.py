"""Jobs on a Ray cluster, through the dashboard's job API: submit, look, stop. `follow` follows them.

The API is used directly, since Ray's own client takes four seconds to import.
Guarantees:
- a stop is confirmed by the job's status, or reported as not confirmed
- a job's id is on disk before Ray gets it
- no proxy is used
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import requests

from cluster import auth
from common import terminal
from common.failure import Failure

TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
REQUEST_TIMEOUT_S = 30
POLL_S = 0.5
STOP_TIMEOUT_S = 60
STOP_SILENCE_S = 5
PENDING_STOP_S = 3
# Metadata key of a job that ends by itself in seconds.
PASSING = "workplace-assistant.passing"
# Ray's names for the actor that waits for a job's resources and then runs it.
SUPERVISOR, NAMESPACE = "_ray_internal_job_actor_", "SUPERVISOR_ACTOR_RAY_NAMESPACE"
# How long after SIGTERM Ray kills what is left of a job; a driver needs five seconds for its agents.
STOP_WAIT_S = 10


class Unreachable(Failure):
    """The dashboard does not answer."""


class Dashboard:
    """Requests to one cluster's dashboard."""

    def __init__(self, url: str, timeout_s: float = REQUEST_TIMEOUT_S):
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.headers.update(auth.headers())

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send one request: (status, parsed JSON or None). Raises Unreachable."""
        reply = self._send(method, path, body)
        try:
            return reply.status_code, reply.json()
        except ValueError:
            return reply.status_code, None

    def text(self, path: str) -> str:
        """The text of a page; empty if there is none. Raises Unreachable."""
        reply = self._send("GET", path)
        return reply.text if reply.status_code == 200 else ""

    def _send(self, method, path, body=None):
        try:
            reply = self.session.request(method, self.url + path, json=body, timeout=self.timeout_s)
        except requests.RequestException as error:
            raise Unreachable(f"{self.url}: Ray's dashboard does not answer ({type(error).__name__})") from None
        if reply.status_code in (401, 403):
            raise auth.refused(self.url, reply.status_code)
        return reply

    def free(self) -> str:
        """Which resources are in use on each node, in the dashboard's words; "unknown" if it does not say."""
        _, answer = self.ask("GET", "/nodes?view=summary")
        try:
            nodes = answer["data"]["nodeLogicalResources"].values()
        except (KeyError, TypeError, AttributeError):
            nodes = ()
        return "; ".join(" ".join(str(node).split("\n")) for node in nodes) or "unknown"


class Job:
    """One job: its id, its folder if it is on record, its state on the cluster."""

    def __init__(self, dashboard: Dashboard, folder: Path | None, submission_id: str, python: str = sys.executable):
        self.dashboard, self._folder, self.id, self.python = dashboard, folder, submission_id, python
        self.path = f"/api/jobs/{submission_id}"
        # `ended` once its status was terminal, or Ray did not find it.
        self.ended, self.submitted = False, False

    @property
    def folder(self) -> Path:
        assert self._folder, "the job is not on record"
        return self._folder

    def submit(
        self, entrypoint: str, variables: dict[str, str], cpus: float, runtime_env: Any = None, passing: bool = False
    ) -> None:
        """Submit the job, `variables` on top of those of `runtime_env`. Raises Failure if Ray refuses it.

        A `passing` job ends by itself in seconds, and nobody has to wait for it.
        """
        runtime_env = runtime_env or {}
        variables = runtime_env.get("env_vars", {}) | variables | {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}
        body = {
            "submission_id": self.id,
            "entrypoint": entrypoint,
            "entrypoint_num_cpus": cpus,
            "runtime_env": runtime_env | {"env_vars": variables},
            "metadata": {PASSING: "1"} if passing else {},
        }
        self.submitted = True
        status, answer = self.dashboard.ask("POST", "/api/jobs/", body)
        if status != 200:
            self.ended = True
            raise Failure(f"{self.dashboard.url}: Ray refused the job ({status}): {str(answer)[:300]}")

    def info(self) -> dict[str, Any]:
        """Ray's record of the job; {} if it has none."""
        status, answer = self.dashboard.ask("GET", self.path)
        if status == 404:
            self.ended = True
            return {}
        if status != 200 or not isinstance(answer, dict):
            raise Unreachable(f"{self.dashboard.url}{self.path}: answered {status}")
        self.ended = answer.get("status") in TERMINAL
        return answer

    def logs(self) -> str:
        """The job's output so far; empty while there is none."""
        status, answer = self.dashboard.ask("GET", f"{self.path}/logs")
        return answer.get("logs") or "" if status == 200 and isinstance(answer, dict) else ""

    def stop(self) -> str | None:
        """Ask for the job's end until its status is terminal; returns that, or None if Ray has no such job.

        Raises Failure after STOP_TIMEOUT_S, or once the dashboard is silent.
        """
        began, status, removing = time.monotonic(), "unknown", False
        answered = began
        while time.monotonic() < began + STOP_TIMEOUT_S:
            try:
                status = self.info().get("status")
                if status is None or status in TERMINAL:
                    return status
                self.dashboard.ask("POST", f"{self.path}/stop")
                answered = time.monotonic()
            except Unreachable:
                if time.monotonic() > answered + STOP_SILENCE_S:
                    raise
            if status == "PENDING" and not removing and time.monotonic() > began + PENDING_STOP_S:
                self._remove_supervisor()
                removing = True
            time.sleep(POLL_S)
        raise Failure(
            f"job {self.id} was told to stop and is still {status} after {STOP_TIMEOUT_S} s: {self.dashboard.url}"
        )

    def stop_and_tell(self) -> None:
        """Stop the job after an interruption and print its last status. Raises Failure if that is not known."""
        try:
            terminal.say(f"interrupted; job {self.id} is {self.stop() or 'unknown to Ray'}")
        except Failure as fault:
            raise Failure(f"interrupted, and job {self.id} may still run: {fault}; make stop tries again") from None

    def _remove_supervisor(self):
        """End a job that waits for resources; Ray acts on its stop requests only after it has started.

        A job that needs no CPU kills the actor that waits for this one.
        """
        code = f"import ray; ray.init(); ray.kill(ray.get_actor('{SUPERVISOR}{self.id}', namespace='{NAMESPACE}'))"
        remover = Job(self.dashboard, None, f"stop-{self.id}")
        remover.submit("exec " + shlex.join([self.python, "-c", code]), {}, 0, passing=True)

    def close(self) -> None:
        """Delete the job's record if it is over; otherwise `make stop` finds it there."""
        if self.ended:
            shutil.rmtree(self.folder, ignore_errors=True)


def jobs_folder(run_dir: Path) -> Path:
    """Where the jobs of this clone are on record."""
    return run_dir / "jobs"


def open_job(run_dir: Path, dashboard: Dashboard, kind: str = "rehearsal", python: str | Path = sys.executable) -> Job:
    """A new job with a unique id, on record in a folder that only its owner can enter, not yet submitted.

    `python` is one on the cluster's head that has the cluster's Ray.
    """
    submission_id = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(4)}"
    folder = jobs_folder(run_dir) / submission_id
    folder.mkdir(mode=0o700, parents=True)
    (folder / "dashboard").write_text(f"{dashboard.url}\n{python}\n", encoding="utf-8")
    return Job(dashboard, folder, submission_id, str(python))


def open_jobs(run_dir: Path) -> list[Job]:
    """The jobs on record, whose end nobody has seen."""
    paths = sorted(jobs_folder(run_dir).glob("*/dashboard"))
    records = [(path.parent, path.read_text(encoding="utf-8").splitlines()) for path in paths]
    return [Job(Dashboard(lines[0]), folder, folder.name, *lines[1:2]) for folder, lines in records if lines]


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived."""


def interrupt(number: int, frame: object) -> None:
    """Signal handler that raises Interrupted, once."""
    # A second signal must not cut the stop of the job short.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Interrupted(number)
