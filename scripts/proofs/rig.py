"""A graph of one's own, for tests and the fault matrix: in a run folder and on ports that nobody else has.

Started by gym_up.py and asked over HTTP. It belongs to whoever made it, who ends it; a user's own graph
is never touched. What does not hold is an AssertionError: its callers judge with it.
"""

import copy
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

from common import program
from common import settings as variables
from servers import ports, processes

SCRIPTS = variables.ROOT / "scripts"
# Every session id and key of these tests begins with it, so that one search finds what leaked.
SECRET_PREFIX = "never-show-me-"
ENDED = ("completed", "truncated", "aborted", "failed")
# A graph takes 200 ports, and one more for its Ray.
BLOCK = 201
# Bounds of the graph under test: trials that run at once, and that may wait.
CONCURRENCY, QUEUE = 6, 12
# Its pairs of agent and resource server.
PAIRS = (("agent", "resource"), ("agent_2", "resource_2"))


def secret():
    return SECRET_PREFIX + secrets.token_hex(12)


def free_block():
    """First port of a block that nobody listens on, below the range from which the kernel takes ports by chance."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    taken = {port for _, port, _ in ports.listening()}
    bases = list(range(10000, min(low, 32768) - BLOCK, BLOCK))
    start = os.getpid() % len(bases)
    for base in bases[start:] + bases[:start]:
        if not taken & set(range(base, base + BLOCK)):
            return base
    raise RuntimeError("no free block of ports")


def own_address():
    """This machine's outward address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))
        except OSError:
            return None
        found = probe.getsockname()[0]
    return None if found.startswith(("127.", "0.")) else found


def environment(run_dir, base, **changes):
    """Variables of a stage: the declared defaults, whatever the user's own are, and `changes`."""
    defaults = {name: variable.default for name, variable in variables.declared().items()}
    ours = {"RUN_DIR": str(run_dir), "GYM_BASE_PORT": str(base), "GYM_RAY_PORT": str(base + BLOCK - 1)}
    ours["GYM_BACKEND"] = "local"
    return os.environ | defaults | ours | changes


def run_script(name, env, timeout=450):
    """Run a stage to its end. Returns the CompletedProcess, its output as text."""
    command = program.stage(name.removesuffix(".py"))
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def eventually(check, seconds=20, every=0.1):
    """Wait until `check()` gives something true, and return it."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, f"not within {seconds} s: {check.__name__}"
        time.sleep(every)
    return found


class Surface:
    """A Gateway asked over HTTP: the trial protocol as a client sees it."""

    def __init__(self, url, row, token=None):
        self.url, self.row = url, row
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=url, trust_env=False, headers=headers, timeout=90)

    def payload(self, policy, row=None, **changes):
        """A good create payload for a policy (or a base URL); `changes` replace its keys."""
        session_id = secret()
        good = {
            "protocol_version": "relax-nemo-gym/v1",
            "request_id": f"relax-{secrets.token_hex(16)}",
            "session": {"session_id": session_id, "group_id": "g", "rollout_mode": "train", "attempt": 1},
            "environment": {
                "name": "workplace_assistant",
                "config": "workplace-assistant-v1",
                "task": copy.deepcopy(row or self.row),
            },
            "model_endpoint": {
                "base_url": getattr(policy, "base_url", policy),
                "api_key": session_id,
                "model": "model",
            },
            "interrupt_policy": "protected",
            "deadline_s": 30,
            "lease_s": 60,
        }
        return good | changes

    def create(self, payload, **options):
        return self.http.post("/v1/trials", json=payload, **options)

    def show(self, request_id, wait_s=0):
        return self.http.get(f"/v1/trials/{request_id}", params={"wait_s": wait_s} if wait_s else None)

    def start(self, payload):
        """Create a trial. Returns its request id."""
        answer = self.create(payload)
        assert answer.status_code == 202, answer.text
        return payload["request_id"]

    def wait(self, request_id, seconds=60):
        """The terminal snapshot."""
        answer = self.show(request_id, wait_s=seconds)
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] in ENDED, answer.text
        return answer.json()

    def finish(self, policy, **changes):
        """Run one trial to its end. Returns the terminal snapshot."""
        return self.wait(self.start(self.payload(policy, **changes)))

    def wait_running(self, request_id):
        def running():
            return self.show(request_id).json()["status"] == "running"

        eventually(running)

    def health(self):
        """(status, body) of /readyz; (0, {}) where nobody answers."""
        try:
            answer = self.http.get("/readyz", timeout=5)
        except httpx.TransportError:
            return 0, {}
        return answer.status_code, answer.json()

    def wait_ready(self, seconds=120):
        def ready():
            return self.health()[0] == 200

        eventually(ready, seconds, 0.2)

    def wait_released(self, seconds=15):
        """Wait until no trial is active and no session open."""

        def released():
            state = self.health()[1]
            return state.get("active_trials") == 0 and state.get("open_sessions") == 0

        eventually(released, seconds)


class Graph(Surface):
    """The real graph: Ray, Gateway, agent, resource server, head server."""

    def __init__(self, run_dir, row, **changes):
        self.run_dir, self.token = run_dir, secret()
        base = free_block()
        self.env = environment(run_dir, base, GATEWAY_TOKEN=self.token, **changes)
        self.settings = variables.load(environment=self.env, dotenv=Path(os.devnull))
        super().__init__(self.settings.local_url("gateway"), row, self.token)

    def up(self):
        result = run_script("gym_up.py", self.env)
        assert result.returncode == 0, result.stderr[-3000:]
        return result

    def stop(self):
        return run_script("stop.py", self.env)

    def pid(self, server):
        """Process that listens on a server's port."""
        inodes = {inode for _, port, inode in ports.listening() if port == self.settings.port(server)}
        for process in processes.ours(self.settings, "gym"):
            if inodes & ports.sockets_of(process):
                return process.pid
        raise AssertionError(f"nobody listens for {server}")

    def kill(self, server):
        """kill -9; returns the pid."""
        pid = self.pid(server)
        os.kill(pid, signal.SIGKILL)
        return pid

    def resource_urls(self):
        return [self.settings.local_url(resource) for _, resource in PAIRS]

    def open_sessions(self):
        """What the resource servers themselves count."""
        urls = [f"{url}/sessions" for url in self.resource_urls()]
        return sum(httpx.get(url, trust_env=False).json()["open"] for url in urls)


def assert_error(answer, status, code=None, field=None):
    """The one check of the one error shape."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert {"code", "message"} <= set(error) <= {"code", "message", "field"}
    assert all(isinstance(value, str) and value for value in error.values())
    assert len(answer.content) < 2000
    assert SECRET_PREFIX not in answer.text
    if code:
        assert error["code"] == code
    if field:
        assert error.get("field") == field
    return error
