"""One line of the fault matrix, from a ready graph to a verdict.

Guarantees:
- the fault is injected while trials run, and undone whatever happens
- a line is `held` only if every trial kept every rule, all state was released, all parts came back,
  and a trial after the fault earned its reward
- the graph is left ready, or the line says that it is not
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import net
from inputs.rows import Row
from proofs import observed_server
from proofs.fault_judge import broken_rules, counted, last_words
from proofs.fault_load import Load, Policy
from proofs.fault_matrix import Fault, Site
from proofs.rig import Graph, eventually
from servers import ports

# Covers the longest backoff and a start on a busy machine.
BACK_WITHIN_S = 180
# All parts must answer for this long before they count as back.
STEADY_S = 3
SAMPLE_S = 0.2
# One in this many trials must be under way when the fault comes.
UNDER_WAY = 5
PROBE_DEADLINE_S = 60


class HealthSampler:
    """Samples the parts of the graph in a thread: since when all of them answer, None while they do not."""

    def __init__(self, graph: Graph):
        self.graph, self.ended = graph, threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.begin()
        self.thread.start()

    def begin(self) -> None:
        """Forget all samples so far."""
        self.healthy_since: float | None = None
        self.was_down = False

    def _sample(self) -> None:
        while not self.ended.wait(SAMPLE_S):
            if not all_answer(self.graph):
                self.was_down, self.healthy_since = True, None
            elif self.healthy_since is None:
                self.healthy_since = time.monotonic()

    def steady(self) -> bool:
        since = self.healthy_since
        return since is not None and time.monotonic() - since > STEADY_S

    def end(self) -> None:
        self.ended.set()
        self.thread.join()


def all_answer(graph: Graph) -> bool:
    """Whether the Gateway is ready, the head server answers, and something listens for Ray."""
    settings = graph.settings
    head = net.ask(f"{settings.local_url('head')}/server_instances").status == 200
    return head and ports.connects(settings.GYM_RAY_PORT) and graph.health()[0] == 200


def suffer(
    fault: Fault,
    graph: Graph,
    policy: Policy,
    folder: Path,
    task_rows: list[Row],
    trials: int,
    observed: Path | None = None,
) -> dict[str, Any]:
    """Inject one fault while `trials` run: the line of the matrix."""
    graph.wait_ready()
    graph.wait_released()
    load = Load(graph, policy, folder, task_rows, trials, fault.deadline_s)
    site, health = Site(graph, policy, load, observed), HealthSampler(graph)
    try:
        load.start()
        load.under_way(max(1, trials // UNDER_WAY))
        hit = graph.health()[1].get("active_trials", 0)
        health.begin()
        undone = inject(fault, site)
        load.wait()
        broken = wait_back(graph, health) + ([] if hit else ["no trial was under way when the fault came"])
        evidence = load.evidence(observed_server.seeds(observed) if observed else None)
    finally:
        health.end()
        load.end()
    cleanup_s = graph.settings.GATEWAY_CLEANUP_TIMEOUT_S
    broken += [
        f"{trial.request_id[:14]}…: {rule}"
        for trial in evidence
        for rule in broken_rules(trial, fault.deadline_s, cleanup_s)
    ]
    if not broken:
        broken += probe(graph, policy, folder, task_rows)
    down_s = max(0.0, health.healthy_since - undone) if health.was_down and health.healthy_since else 0.0
    return {
        "name": fault.name,
        "what": fault.what,
        "trials": len(evidence),
        "hit": hit,
        "ended": counted(evidence),
        "exits": dict(Counter(str(trial.exit) for trial in evidence)),
        "words": last_words(evidence),
        "longest_s": round(max((trial.seconds or 0) for trial in evidence), 1),
        "back_s": round(down_s, 1),
        "was_down": health.was_down,
        "broken": broken[:20],
        "held": not broken,
    }


def inject(fault: Fault, site: Site) -> float:
    """Inject the fault and undo it: the moment from which the graph may recover."""
    fault.inject(site)
    moment = time.monotonic()
    try:
        if fault.lasts_s is None:
            site.load.wait()
        time.sleep(fault.lasts_s or 0)
    finally:
        fault.lift(site)
    return time.monotonic() if fault.lasts_s != 0 else moment


def wait_back(graph: Graph, health: HealthSampler) -> list[str]:
    """Wait until all parts answer and all state is released: a sentence for each that did not happen."""
    broken = []
    for check, words in ((health.steady, "not all parts came back"), (graph.released, "state was not released")):
        try:
            eventually(check, BACK_WITHIN_S)
        except AssertionError:
            broken.append(f"{words} within {BACK_WITHIN_S} s")
    return broken


def probe(graph: Graph, policy: Policy, folder: Path, task_rows: list[Row]) -> list[str]:
    """Run one trial after the fault: a sentence if it earned no reward."""
    load = Load(graph, policy, folder, task_rows[:1], 1, PROBE_DEADLINE_S)
    load.start()
    load.wait()
    ended = counted(load.evidence(None))
    return [] if ended == {"rewarded": 1} else [f"a trial after it ended {next(iter(ended))}"]
