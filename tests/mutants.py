#!/usr/bin/env python3
"""Takes one defence after another out of a copy of this clone, and runs the check that has to notice.

A mutant that its check lets pass is named, and the exit status is 1. Copies lie in a temporary folder and
use this clone's .venv; nothing here is changed. Without --graph only the checks that start no graph
(minutes); with it those of the fault matrix and the abuse list too, a graph for each (an hour).

  tests/mutants.py
  tests/mutants.py --graph --only lease
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIALS, STATE, STORE = "scripts/gateway/trials.py", "scripts/gateway/trial.py", "scripts/gateway/store.py"
CALLS, SURFACE, CONNECTIONS = (f"scripts/gateway/{name}.py" for name in ("model_calls", "surface", "connections"))
SUPERVISE, LOCAL, PROTOCOL = "scripts/supervise.py", "scripts/local.py", "scripts/gateway/protocol.py"
# With it a graph that does not come back is noticed in seconds.
IMPATIENT = ("scripts/fault_run.py", "BACK_WITHIN_S = 180", "BACK_WITHIN_S = 20")


@dataclass(frozen=True)
class Mutant:
    """A defence taken out, and who has to notice: arguments of pytest, or faults of the matrix."""

    name: str
    edits: tuple
    tests: str = ""
    faults: str = ""
    needs_graph: bool = False


def unit(name, file, old, new, tests):
    return Mutant(name, ((file, old, new),), tests=f"unit/{tests}")


def chain(name, file, old, new, tests):
    return Mutant(name, ((file, old, new),), tests=f"chain/{tests}", needs_graph=True)


def matrix(name, file, old, new, faults):
    return Mutant(name, ((file, old, new), IMPATIENT), faults=faults, needs_graph=True)


def judge(name, old, new, words):
    return unit(f"judge-{name}", "scripts/fault_judge.py", old, new, f"test_fault_judge.py -k {words}")


MUTANTS = [
    # The judge itself: a rule that it does not know any more.
    judge("lost", 'return ["lost: the Gateway does not know it"]', "return []", "rule_alone"),
    judge("ended", "return [f\"not ended: {snapshot['status']}\"]", "return []", "rule_alone"),
    judge("changed", "if trial.again == snapshot else", "if True else", "rule_alone"),
    judge("late", "trial.seconds > limit", "False", "rule_alone"),
    judge("twice", "max(trial.first_calls, trial.seeds or 0) > 1", "False", "rule_alone"),
    judge("zero", 'snapshot["reward"] == 1.0', "True", "rule_alone"),
    judge("code", '[] if code else ["no reward and no code"]', "[]", "without_a_code"),
    judge("client", "return broken if told else", "return broken if True else", "rule_alone"),
    judge("line", "if len(lines) != 1 or", "if", "rule_alone"),
    judge("secret", "if secret in trial.words]", "if False]", "rule_alone"),
    # Defences that a unit test sees go.
    unit("clock", TRIALS, "return self._epoch + self.clock()", "return time.time()", "test_trials.py -k jump"),
    unit("twin", TRIALS, "and not live.stored.is_set()", "and False", "test_trials.py -k twin"),
    unit("body", SURFACE, "parts.clear()", "pass", "test_connections.py -k let_go"),
    unit(
        "admit",
        TRIALS,
        "if self._is_full() and request_id not in",
        "if False and request_id not in",
        "test_trials.py -k turns",
    ),
    unit("stall", TRIALS, "if now - last > TICK_LATE_S:", "if False:", "test_trials.py -k was_stopped"),
    unit("controls", "scripts/terminal.py", "str(text).translate(CONTROLS)", "str(text)", "test_terminal.py"),
    unit("store-mode", STORE, "os.chmod(name, 0o600)", "pass", "test_store.py -k open_to_others"),
    unit(
        "store-other",
        STORE,
        "except sqlite3.DatabaseError as error:",
        "except ZeroDivisionError as error:",
        "test_store.py -k damaged",
    ),
    unit("store-damage", STORE, '.fetchone()[0]) != "ok"', '.fetchone()[0]) == ""', "test_store.py -k damaged"),
    unit(
        "slow-head",
        CONNECTIONS,
        "keepalive_timeout=HEAD_TIMEOUT_S",
        "keepalive_timeout=3600",
        "test_connections.py",
    ),
    unit(
        "loopback",
        LOCAL,
        'return (getattr(address, "ipv4_mapped", None) or address).is_loopback',
        'return text.startswith(("127.", "::1", "::ffff:127."))',
        "test_local.py -k only_begins_like",
    ),
    unit(
        "supervisor-full-disk",
        SUPERVISE,
        "except Failure as failure:  # a full disk",
        "except ZeroDivisionError as failure:  #",
        "test_supervise.py -k tried_again",
    ),
    unit(
        "supervisor-line",
        SUPERVISE,
        "    with suppress(OSError):\n        print",
        "    if True:\n        print",
        "test_supervise.py -k log_does_not_take",
    ),
    # The fault matrix, each line against a graph without the defence.
    matrix(
        "restart",
        SUPERVISE,
        "        elif now >= self.restart_at:",
        "        elif False:",
        "kill-agent,kill-resource,kill-gateway,kill-head",
    ),
    matrix(
        "restart-ray",
        SUPERVISE,
        "if self.ray.process.poll() is None or now < self.next_try:",
        "if True:",
        "kill-ray,kill-raylet",
    ),
    matrix(
        "watched-over",
        "scripts/gym_up.py",
        'any("supervise.py" in process.command for process in local.ours(self.settings, "gym"))',
        'bool(local.ours(self.settings, "gym"))',
        "kill-supervisor",
    ),
    matrix("lease", STATE, "if now < min(self.deadline, self._lease_ends):", "if now < self.deadline:", "kill-clients"),
    matrix(
        "deadline",
        STATE,
        "if now < min(self.deadline, self._lease_ends):",
        "if now < self._lease_ends:",
        "policy-hang,policy-drip",
    ),
    matrix(
        "sent-again",
        CALLS,
        "status, text, retry_after = await self._send(endpoint, request)",
        "try:\n                status, text, retry_after = await self._send(endpoint, request)\n"
        "            except EndpointFault:\n                continue",
        "policy-cut",
    ),
    matrix(
        "reward-0",
        TRIALS,
        'live.settle(failed("agent_error", f"endpoint_{fault.kind}", request.endpoint.redact(str(fault))))',
        "live.settle(Outcome(Status.COMPLETED, 0.0, dict(_NO_ITEMS)))",
        "kill-policy,policy-500,policy-garbage,policy-schema,policy-error,policy-large",
    ),
    matrix(
        "unsaved",
        TRIALS,
        "return  # kept in memory; the janitor tries again",
        "self._unsaved.pop(request_id)",
        "disk-full",
    ),
    matrix("clock-of-the-machine", TRIALS, "return self._epoch + self.clock()", "return time.time()", "clock-forward"),
    # The abuse list, the same way.
    chain(
        "token",
        SURFACE,
        'request.path.startswith("/v1")',
        'request.path == "/v1/trials"',
        "test_abuse_surface.py -k token",
    ),
    chain(
        "body-bound",
        SURFACE,
        "read_body(request, settings.GATEWAY_MAX_BODY_BYTES)",
        "read_body(request, 1 << 40)",
        "test_bad_input.py -k megabytes",
    ),
    chain("slow-body", SURFACE, "BODY_TIMEOUT_S = 30", "BODY_TIMEOUT_S = 300", "test_abuse_surface.py -k slow_bodies"),
    chain(
        "odd-query",
        SURFACE,
        "except ValueError:\n        value = -1.0",
        "except ZeroDivisionError:\n        value = -1.0",
        "test_abuse_surface.py -k odd_wait",
    ),
    chain(
        "odd-value",
        PROTOCOL,
        "        except ValidationError as error:\n            raise unfit(*_first(error))",
        "        except ZeroDivisionError as error:\n            raise unfit(*_first(error))",
        "test_abuse_surface.py -k any_value",
    ),
    chain("redirects", CALLS, "allow_redirects=False", "allow_redirects=True", "test_abuse_callbacks.py -k redirect"),
    chain("networks", PROTOCOL, "        if not allowed:", "        if False:", "test_abuse_callbacks.py -k leaves"),
    chain("queue", TRIALS, "return len(self.live) >= ", "return -1 >= ", "test_abuse_load.py -k queue"),
    chain(
        "abort",
        TRIALS,
        "            live.settle(aborted())\n        return await",
        "            pass\n        return await",
        "test_abuse_protocol.py",
    ),
    chain(
        "own-address",
        "scripts/gateway/app.py",
        '["127.0.0.1"], self.settings.port("callbacks")',
        '["0.0.0.0"], self.settings.port("callbacks")',
        "test_ports.py -k beyond",
    ),
    Mutant(
        "replay",
        (
            (TRIALS, "self._by_rollout.pop(live.rollout_id, None)", "pass"),
            (TRIALS, "live is None or live.trial.settled or live.trial.status is not Status.RUNNING:", "live is None:"),
            (
                TRIALS,
                "if live.trial.settled:\n            raise ApiError(410",
                "if False:\n            raise ApiError(410",
            ),
        ),
        tests="chain/test_abuse_callbacks.py -k replayed",
        needs_graph=True,
    ),
    Mutant(
        "leak",
        (
            (TRIALS, "self._by_rollout.pop(live.rollout_id, None)", "pass"),
            (TRIALS, "live.trial, live.request = trial, None", "live.trial = trial"),
        ),
        tests="chain/test_abuse_load.py -k soak",
        needs_graph=True,
    ),
]
# Enough for what has to be noticed, and no more.
SIZES = {
    "ABUSE_FULL": "1",
    "ABUSE_TRIALS": "1500",
    "ABUSE_ABORTS": "60",
    "ABUSE_CLIENTS": "200",
    "ABUSE_EXAMPLES": "25",
}


def copied(folder):
    """A copy of this clone's files, with its .venv."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    return folder


