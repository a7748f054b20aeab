"""The bench's own graphs, patched and unpatched, and what trials through them cost.

Guarantees:
- the graphs take turns, so that what else the machine does falls on both
- they have run folders and ports of their own, and end whatever happens
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import program
from common import settings as variables
from common.failure import Failure
from common.settings import Settings
from common.terminal import Bar, clear_line, say, stage, table
from proofs import bench_load, rig
from proofs.unpatched import overlay
from servers.graph import end_graph, readiness
from servers.tree import PATCHES

# The patches that the unpatched environment lacks; trials cannot run without the others.
FAST = [PATCHES / "0003-fast-environment.patch", PATCHES / "0005-plain-middleware.patch"]
# "agent" and "resource" are the sums over all pairs.
PROCESSES = ("gateway", "agent", "resource")
SAMPLE_EVERY_S = 0.25
PORTS_APART = 200
LEVEL_TIMES = 3
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

# {process: (CPU seconds so far, resident bytes)}
Usage = dict[str, tuple[float, int]]


def enough(trials: int, level: int) -> int:
    """How many trials to run at a concurrency: with fewer, most trials would run beside fewer others."""
    return max(trials, LEVEL_TIMES * level)


class MeasuredGraph:
    """A graph of the bench's own: started by gym_up.py with another Python, run folder and ports."""

    def __init__(self, settings: Settings, name: str, python: Path | str, nth: int, concurrency: int):
        base = settings.GYM_BASE_PORT + PORTS_APART * (1 + nth)
        self.name, self.python = name, str(python)
        self.overrides = {
            "RUN_DIR": str(settings.RUN_DIR / "bench" / name),
            "GYM_BASE_PORT": str(base),
            "GYM_RAY_PORT": str(settings.GYM_BASE_PORT + PORTS_APART * 3 + nth),
            "GYM_BIND_HOST": "127.0.0.1",
            "GYM_HOST": "127.0.0.1",
            "NEMO_GYM_URL": "",
            "GATEWAY_TOKEN": "",
            "GATEWAY_TOKEN_FILE": "",
            "GATEWAY_QUEUE_LIMIT": "100000",
            "GYM_REPLICAS": settings.texts["GYM_REPLICAS"] if name == "patched" else "1",
            "WORKPLACE_ASSISTANT_MAX_CONCURRENCY": str(concurrency),
        }
        self.settings = variables.load(self.overrides)
        self.pids: dict[str, list[int]] = {}

    def start(self) -> None:
        """Start it and wait until it is ready. Raises Failure."""
        command = program.stage("gym_up", python=self.python)
        environment = os.environ | self.overrides
        if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode:
            raise Failure(f"the {self.name} graph did not start; its error is above")
        servers = self.settings.servers()
        self.pids = {
            name: [rig.pid_of(self.settings, server) for server in servers if server.partition("_")[0] == name]
            for name in PROCESSES
        }

    def end(self) -> None:
        end_graph(self.settings)

    def usage(self) -> Usage:
        """What each process has used so far; this process is "load"."""
        used = {name: list(map(usage, pids)) for name, pids in (self.pids | {"load": [os.getpid()]}).items()}
        return {name: (sum(cpu for cpu, _ in pairs), sum(rss for _, rss in pairs)) for name, pairs in used.items()}

    async def sample(self, samples: list[tuple[int, int]]) -> None:
        """For ever: append (open sessions, resident bytes of the resource servers)."""
        while True:
            _, state = await asyncio.to_thread(readiness, self.settings)
            if state.get("open_sessions"):
                samples.append((state["open_sessions"], self.usage()["resource"][1]))
            await asyncio.sleep(SAMPLE_EVERY_S)


