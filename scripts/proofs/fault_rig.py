"""What the fault matrix runs in: a graph, its policy endpoint and the observers, all in one temporary folder.

Guarantees: nothing of a user's is touched; the graph is up before each fault; all is ended and removed afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from common.failure import Failure
from inputs import rows
from proofs import observed_server
from proofs.fault_load import Policy
from proofs.fault_matrix import Fault, mount_small_disk, unmount
from proofs.fault_run import suffer
from proofs.rig import Graph, free_block, run_script
from servers.tree import WORKPLACE, installed_tree

CONCURRENCY = 16
# Within one free block: the graph's ports come first.
POLICY_OFFSET = 199


class FaultRig:
    def __init__(self, folder: Path):
        self.folder, self.observed, self.run_dir = folder, folder / "observed", folder / "run"
        self.small_disk = mount_small_disk(self.run_dir)
        self.rows = rows.read_rows(installed_tree() / WORKPLACE / "data" / "example.jsonl")
        self.policy = Policy(free_block() + POLICY_OFFSET, folder / "policy")
        self.graph = Graph(
            self.run_dir,
            self.rows[0],
            WORKPLACE_ASSISTANT_MAX_CONCURRENCY=str(CONCURRENCY),
            GYM_START_TIMEOUT_S="600",
            **observed_server.hook(self.observed),
        )

    def up(self) -> None:
        result = run_script("gym_up.py", self.graph.env)
        if result.returncode:
            raise Failure(f"the graph of the fault matrix did not start: {result.stderr.strip()[-1500:]}")
        if self.policy.process is None or self.policy.process.poll() is not None:
            self.policy.start()

    def suffer(self, fault: Fault, trials: int) -> dict[str, Any]:
        """The line of one fault. A rig that breaks under it has broken a rule, too."""
        self.up()
        try:
            return suffer(fault, self.graph, self.policy, self.folder / "load", self.rows, trials, self.observed)
        except (
            AssertionError,
            Failure,
            requests.RequestException,
        ) as error:  # a Gateway that stays away answers no question
            broken = [f"{type(error).__name__}: {error}"]
            known = {"name": fault.name, "what": fault.what, "trials": trials, "held": False, "broken": broken}
            return known | {"ended": {}, "exits": {}, "words": {}, "back_s": 0}

    def keep_logs(self, target: Path) -> None:
        shutil.rmtree(target, ignore_errors=True)
        with suppress(OSError):
            shutil.copytree(self.run_dir / "logs", target)

    def down(self) -> None:
        self.policy.end()
        run_script("stop.py", self.graph.env)
        if self.small_disk:
            unmount(self.run_dir)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def fault_rig() -> Iterator[FaultRig]:
    rig = FaultRig(Path(tempfile.mkdtemp(prefix="gym-faults-")))
    try:
        yield rig
    finally:
        rig.down()
