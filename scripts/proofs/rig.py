"""A graph of its own for the chain tests and the fault matrix, and a client of its Gateway.

Guarantees:
- the graph has a run folder and ports that no other process has; a user's graph is never touched
- whoever makes a graph ends it
- an expectation that does not hold raises AssertionError
"""

from __future__ import annotations

import copy
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from common import program
from common import settings as variables
from common.failure import Failure
from inputs.rows import Row
from servers import ports, processes

SCRIPTS = variables.ROOT / "scripts"
# Every session id and key begins with this prefix, so that one search finds what leaked.
SECRET_PREFIX = "never-show-me-"
ENDED = ("completed", "truncated", "aborted", "failed")
# A graph takes 200 ports, and one more for its Ray.
BLOCK = 201
# Bounds of the graph under test: trials that may run at once, and that may wait.
CONCURRENCY, QUEUE = 6, 12
# The graph's pairs of agent and resource server.
PAIRS = (("agent", "resource"), ("agent_2", "resource_2"))


def secret() -> str:
    return SECRET_PREFIX + secrets.token_hex(12)


def free_block() -> int:
    """First port of a free block, below the range from which the kernel takes ports by chance."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    taken = {port for _, port, _ in ports.listening()}
    bases = list(range(10000, min(low, 32768) - BLOCK, BLOCK))
    start = os.getpid() % len(bases)
    for base in bases[start:] + bases[:start]:
        if not taken & set(range(base, base + BLOCK)):
            return base
    raise RuntimeError("no free block of ports")


def own_address() -> str | None:
    """This machine's outward address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))
        except OSError:
            return None
        address = probe.getsockname()[0]
    return None if address.startswith(("127.", "0.")) else address


def environment(run_dir: Path, base: int, **changes: str) -> dict[str, str]:
    """Variables of a stage: the declared defaults in place of the user's own, and `changes`."""
    defaults = {name: variable.default for name, variable in variables.declared().items()}
    ours = {"RUN_DIR": str(run_dir), "GYM_BASE_PORT": str(base), "GYM_RAY_PORT": str(base + BLOCK - 1)}
    ours["GYM_BACKEND"] = "local"
    return os.environ | defaults | ours | changes


def run_script(name: str, env: dict[str, str], timeout: float = 450) -> subprocess.CompletedProcess[str]:
    """Run a stage to its end."""
    command = program.stage(name.removesuffix(".py"))
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def eventually(check: Callable[[], Any], seconds: float = 20, every: float = 0.1) -> Any:
    """Wait until `check()` returns something true, and return it."""
    end = time.monotonic() + seconds
    while not (result := check()):
        assert time.monotonic() < end, f"not within {seconds} s: {getattr(check, '__name__', check)}"
        time.sleep(every)
    return result


def pid_of(settings: variables.Settings, server: str) -> int:
    """The process of a graph that listens on a server's port. Raises Failure."""
    inodes = {inode for _, port, inode in ports.listening() if port == settings.port(server)}
    pids = [process.pid for process in processes.ours(settings, "gym") if inodes & ports.sockets_of(process)]
    if not pids:
        raise Failure(f"nobody of the graph listens on port {settings.port(server)}")
    return min(pids)


class Server(requests.Session):
    """Requests to one server by their path: past all proxies, without redirects, within 90 s."""

    def __init__(self, url: str, headers: dict[str, str] | None = None):
        super().__init__()
        self.url, self.trust_env = url, False
        self.headers.update(headers or {})

    def request(self, method: str, url: str, **options: Any) -> requests.Response:
        options = {"timeout": 90} | options | {"allow_redirects": False}
        return super().request(method, self.url + url, **options)


class Surface:
    """A Gateway asked over HTTP: the trial protocol as a client sees it."""

    def __init__(self, url: str, row: Row, token: str | None = None):
        self.url, self.row = url, row
        self.http = Server(url, {"Authorization": f"Bearer {token}"} if token else None)

    def payload(self, policy: Any, row: Row | None = None, **changes: Any) -> dict[str, Any]:
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

    def create(self, payload: dict[str, Any], **options: Any) -> requests.Response:
        return self.http.post("/v1/trials", json=payload, **options)

    def show(self, request_id: str, wait_s: float = 0) -> requests.Response:
        return self.http.get(f"/v1/trials/{request_id}", params={"wait_s": wait_s} if wait_s else None)

    def start(self, payload: dict[str, Any]) -> str:
        """Create a trial. Returns its request id."""
        answer = self.create(payload)
        assert answer.status_code == 202, answer.text
        return payload["request_id"]

    def wait(self, request_id: str, seconds: float = 60) -> dict[str, Any]:
        """The terminal snapshot."""
        answer = self.show(request_id, wait_s=seconds)
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] in ENDED, answer.text
        return answer.json()

    def finish(self, policy: Any, **changes: Any) -> dict[str, Any]:
        """Run one trial to its end. Returns the terminal snapshot."""
        return self.wait(self.start(self.payload(policy, **changes)))

    def wait_running(self, request_id: str) -> None:
        def running():
            return self.show(request_id).json()["status"] == "running"

        eventually(running)

    def health(self) -> tuple[int, dict[str, Any]]:
        """(status, body) of /readyz; (0, {}) if no answer comes."""
        try:
            answer = self.http.get("/readyz", timeout=5)
        except requests.RequestException:
            return 0, {}
        return answer.status_code, answer.json()

    def wait_ready(self, seconds: float = 120) -> None:
        def ready():
            return self.health()[0] == 200

        eventually(ready, seconds, 0.2)

    def released(self) -> bool:
        """Whether no trial is active and no session open."""
        state = self.health()[1]
        return state.get("active_trials") == 0 and state.get("open_sessions") == 0

    def wait_released(self, seconds: float = 15) -> None:
        eventually(self.released, seconds)


class Graph(Surface):
    """The real graph: Ray, Gateway, agent, resource server, head server."""

    def __init__(self, run_dir: Path, row: Row, **changes: str):
        self.run_dir, self.token = run_dir, secret()
        base = free_block()
        self.env = environment(run_dir, base, GATEWAY_TOKEN=self.token, **changes)
        self.settings = variables.load(environment=self.env, dotenv=Path(os.devnull))
        super().__init__(self.settings.local_url("gateway"), row, self.token)

    def up(self) -> subprocess.CompletedProcess[str]:
        result = run_script("gym_up.py", self.env)
        assert result.returncode == 0, result.stderr[-3000:]
        return result

    def stop(self) -> subprocess.CompletedProcess[str]:
        return run_script("stop.py", self.env)

    def pid(self, server: str) -> int:
        return pid_of(self.settings, server)

    def kill(self, server: str) -> int:
        """Send SIGKILL; returns the pid."""
        pid = self.pid(server)
        os.kill(pid, signal.SIGKILL)
        return pid

    def resource_urls(self) -> list[str]:
        return [self.settings.local_url(resource) for _, resource in PAIRS]

    def open_sessions(self) -> int:
        """What the resource servers themselves count."""
        return sum(Server(url).get("/sessions").json()["open"] for url in self.resource_urls())


def assert_error(answer: Any, status: int, code: str | None = None, field: str | None = None) -> dict[str, str]:
    """Check the one error shape that every route answers with. Returns the error."""
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
