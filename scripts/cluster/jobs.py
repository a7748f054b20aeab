"""Jobs on a Ray cluster, through the dashboard's job API: submit, look, stop. Following is ray_follow.py's.

Guarantees: a stop is confirmed by the status or reported as not confirmed; a job's id is on disk before
Ray hears of it. Proxy variables play no part. The API is spoken directly: Ray's own client takes four
seconds to import.
"""

import json
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import requests

from common import terminal
from common.failure import Failure

TERMINAL = ("SUCCEEDED", "FAILED", "STOPPED")
REQUEST_TIMEOUT_S = 30
POLL_S = 0.5
STOP_TIMEOUT_S = 60
STOP_SILENCE_S = 5
PENDING_STOP_S = 3
# Key in the metadata of a job that ends by itself in seconds.
PASSING = "workplace-assistant.passing"
# Ray's names for the actor that waits for a job's resources and then runs it.
SUPERVISOR, NAMESPACE = "_ray_internal_job_actor_", "SUPERVISOR_ACTOR_RAY_NAMESPACE"
# Ray kills what is left of a job so long after SIGTERM; a driver needs five seconds for its agents.
STOP_WAIT_S = 10


class Unreachable(Failure):
    """The dashboard does not answer."""


class Dashboard:
    """Requests to one cluster's dashboard."""

    def __init__(self, url, timeout_s=REQUEST_TIMEOUT_S):
        self.url, self.timeout_s = url.rstrip("/"), timeout_s
        self.session = requests.Session()
        self.session.trust_env = False

    def ask(self, method, path, body=None):
        """Send one request: (status, parsed JSON or None). Raises Unreachable."""
        try:
            reply = self.session.request(method, self.url + path, json=body, timeout=self.timeout_s)
        except requests.RequestException as error:
            raise Unreachable(f"{self.url}: Ray's dashboard does not answer ({type(error).__name__})") from None
        try:
            return reply.status_code, reply.json()
        except ValueError:
            return reply.status_code, None

    def text(self, path):
        """The text of a page; empty if there is none. Raises Unreachable."""
        try:
            reply = self.session.get(self.url + path, timeout=self.timeout_s)
        except requests.RequestException as error:
            raise Unreachable(f"{self.url}: Ray's dashboard does not answer ({type(error).__name__})") from None
        return reply.text if reply.status_code == 200 else ""

    def free(self):
        """What each node has in use, as the dashboard words it; "unknown" if it does not say."""
        _, answer = self.ask("GET", "/nodes?view=summary")
        try:
            nodes = answer["data"]["nodeLogicalResources"].values()
        except (KeyError, TypeError, AttributeError):
            nodes = ()
        return "; ".join(" ".join(str(node).split("\n")) for node in nodes) or "unknown"


class Job:
    """One job: its id, its folder while it is open, its state on the cluster."""

    def __init__(self, dashboard, folder, submission_id, python=sys.executable):
        self.dashboard, self.folder, self.id, self.python = dashboard, folder, submission_id, python
        self.path = f"/api/jobs/{submission_id}"
        # True once its end was seen, or that Ray does not have it.
        self.ended, self.submitted = False, False

    def submit(self, entrypoint, variables, cpus, runtime_env=None, passing=False):
        """Hand the job to Ray, `variables` on top of those of `runtime_env`. Raises Failure if Ray refuses it.

        A `passing` job is a look or a help of seconds, which nobody needs to wait for.
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

    def info(self):
        """Ray's record of the job; {} if it has none."""
        status, answer = self.dashboard.ask("GET", self.path)
        if status == 404:
            self.ended = True
            return {}
        if status != 200 or not isinstance(answer, dict):
            raise Unreachable(f"{self.dashboard.url}{self.path}: answered {status}")
        self.ended = answer.get("status") in TERMINAL
        return answer

    def logs(self):
        """What the job has printed so far; empty while there is nothing to read."""
        status, answer = self.dashboard.ask("GET", f"{self.path}/logs")
        return answer.get("logs") or "" if status == 200 and isinstance(answer, dict) else ""

    def stop(self):
        """Ask for the job's end until its status is terminal: that status, or None if Ray has no such job.

        Raises Failure when it does not get there.
        """
        asked, status, removing = time.monotonic(), "unknown", False
        heard = asked
        while time.monotonic() < asked + STOP_TIMEOUT_S:
            try:
                status = self.info().get("status")
                if status is None or status in TERMINAL:
                    return status
                self.dashboard.ask("POST", f"{self.path}/stop")
                heard = time.monotonic()
            except Unreachable:
                if time.monotonic() > heard + STOP_SILENCE_S:
                    raise
            if status == "PENDING" and not removing and time.monotonic() > asked + PENDING_STOP_S:
                self._remove_supervisor()
                removing = True
            time.sleep(POLL_S)
        raise Failure(
            f"job {self.id} was told to stop and is still {status} after {STOP_TIMEOUT_S} s: {self.dashboard.url}"
        )

    def stop_and_tell(self):
        """Stop the job after an interruption and say what it is now. Raises Failure if that is not known."""
        try:
            terminal.say(f"interrupted; job {self.id} is {self.stop() or 'unknown to Ray'}")
        except Failure as fault:
            raise Failure(f"interrupted, and job {self.id} may still run: {fault}; make stop tries again") from None

    def _remove_supervisor(self):
        """End a job that waits for resources: Ray takes its stop requests and does nothing until it has started.

        A job that needs no CPU ends the actor that waits in the other's name.
        """
        code = f"import ray; ray.init(); ray.kill(ray.get_actor('{SUPERVISOR}{self.id}', namespace='{NAMESPACE}'))"
        remover = Job(self.dashboard, None, f"stop-{self.id}")
        remover.submit("exec " + shlex.join([self.python, "-c", code]), {}, 0, passing=True)

    def close(self):
        """Forget the job on disk if it is over; else it stays on record, for `make stop`."""
        if self.ended:
            shutil.rmtree(self.folder, ignore_errors=True)


def open_job(run_dir, dashboard, kind="rehearsal", python=sys.executable):
    """A new job: an id no other has, and on disk, in a folder only its owner can enter, before it is submitted.

    `python` is one on the cluster's head that has the cluster's Ray.
    """
    submission_id = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{secrets.token_hex(4)}"
    folder = jobs_folder(run_dir) / submission_id
    folder.mkdir(mode=0o700, parents=True)
    (folder / "dashboard").write_text(f"{dashboard.url}\n{python}\n", encoding="utf-8")
    return Job(dashboard, folder, submission_id, str(python))


def jobs_folder(run_dir):
    return Path(run_dir) / "jobs"


def open_jobs(run_dir):
    """The jobs whose end nobody has seen, by what is on disk."""
    found = [(path.parent, path.read_text(encoding="utf-8").splitlines()) for path in _records(run_dir)]
    return [Job(Dashboard(lines[0]), folder, folder.name, *lines[1:2]) for folder, lines in found if lines]


def _records(run_dir):
    return sorted(jobs_folder(run_dir).glob("*/dashboard"))


def write_private(path, values):
    """Write a JSON file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(values, file)


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived."""


def interrupt(number, frame):
    # What follows is the stop of the job, and a second signal must not cut it short.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)
