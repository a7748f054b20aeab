"""One line of the fault matrix, from a ready graph to a verdict.

Guarantees: the fault is injected while trials run, and undone whatever happens; a result is `held`
only if every trial kept every rule, all state was released, all parts came back, and a trial after it
earned its reward. The graph is left ready, or the result says that it is not.
"""

import threading
import time
from pathlib import Path

from common import net
from proofs.fault_judge import broken_rules, counted, last_words
from proofs.fault_load import Load
from proofs.fault_matrix import Site
from proofs.rig import eventually
from servers import ports

# Whatever was lost has to be back by then: the longest backoff, and a start on a busy machine.
BACK_WITHIN_S = 180
# All parts have to answer for so long before they count as back.
STEADY_S = 3
SAMPLE_S = 0.2
# Share of the trials that are under way when the fault comes.
UNDER_WAY = 5
PROBE_DEADLINE_S = 60


class Watch:
    """Samples the parts of the graph in a thread of its own: since when all of them answer (None: they do not)."""

    def __init__(self, graph):
        self.graph, self.ended = graph, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.begin()
        self.thread.start()

    def begin(self):
        """Forget what was seen so far."""
        self.healthy_since, self.was_down = None, False

    def _watch(self):
        while not self.ended.wait(SAMPLE_S):
            if not all_answer(self.graph):
                self.was_down, self.healthy_since = True, None
            elif self.healthy_since is None:
                self.healthy_since = time.monotonic()

    def steady(self):
        since = self.healthy_since
        return since is not None and time.monotonic() - since > STEADY_S

    def end(self):
        self.ended.set()
        self.thread.join()


def all_answer(graph):
    """Whether the Gateway is ready, the head server answers, and something listens for Ray."""
    settings = graph.settings
    head = net.ask(f"{settings.local_url('head')}/server_instances").status == 200
    return head and ports.connects(settings.GYM_RAY_PORT) and graph.health()[0] == 200


def suffer(fault, graph, policy, folder, task_rows, trials, observed=None, seeds=lambda: None):
    """Inject one fault while `trials` run. Returns the line of the matrix as a dict."""
    graph.wait_ready()
    graph.wait_released()
    load = Load(graph, policy, Path(folder), task_rows, trials, fault.deadline_s)
    site, watch = Site(graph, policy, load, observed), Watch(graph)
    try:
        load.start()
        load.under_way(max(1, trials // UNDER_WAY))
        hit = graph.health()[1].get("active_trials", 0)
        watch.begin()
        undone = inject(fault, site)
        load.wait()
        broken = wait_back(graph, watch) + ([] if hit else ["no trial was under way when the fault came"])
        found = load.evidence(seeds())
    finally:
        watch.end()
        load.end()
    broken += judge(found, fault, graph)
    if not broken:
        broken += probe(graph, policy, folder, task_rows)
    down_s = max(0.0, watch.healthy_since - undone) if watch.was_down and watch.healthy_since else 0.0
    return {
        "name": fault.name,
        "what": fault.what,
        "trials": len(found),
        "hit": hit,
        "ended": counted(found),
        "exits": exits(found),
        "words": last_words(found),
        "longest_s": round(max((trial.seconds or 0) for trial in found), 1),
        "back_s": round(down_s, 1),
        "was_down": watch.was_down,
        "broken": broken[:20],
        "held": not broken,
    }


def inject(fault, site):
    """Inject the fault and undo it. Returns the moment from which the graph may recover."""
    fault.inject(site)
    moment = time.monotonic()
    try:
        if fault.lasts_s is None:
            site.load.wait()
        time.sleep(fault.lasts_s or 0)
    finally:
        fault.lift(site)
    return time.monotonic() if fault.lasts_s != 0 else moment


def wait_back(graph, watch):
    """Wait until all parts answer and all state is released; sentences for what is not."""
    broken = []
    for check, words in ((watch.steady, "not all parts came back"), (_released(graph), "state was not released")):
        try:
            eventually(check, BACK_WITHIN_S)
        except AssertionError:
            broken.append(f"{words} within {BACK_WITHIN_S} s")
    return broken


def _released(graph):
    def released():
        state = graph.health()[1]
        return state.get("active_trials") == 0 and state.get("open_sessions") == 0

    return released


def judge(found, fault, graph):
    cleanup_s = graph.settings.GATEWAY_CLEANUP_TIMEOUT_S
    return [
        f"{trial.request_id[:14]}…: {rule}"
        for trial in found
        for rule in broken_rules(trial, fault.deadline_s, cleanup_s)
    ]


def probe(graph, policy, folder, task_rows):
    """Sentences for what keeps a trial from its reward now that the fault is over."""
    load = Load(graph, policy, Path(folder), task_rows[:1], 1, PROBE_DEADLINE_S)
    load.start()
    load.wait()
    ended = counted(load.evidence(None))
    return [] if ended == {"rewarded": 1} else [f"a trial after it ended {next(iter(ended))}"]


def exits(found):
    """{exit status of the clients as text: how many}"""
    counts = {}
    for trial in found:
        counts[str(trial.exit)] = counts.get(str(trial.exit), 0) + 1
    return counts
