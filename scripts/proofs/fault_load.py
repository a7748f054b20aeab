"""Trials to inject faults into: one real session client process each, and their policy endpoint.

Guarantees:
- every trial has its own launch, as the trainer would make it
- its evidence comes from independent places: the client's exit, output and last words; the Gateway's
  snapshot; the trial store; the endpoint's calls; the seeds that the resource server noted
- it judges nothing
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import net, program
from common.files import write_whole
from gateway import launch
from gateway.trial_request import request_id
from inputs.rows import Row
from proofs.rig import SCRIPTS, Graph, secret

# A client gives up at most this long after the deadline.
CLIENT_GRACE_S = 45
LEASE_S = 9
# Slow answers make a trial last some seconds, so that a fault hits many of them.
PACE_S = 0.8
# A Gateway that could not save the end of a trial tries again every 10 s.
SAVED_WITHIN_S = 25


@dataclass
class Evidence:
    """All that is known of one trial at its end.

    `seconds` run from creation to end, None if it never ended; `seeds` is None if nobody counted them;
    `killed` says that its client was killed on purpose and not launched again.
    """

    request_id: str
    exit: int
    words: str
    output: dict | None
    snapshot: dict | None
    again: dict | None
    seconds: float | None
    first_calls: int = 0
    seeds: int | None = None
    killed: bool = False
    secrets: tuple = field(default=(), repr=False)


class Policy:
    """The policy endpoint as its own process, on one port for all its lives."""

    def __init__(self, port: int, folder: Path):
        self.port, self.folder = port, folder
        self.process: subprocess.Popen[bytes] | None = None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.tell("good")
        write_whole(self.folder / "tasks.json", "{}")

    def tell(self, mode: str, pace_s: float = PACE_S) -> None:
        write_whole(self.folder / "mode", f"{mode} {pace_s}")

    def serve(self, tasks: dict[str, list[dict[str, Any]]]) -> None:
        write_whole(self.folder / "tasks.json", json.dumps(tasks))

    def start(self) -> None:
        command = program.room("proofs.policy_endpoint", str(self.port), str(self.folder))
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while self.process.poll() is None:
            if net.ask(f"http://127.0.0.1:{self.port}/").status:
                return
            time.sleep(0.05)
        raise AssertionError(f"the policy endpoint did not start; see {self.folder / 'log'}")

    def end(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def calls(self) -> list[dict[str, Any]]:
        """{"trial", "turn", "mode", "time"} of each call so far."""
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Client:
    """One launch of the session client; to start it again is the trainer's retry of the same launch."""

    def __init__(self, graph: Graph, policy: Policy, folder: Path, name: str, row: Row, deadline_s: float):
        self.name, self.session_id, self.killed = name, secret(), False
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        session = launch.session(folder, f"http://127.0.0.1:{policy.port}/{name}", self.session_id, "faults")
        self.request_id, self.output = request_id(session), Path(session["OUTPUT_JSON"])
        self.environment = graph.env | launch.prepare(session, launch.task_of(row))
        self.environment |= {"NEMO_GYM_DEADLINE_S": str(deadline_s), "NEMO_GYM_LEASE_S": str(LEASE_S)}
        self.words = folder / "words"

    def start(self) -> None:
        command = program.stage("session_client")
        with open(self.words, "wb") as words:
            self.process = subprocess.Popen(command, env=self.environment, stderr=words, cwd=SCRIPTS.parent)

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        if self.process:
            self.process.kill()
            self.process.wait()

    def written(self) -> dict[str, Any] | None:
        return json.loads(self.output.read_text()) if self.output.exists() else None


class Load:
    """`count` trials at once, over the rows in turn."""

    def __init__(self, graph: Graph, policy: Policy, folder: Path, task_rows: list[Row], count: int, deadline_s: float):
        shutil.rmtree(folder, ignore_errors=True)
        self.graph, self.policy, self.deadline_s = graph, policy, deadline_s
        chosen = {f"trial-{time.time_ns()}-{index}": task_rows[index % len(task_rows)] for index in range(count)}
        self.clients = [Client(graph, policy, folder / name, name, row, deadline_s) for name, row in chosen.items()]
        truths = {name: row.get("ground_truth", []) for name, row in chosen.items()}
        kept = ("name", "arguments")
        policy.serve({name: [{key: call[key] for key in kept} for call in calls] for name, calls in truths.items()})
        self.names = set(chosen)

    def start(self) -> None:
        for client in self.clients:
            client.start()

    def first_calls(self) -> dict[str, int]:
        """{trial: first model calls}, without those that were answered 500, which are sent again."""
        counts = dict.fromkeys(self.names, 0)
        for call in self.policy.calls():
            if call["trial"] in counts and call["turn"] == 0 and call["mode"] != "500":
                counts[call["trial"]] += 1
        return counts

    def under_way(self, count: int) -> None:
        """Wait until `count` trials have made a model call."""
        end = time.monotonic() + 120
        while len({call["trial"] for call in self.policy.calls()} & self.names) < count:
            assert time.monotonic() < end, "the trials did not get under way"
            time.sleep(0.05)

    def wait(self) -> None:
        """Wait until every client has ended; a client that does not is killed, as its exit status shows."""
        end = time.monotonic() + self.deadline_s + CLIENT_GRACE_S
        for client in self.clients:
            assert client.process
            try:
                client.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                client.kill()

    def end(self) -> None:
        for client in filter(Client.runs, self.clients):
            client.kill()

    def evidence(self, seeds: dict[str, int] | None) -> list[Evidence]:
        """The trials' evidence; `seeds` is {rollout id: times that it was seeded}, if they were counted."""
        stored, first_calls = self._stored(), self.first_calls()
        return [self._evidence(client, stored, first_calls, seeds) for client in self.clients]

    def _evidence(self, client: Client, stored: dict, first_calls: dict, seeds: dict | None) -> Evidence:
        created, ended, rollout_id = stored.get(client.request_id, (None, None, None))
        assert client.process
        return Evidence(
            client.request_id,
            client.process.returncode,
            client.words.read_text(),
            client.written(),
            # The second look must show the same end.
            self._show(client.request_id, wait_s=30),
            self._show(client.request_id),
            ended - created if ended else None,
            first_calls[client.name],
            None if seeds is None else seeds.get(rollout_id, 0),
            client.killed,
            (client.session_id, self.graph.token),
        )

    def _show(self, request_id: str, wait_s: float = 0) -> dict[str, Any] | None:
        answer = self.graph.show(request_id, wait_s)
        return answer.json() if answer.status_code == 200 else None

    def _stored(self) -> dict[str, list]:
        """{request id: [created, ended, rollout id]} from the store, as soon as it has every end."""
        ids, patience = {client.request_id for client in self.clients}, time.monotonic() + SAVED_WITHIN_S
        while True:
            with contextlib.closing(sqlite3.connect(self.graph.run_dir / "trials.sqlite")) as store:
                records = store.execute("SELECT request_id, created, ended, rollout_id FROM trials").fetchall()
            stored = {request_id: rest for request_id, *rest in records}
            unsaved = [request_id for request_id in ids & stored.keys() if stored[request_id][1] is None]
            if not unsaved or time.monotonic() > patience:
                return stored
            time.sleep(0.5)