def edited(mutant, folder):
    """Take the defence out. Raises LookupError where a line to be changed is not there, or twice."""
    for name, old, new in mutant.edits:
        text = (folder / name).read_text()
        if text.count(old) != 1:
            raise LookupError(f"{mutant.name}: {name} holds {old!r} {text.count(old)} times")
        (folder / name).write_text(text.replace(old, new))


def checked(mutant, folder):
    """Run the check of a mutant: (whether it noticed each thing it had to, the lines that say so)."""
    environment = os.environ | SIZES | {"DATA_ROOT": str(folder / "results"), "FAULT_TRIALS": "16"}
    if mutant.tests:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", *mutant.tests.split(maxsplit=2)]
        ran = subprocess.run(command, cwd=folder / "tests", env=environment, capture_output=True, text=True)
        lines = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return ran.returncode == 1, lines
    command = [sys.executable, str(folder / "scripts" / "faults.py"), "--faults", mutant.faults]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    lines = [line for line in ran.stdout.splitlines() if "NOT HELD" in line]
    broken = [line for line in ran.stdout.splitlines() if line.startswith("       ")]
    return len(lines) == len(mutant.faults.split(",")), lines + broken[:2] + ran.stderr.splitlines()[-1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", action="store_true", help="the checks that start a graph, too")
    parser.add_argument("--only", default="", help="the mutants whose name holds this")
    options = parser.parse_args()
    passed = []
    for mutant in MUTANTS:
        if options.only not in mutant.name or mutant.needs_graph and not options.graph:
            continue
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            copied(Path(folder))
            edited(mutant, Path(folder))
            noticed, lines = checked(mutant, Path(folder))
        print(
            f"[{'seen' if noticed else 'MISS'}] {mutant.name}",
            *(line[:200] for line in lines),
            sep="\n       ",
            flush=True,
        )
        passed += [] if noticed else [mutant.name]
    if passed:
        print(f"error: {len(passed)} mutants were not noticed: {', '.join(passed)}", file=sys.stderr)
    return bool(passed)


if __name__ == "__main__":
    sys.exit(main())
