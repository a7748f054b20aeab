"""Trials to inject faults into: real session clients, one process each, and a policy endpoint of their own.

Guarantees: every trial has a launch of its own as the trainer would make it (folder, session id,
variables), and what became of it is read from independent places: the client's exit, its output and
its last words; the Gateway's snapshot; the trial store; the calls that the endpoint was sent; the
seeds that the resource server itself noted (observed_server.py). It judges nothing.
"""

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import time
from dataclasses import dataclass, field

import httpx

from common import program
from common.files import write_whole
from gateway.trial_request import request_id
from inputs import rows
from proofs.rig import SCRIPTS, secret

# Clients give up this much after the deadline at the latest.
CLIENT_GRACE_S = 45
LEASE_S = 9
# An answer of the policy takes so long: a trial lasts some seconds, so that a fault finds many of them.
PACE_S = 0.8
# A Gateway that could not save an end tries again every 10 s.
SAVED_WITHIN_S = 25


@dataclass
class Evidence:
    """All that is known of one trial at its end.

    `seconds` from creation to end, None if it never ended; `seeds` None where nobody counted them;
    `killed`: its client was, on purpose, and not launched again.
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
    """The policy endpoint as its own process, on a port that stays its own."""

    def __init__(self, port, folder):
        self.port, self.folder, self.process = port, folder, None
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.tell("good")
        write_whole(self.folder / "tasks.json", "{}")

    def tell(self, mode, pace_s=PACE_S):
        write_whole(self.folder / "mode", f"{mode} {pace_s}")

    def serve(self, tasks):
        write_whole(self.folder / "tasks.json", json.dumps(tasks))

    def start(self):
        command = program.room("proofs.policy_endpoint", str(self.port), str(self.folder))
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(f"http://127.0.0.1:{self.port}/", trust_env=False)
                return
            time.sleep(0.05)
        raise AssertionError(f"the policy endpoint did not start; see {self.folder / 'log'}")

    def end(self):
        if self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()

    def calls(self):
        """[{"trial", "turn", "mode", "time"}] of all calls so far."""
        path = self.folder / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Client:
    """One launch of the session client. `start` again is the trainer's retry of the same launch."""

    def __init__(self, graph, policy, folder, name, row, deadline_s):
        self.name, self.session_id = name, secret()
        self.output, self.process, self.killed = folder / "out.json", None, False
        relax = rows.to_relax(row)
        folder.mkdir(parents=True)
        (folder / "in.json").write_text(json.dumps({"messages": relax["input"], "metadata": relax["metadata"]}))
        session = {"SESSION_IO_DIR": str(folder), "SESSION_ID": self.session_id}
        self.request_id = request_id(session)
        session |= {
            "INPUT_JSON": str(folder / "in.json"),
            "OUTPUT_JSON": str(self.output),
            "BASE_URL": f"http://127.0.0.1:{policy.port}/{name}",
            "ROLLOUT_MODE": "train",
            "GROUP_ID": "faults",
        }
        self.environment = graph.env | {f"RELAX_{key}": value for key, value in session.items()}
        self.environment |= {"NEMO_GYM_DEADLINE_S": str(deadline_s), "NEMO_GYM_LEASE_S": str(LEASE_S)}
        self.words = folder / "words"

    def start(self):
        command = program.stage("session_client")
        with open(self.words, "wb") as words:
            self.process = subprocess.Popen(command, env=self.environment, stderr=words, cwd=SCRIPTS.parent)

    def written(self):
        return json.loads(self.output.read_text()) if self.output.exists() else None


def _played(call):
    return {"name": call["name"], "arguments": call["arguments"]}


class Load:
    """`count` trials at once over the rows in turn."""

    def __init__(self, graph, policy, folder, task_rows, count, deadline_s):
        shutil.rmtree(folder, ignore_errors=True)
        self.graph, self.policy, self.deadline_s = graph, policy, deadline_s
        chosen = {f"trial-{time.time_ns()}-{index}": task_rows[index % len(task_rows)] for index in range(count)}
        self.clients = [Client(graph, policy, folder / name, name, row, deadline_s) for name, row in chosen.items()]
        policy.serve({name: [_played(call) for call in row["ground_truth"]] for name, row in chosen.items()})
        self.names = set(chosen)

    def start(self):
        for client in self.clients:
            client.start()

    def first_calls(self):
        """{trial: first model calls}, tries that were answered with a 500 not counted: those are sent again."""
        found = dict.fromkeys(self.names, 0)
        for call in self.policy.calls():
            if call["trial"] in found and call["turn"] == 0 and call["mode"] != "500":
                found[call["trial"]] += 1
        return found

    def under_way(self, count):
        """Wait until so many trials have made a model call."""
        end = time.monotonic() + 120
        while len({call["trial"] for call in self.policy.calls()} & self.names) < count:
            assert time.monotonic() < end, "the trials did not get under way"
            time.sleep(0.05)

    def wait(self):
        """Wait until every client has ended; one that does not is killed, which its exit status will tell."""
        end = time.monotonic() + self.deadline_s + CLIENT_GRACE_S
        for client in self.clients:
            try:
                client.process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                client.process.kill()
                client.process.wait()

    def end(self):
        for client in self.clients:
            if client.process and client.process.poll() is None:
                client.process.kill()
                client.process.wait()

    def evidence(self, seeds):
        """[Evidence] of the trials; `seeds`: {rollout id: times that it was seeded} or None."""
        stored, first_calls = self._stored(), self.first_calls()
        found = []
        for client in self.clients:
            created, ended, rollout_id = stored.get(client.request_id, (None, None, None))
            found.append(
                Evidence(
                    client.request_id,
                    client.process.returncode,
                    client.words.read_text(),
                    client.written(),
                    self._ended(client.request_id),
                    self._show(client.request_id),
                    ended - created if ended else None,
                    first_calls[client.name],
                    None if seeds is None else seeds.get(rollout_id, 0),
                    client.killed,
                    (client.session_id, self.graph.token),
                )
            )
        return found

    def _ended(self, request_id):
        """The snapshot once it is terminal; None for an unknown trial or one that does not end."""
        answer = self.graph.show(request_id, wait_s=30)
        return answer.json() if answer.status_code == 200 else None

    def _show(self, request_id):
        answer = self.graph.show(request_id)
        return answer.json() if answer.status_code == 200 else None

    def _stored(self):
        """{request id: (created, ended, rollout id)} as the store has it, once it has every end."""
        ids, patience = {client.request_id for client in self.clients}, time.monotonic() + SAVED_WITHIN_S
        while True:
            found = self._stored_now()
            unsaved = [request_id for request_id in ids & found.keys() if found[request_id][1] is None]
            if not unsaved or time.monotonic() > patience:
                return found
            time.sleep(0.5)

    def _stored_now(self):
        with contextlib.closing(sqlite3.connect(self.graph.run_dir / "trials.sqlite")) as store:
            found = store.execute("SELECT request_id, created, ended, rollout_id FROM trials").fetchall()
        return {request_id: rest for request_id, *rest in found}
