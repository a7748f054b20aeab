#!/usr/bin/env python3
"""Measure how fast the environment is, and how much our patch of it makes of that. Not a test.

On this machine, in graphs of its own (their ports and run folders beside the configured ones; they
are ended afterwards): trials with a scripted policy (search, reply, closing message) through the
real graph, patched and unpatched in turns, so that what else the machine does falls on both.
Prints trials/s, latencies, CPU a trial of each process (of the load generator too, which shares the
cores with what it measures), resident memory, and memory for each live session, and writes them
with a plot to --out. Takes about ten minutes on two cores with the defaults; parts on their own:

    graph     the whole graph, at each concurrency, patched and unpatched (--unpatched-up-to 0: patched alone)
    tools     seed, verification and each tool, called in a process of their own
    client    the session client, from its start to its request for a trial
    gateway   the Gateway alone, with an agent and a resource server that do nothing

    make bench
    scripts/run.sh bench --publish       writes the results that are in --out into tests/MEASURED.md, runs nothing
    scripts/run.sh bench --parts graph --concurrency 64 --trials 1000 --rounds 10 --unpatched-up-to 0
"""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from common import git
from common.failure import Failure
from common.settings import Settings, cores_at_hand, from_command_line
from common.terminal import run, say, table
from proofs import bench_plot, bench_table, published
from proofs.bench_graphs import LEVEL_TIMES, measure_graphs
from proofs.bench_single import measure_client, measure_gateway, measure_tools
from servers import processes
from servers.tree import fingerprint, installed_tree

PARTS = ("graph", "tools", "client", "gateway")


OPTIONS = {
    "--parts": {"default": ",".join(PARTS), "metavar": "LIST", "help": f"which of {','.join(PARTS)} [all]"},
    "--trials": {
        "type": int, "default": 150, "metavar": "N",
        "help": f"trials of each graph in each round, at least; {LEVEL_TIMES} times as many as at once, if more [150]",
    },
    "--concurrency": {"default": "8,64,256,1024", "metavar": "LIST", "help": "trials at once [8,64,256,1024]"},
    "--rounds": {
        "type": int, "default": 2, "metavar": "N", "help": "turns that the graphs take at each concurrency [2]",
    },
    "--unpatched-up-to": {
        "type": int, "default": 64, "metavar": "N",
        "help": "most trials at once for which the unpatched graph takes turns; it is slow (0: do not start it) [64]",
    },
    "--publish": {"action": "store_true", "help": "only write the results in --out into tests/MEASURED.md"},
    "--out": {"type": Path, "metavar": "DIR", "help": "folder for bench.json and bench.svg [RUN_DIR/bench]"},
}  # fmt: skip


def checked(args: argparse.Namespace) -> tuple[list[str], list[int]]:
    """The command line's parts and concurrencies, or a Failure that names the option."""
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise Failure(f"--parts: {sorted(unknown)[0]!r} is none of {','.join(PARTS)}")
    levels = args.concurrency.split(",")
    if not all(level.isdecimal() and 1 <= int(level) <= 4096 for level in levels):
        raise Failure(f"--concurrency: {args.concurrency!r} is no list of numbers from 1 to 4096")
    if args.trials < 1 or args.rounds < 1:
        raise Failure("--trials and --rounds are at least 1")
    return parts, [int(level) for level in levels]


def measure(
    settings: Settings, args: argparse.Namespace, parts: list[str], levels: list[int], out: Path, results: dict
) -> None:
    """Run the parts, say the figures of each, and add them to `results`, which an interrupted run keeps."""
    results |= {
        "date": time.strftime("%Y-%m-%d"),
        "commit": git.commit(),
        "environment": fingerprint(installed_tree()),
        "cores": cores_at_hand(),
        "load_before": os.getloadavg()[0],
    }
    if "graph" in parts:
        measure_graphs(settings, args, levels, results.setdefault("graph", {}))
    if "gateway" in parts:
        for level in levels:
            figures = asyncio.run(measure_gateway(settings, args, level))
            results.setdefault("gateway", {})[level] = figures
            say(f"Gateway alone at {level}: {json.dumps(figures)}")
    if "client" in parts:
        figures = results["client"] = asyncio.run(measure_client(out))
        say(f"session client, start to request: p50 {figures['p50_ms']} ms, p95 {figures['p95_ms']} ms")
    if "tools" in parts:
        results["tools"] = measure_tools(settings, args.rounds)
        show_tools(results["tools"])


def show_tools(tools: dict[str, dict[str, float]]) -> None:
    rows = [
        [part, times["patched"], times["unpatched"], round(times["unpatched"] / times["patched"], 1)]
        for part, times in tools.items()
    ]
    say(table(["part", "patched ms", "unpatched ms", "ratio"], rows))


def publish(path: Path) -> None:
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {error}; make bench writes it") from None
    published.write("bench", bench_table.markdown(results))
    say(f"tests/MEASURED.md shows {path}")


def main() -> None:
    settings, args = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT", options=OPTIONS)
    parts, levels = checked(args)
    out = args.out or settings.RUN_DIR / "bench"
    if args.publish:
        return publish(out / "bench.json")
    processes.allow_many_files()
    out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    try:
        measure(settings, args, parts, levels, out, results)
    finally:
        (out / "bench.json").write_text(json.dumps(results, indent=1) + "\n")
        (out / "bench.svg").write_text(bench_plot.svg(results))
    return say(f"Bench done: {out / 'bench.json'} {out / 'bench.svg'}")


if __name__ == "__main__":
    run(main)