def usage(pid: int) -> tuple[float, int]:
    """(CPU seconds so far, resident bytes) of a process. Raises Failure if it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        raise Failure(f"server process {pid} ended during the bench; see logs/supervisor.log of its graph") from None
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / TICKS, pages * PAGE_BYTES


@contextmanager
def graphs_up(settings: Settings, concurrency: int, both: bool) -> Iterator[list[MeasuredGraph]]:
    """The graphs to compare, up and ready; ended whatever happens."""
    pythons: dict[str, Path | str] = {"patched": sys.executable}
    if both:
        pythons["unpatched"] = overlay(FAST, settings.RUN_DIR / "bench" / "unpatched-venv")
    graphs = [
        MeasuredGraph(settings, name, python, nth, concurrency) for nth, (name, python) in enumerate(pythons.items())
    ]
    try:
        with stage("graphs"):
            for graph in graphs:
                graph.start()
        yield graphs
    finally:
        for graph in graphs:
            graph.end()


class Measured:
    """What the rounds of one graph at one concurrency add up to."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.seconds, self.failed = 0.0, 0
        self.cpu: dict[str, float] = {}
        self.rss: list[dict[str, float]] = []
        self.live: list[tuple[int, int]] = []

    def add(
        self, result: bench_load.Round, before: Usage, after: Usage, live: list[tuple[int, int]] | None = None
    ) -> None:
        """Add a round; `live` are the samples of MeasuredGraph.sample during it."""
        self.latencies += result["latencies"]
        self.seconds += result["seconds"]
        self.failed += result["failed"]
        for name in before:
            self.cpu[name] = self.cpu.get(name, 0.0) + after[name][0] - before[name][0]
        for moment in (after,) if self.rss else (before, after):
            self.rss.append({name: round(rss / 2**20, 1) for name, (_, rss) in moment.items()})
        self.live += live or []

    def figures(self) -> dict[str, Any]:
        count, (most, rss) = len(self.latencies), max(self.live, default=(0, 0))
        return {
            "trials": count,
            "failed": self.failed,
            "trials_per_s": round(count / self.seconds, 2),
            "p50_ms": percentile(self.latencies, 50),
            "p95_ms": percentile(self.latencies, 95),
            "p99_ms": percentile(self.latencies, 99),
            "cpu_ms_per_trial": {name: round(1000 * spent / count, 2) for name, spent in self.cpu.items()},
            "rss_mb_before": self.rss[0],
            "rss_mb_after": self.rss[-1],
            "rss_mb_after_each_round": self.rss[1:],
            "most_sessions": most,
            # What the resource servers gained in memory for each session, when most sessions were open.
            "mb_per_session": round((rss / 2**20 - self.rss[0]["resource"]) / most, 3) if most else None,
        }


def percentile(values: list[float], percent: int) -> float:
    """A percentile in ms, by nearest rank."""
    ordered = sorted(values)
    return round(1000 * ordered[max(0, -(-len(ordered) * percent // 100) - 1)], 1)


def measure_graphs(
    settings: Settings, args: argparse.Namespace, levels: list[int], results: dict[int, dict[str, Any]]
) -> None:
    """Add {concurrency: {graph: figures}} to `results`; the graphs take turns."""
    with graphs_up(settings, max(levels), min(levels) <= args.unpatched_up_to) as graphs:
        for graph in graphs:
            asyncio.run(bench_load.load(graph.settings, graph.settings.local_url("gateway"), 20, 4))
        for level in levels:
            compared = [graph for graph in graphs if graph.name == "patched" or level <= args.unpatched_up_to]
            trials = enough(args.trials, level)
            measured = {graph.name: Measured() for graph in compared}
            bar = Bar(f"concurrency {level}", trials * args.rounds * len(compared))
            for _ in range(args.rounds):
                for graph in compared:
                    asyncio.run(one_round(graph, measured[graph.name], trials, level, bar.step))
            clear_line()
            results[level] = {name: sums.figures() for name, sums in measured.items()}
            show_graphs(level, results[level])


async def one_round(
    graph: MeasuredGraph, measured: Measured, trials: int, level: int, on_trial: Callable[[], None]
) -> None:
    live: list[tuple[int, int]] = []
    before, sampling = graph.usage(), asyncio.create_task(graph.sample(live))
    url = graph.settings.local_url("gateway")
    result = await bench_load.load(graph.settings, url, trials, level, on_trial=on_trial)
    sampling.cancel()
    measured.add(result, before, graph.usage(), live)


def show_graphs(level: int, graphs: dict[str, dict[str, Any]]) -> None:
    rows = []
    for name, figures in graphs.items():
        cpu, before, after = figures["cpu_ms_per_trial"], figures["rss_mb_before"], figures["rss_mb_after"]
        memory = " ".join(f"{before[process]:.0f}>{after[process]:.0f}" for process in PROCESSES)
        latencies = [figures[f"p{percent}_ms"] for percent in (50, 95, 99)]
        cpus = [cpu[process] for process in (*PROCESSES, "load")]
        sessions = f"{figures['most_sessions']} {figures['mb_per_session']}"
        rows.append([level, name, figures["trials_per_s"], *latencies, *cpus, memory, sessions, figures["failed"]])
    heads = ["at once", "environment", "trials/s", "p50 ms", "p95 ms", "p99 ms"]
    heads += [f"{process} CPU ms" for process in (*PROCESSES, "load")]
    say(table([*heads, "MB " + " ".join(PROCESSES), "sessions, MB each", "failed"], rows))
    if len(graphs) == 2:
        new, old = graphs["patched"], graphs["unpatched"]
        cpu = old["cpu_ms_per_trial"]["resource"] / max(new["cpu_ms_per_trial"]["resource"], 0.01)
        speed = new["trials_per_s"] / old["trials_per_s"]
        say(f"at {level}: {speed:.1f} times the trials/s; 1/{cpu:.1f} of the CPU in the resource server")
