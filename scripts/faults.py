#!/usr/bin/env python3
"""The fault matrix: what happens to 64 trials when something dies, hangs, lies or runs out, fault by fault.

Starts a graph and a policy endpoint of its own, on free ports and in a temporary folder, never a
user's; injects each fault while the trials run through real session clients; checks that each ends
once, in time, with its reward or with none and a code, never 0 for a fault; and says what came back by
itself, in how many seconds, and what the user saw. Results go to DATA_ROOT/faults (matrix.json, and
matrix.md as a table); a fault run again replaces its line. On Linux; about half a minute a fault, a
minute to start, all faults in 20 minutes on 2 cores. The full disk needs root (a small disk is mounted).

  make faults
  scripts/run.sh faults --faults kill-agent,disk-full --fault-trials 16
  scripts/run.sh faults --list
  scripts/run.sh faults --publish      writes the results that are there into tests/MEASURED.md, runs nothing
"""

import json
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import requests

from common.failure import Failure
from common.files import write_whole
from common.git import commit
from common.settings import from_command_line
from common.terminal import run, say, stage
from inputs import rows
from proofs import fault_table, observed_server
from proofs.fault_load import Policy
from proofs.fault_matrix import FAULTS, mount_small_disk, unmount
from proofs.fault_run import suffer
from proofs.rig import Graph, free_block, run_script
from servers.tree import WORKPLACE, installed_tree

CONCURRENCY = 16
# Within one free block: the graph's ports come first.
POLICY_OFFSET = 199


class Bench:
    """The graph, its policy endpoint and the observers, all in one temporary folder."""

    def __init__(self, folder):
        self.folder, self.observed = folder, folder / "observed"
        self.run_dir = folder / "run"
        self.small_disk = mount_small_disk(self.run_dir)
        self.rows = rows.read_rows(installed_tree() / WORKPLACE / "data" / "example.jsonl")
        self.policy = Policy(free_block() + POLICY_OFFSET, folder / "policy")
        hook = observed_server.hook(self.observed)
        self.graph = Graph(
            self.run_dir,
            self.rows[0],
            WORKPLACE_ASSISTANT_MAX_CONCURRENCY=str(CONCURRENCY),
            GYM_START_TIMEOUT_S="600",
            **hook,
        )

    def up(self):
        result = run_script("gym_up.py", self.graph.env)
        if result.returncode:
            raise Failure(f"the graph of the fault matrix did not start: {result.stderr.strip()[-1500:]}")
        if self.policy.process is None or self.policy.process.poll() is not None:
            self.policy.start()

    def suffer(self, fault, trials):
        """The line of one fault; what the rig itself could not do is a broken rule too."""
        self.up()
        seeds = lambda: observed_server.seeds(self.observed)  # noqa: E731
        try:
            return suffer(fault, self.graph, self.policy, self.folder / "load", self.rows, trials, self.observed, seeds)
        except (AssertionError, requests.RequestException) as error:  # a Gateway that stays away answers no question
            known = {"name": fault.name, "what": fault.what, "trials": trials, "held": False}
            return known | {
                "ended": {},
                "exits": {},
                "words": {},
                "back_s": 0,
                "broken": [f"{type(error).__name__}: {error}"],
            }

    def keep_logs(self, target):
        shutil.rmtree(target, ignore_errors=True)
        with suppress(OSError):
            shutil.copytree(self.run_dir / "logs", target)

    def down(self):
        self.policy.end()
        run_script("stop.py", self.graph.env)
        if self.small_disk:
            unmount(self.run_dir)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def bench():
    made = Bench(Path(tempfile.mkdtemp(prefix="gym-faults-")))
    try:
        yield made
    finally:
        made.down()


def save(folder, line):
    """Put a fault's line among the results."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = fault_table.read(folder) | {line["name"]: line}
    for name, text in (
        ("matrix.json", json.dumps({"format": 1, "faults": lines}, indent=1, sort_keys=True)),
        ("matrix.md", fault_table.markdown(lines)),
    ):
        write_whole(folder / name, text)


def measure(faults, settings, results):
    """Run the faults. Returns the names of those that were not held."""
    failed = []
    with bench() as made:
        for fault in faults:
            known = {"name": fault.name, "what": fault.what, "date": time.strftime("%Y-%m-%d"), "commit": commit()}
            if fault.needs_small_disk and not made.small_disk:
                save(results, known | {"not_run": "needs root, to mount a small disk"})
                say(f"[ -- ] {fault.name}: not run, it needs root to mount a small disk")
                continue
            with stage(fault.name) as current:
                line = made.suffer(fault, settings.FAULT_TRIALS)
                current.note = fault_table.summary(line)
            save(results, known | line)
            if not line["held"]:
                failed.append(fault.name)
                made.keep_logs(results / "logs" / fault.name)
                say("       " + "\n       ".join(line["broken"]))
    return failed


def main():
    def configure(parser):
        parser.add_argument("--list", action="store_true", help="name the faults and run none")
        parser.add_argument(
            "--publish", action="store_true", help="write the results into tests/MEASURED.md and run none"
        )

    settings, args = from_command_line(__doc__, "DATA_ROOT", "FAULTS", "FAULT_TRIALS", configure=configure)
    results = settings.DATA_ROOT / "faults"
    if args.list:
        say("\n".join(f"{fault.name:<18} {fault.what}" for fault in FAULTS.values()))
        return 0
    if args.publish:
        fault_table.publish(results)
        say(f"tests/MEASURED.md holds the {len(FAULTS)} lines of {results / 'matrix.json'}")
        return 0
    faults = [FAULTS[name] for name in settings.FAULTS or FAULTS]
    if failed := measure(faults, settings, results):
        raise Failure(f"{len(failed)} of {len(faults)} faults not held: {', '.join(failed)}; logs: {results / 'logs'}")
    say(f"Fault matrix held: faults={len(faults)} trials={settings.FAULT_TRIALS} table={results / 'matrix.md'}")
    return 0


if __name__ == "__main__":
    run(main)
