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

import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path

from common import files, git, net, program
from common.failure import Failure
from common.settings import ROOT, cores_at_hand, from_command_line
from common.terminal import run, say, table
from gateway import launch
from policy import model_api
from proofs import bench_load, bench_plot, bench_table, published
from proofs.bench_graphs import FAST, LEVEL_TIMES, Measured, MeasuredGraph, enough, measure_graphs, percentile, usage
from proofs.unpatched import overlay
from servers import processes
from servers.graph import end_graph
from servers.tree import fingerprint, installed_tree

PARTS = ("graph", "tools", "client", "gateway")
CLIENT_STARTS = 15


def options(parser):
    add = parser.add_argument
    add("--parts", default=",".join(PARTS), metavar="LIST", help=f"which of {','.join(PARTS)} [all]")
    add(
        "--trials", type=int, default=150, metavar="N",
        help=f"trials of each graph in each round, at least; {LEVEL_TIMES} times as many as at once, if more [150]",
    )  # fmt: skip
    add("--concurrency", default="8,64,256,1024", metavar="LIST", help="trials at once [8,64,256,1024]")
    add("--rounds", type=int, default=2, metavar="N", help="turns that the graphs take at each concurrency [2]")
    add(
        "--unpatched-up-to", type=int, default=64, metavar="N",
        help="most trials at once for which the unpatched graph takes turns; it is slow (0: do not start it) [64]",
    )  # fmt: skip
    add("--publish", action="store_true", help="only write the results in --out into tests/MEASURED.md")
    add("--out", type=Path, metavar="DIR", help="folder for bench.json and bench.svg [RUN_DIR/bench]")


def checked(args):
    """The command line's lists, or a Failure that names the option."""
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise Failure(f"--parts: {sorted(unknown)[0]!r} is none of {','.join(PARTS)}")
    levels = args.concurrency.split(",")
    if not all(level.isdecimal() and 1 <= int(level) <= 4096 for level in levels):
        raise Failure(f"--concurrency: {args.concurrency!r} is no list of numbers from 1 to 4096")
    if args.trials < 1 or args.rounds < 1:
        raise Failure("--trials and --rounds are at least 1")
    return parts, [int(level) for level in levels]


# --- parts ---------------------------------------------------------------------------------


def measure_tools(settings, rounds):
    """{part: {"patched": ms, "unpatched": ms}}: the median of the rounds, in which the two take turns."""
    pythons = {
        "patched": sys.executable,
        "unpatched": overlay(FAST, settings.RUN_DIR / "bench" / "unpatched-venv"),
    }
    runs = {name: [] for name in pythons}
    for _ in range(max(rounds, 3)):
        for name, python in pythons.items():
            command = program.room("proofs.bench_parts", python=str(python))
            runs[name].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return {
        part: {name: statistics.median(one[part] for one in found) for name, found in runs.items()}
        for part in runs["patched"][0]
    }


def show_tools(found):
    rows = [
        [part, one["patched"], one["unpatched"], round(one["unpatched"] / one["patched"], 1)]
        for part, one in found.items()
    ]
    say(table(["part", "patched ms", "unpatched ms", "ratio"], rows))


async def client_starts(settings, folder):
    """Seconds from the session client's start to its request for a trial, for some starts."""
    servers, taken = bench_load.Servers(), []
    async with bench_load.serving(servers) as url:
        session = launch.session(folder, f"{url}{model_api.BASE_PATH}", secrets.token_hex(16), "0")
        environment = os.environ | {"NEMO_GYM_URL": url} | launch.prepare(session, bench_load.example_task())
        for _ in range(CLIENT_STARTS):
            servers.created.clear()
            started = time.monotonic()
            process = await asyncio.create_subprocess_exec(*program.stage("session_client"), env=environment)
            created = asyncio.ensure_future(servers.created.wait())
            await asyncio.wait({created, asyncio.ensure_future(process.wait())}, return_when=asyncio.FIRST_COMPLETED)
            taken.append(time.monotonic() - started)
            if await process.wait():
                raise Failure("the session client failed; its error is above")
    return taken


def measure_client(settings, folder):
    taken = asyncio.run(client_starts(settings, folder))
    return {"starts": len(taken), "p50_ms": percentile(taken, 50), "p95_ms": percentile(taken, 95)}


async def gateway_alone(settings, args, level):
    """Figures of a Gateway whose agent and resource server do nothing: what it costs itself."""
    graph = MeasuredGraph(settings, "gateway-alone", sys.executable, 0, level)
    callbacks, url = graph.settings.local_url("callbacks"), graph.settings.local_url("gateway")
    async with bench_load.serving(bench_load.Servers(callbacks)) as nothing:
        host, port = nothing.removeprefix("http://").split(":")
        place = {"server": {"host": host, "port": int(port)}}
        agent = {"server": place["server"] | {"resources_server": {"name": "resource"}}}
        config = {"agent": {"responses_api_agents": agent}, "resource": {"resources_servers": place}}
        environment = processes.environment(graph.settings, "gym") | graph.settings.texts
        environment |= {"NEMO_GYM_CONFIG_DICT": json.dumps(config)}
        command = program.room("gateway.app")
        process = processes.spawn(command, graph.settings.RUN_DIR / "logs" / "gateway.log", environment, ROOT)
        try:
            await ready(graph.settings, process)
            await bench_load.load(graph.settings, url, 20, 4, callbacks)
            before = {"gateway": usage(process.pid)}
            result = await bench_load.load(graph.settings, url, enough(args.trials, level), level, callbacks)
            measured = Measured()
            measured.add(result, before, {"gateway": usage(process.pid)})
        finally:
            end_graph(graph.settings)
            process.wait()
    figures = measured.figures()
    return {name: figures[name] for name in ("trials", "trials_per_s", "p50_ms", "p99_ms", "failed")} | {
        "cpu_ms_per_trial": figures["cpu_ms_per_trial"]["gateway"]
    }


async def ready(settings, process):
    deadline = time.monotonic() + settings.GYM_START_TIMEOUT_S
    while not (await asyncio.to_thread(net.readyz, settings.local_url("gateway")))[0]:
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failure(f"the Gateway did not get ready:\n{files.tail(settings.RUN_DIR / 'logs' / 'gateway.log')}")
        await asyncio.sleep(0.2)


# --- all together --------------------------------------------------------------------------


def measure(settings, args, parts, levels, out, found):
    """Run the parts, say what each gave, and add it to `found`, which keeps what an interrupted run had."""
    found |= {
        "date": time.strftime("%Y-%m-%d"),
        "commit": git.commit(),
        "environment": fingerprint(installed_tree()),
    }
    found |= {"cores": cores_at_hand(), "load_before": os.getloadavg()[0]}
    if "graph" in parts:
        measure_graphs(settings, args, levels, found.setdefault("graph", {}))
    if "gateway" in parts:
        for level in levels:
            one = found.setdefault("gateway", {})[level] = asyncio.run(gateway_alone(settings, args, level))
            say(f"Gateway alone at {level}: {json.dumps(one)}")
    if "client" in parts:
        one = found["client"] = measure_client(settings, out)
        say(f"session client, start to request: p50 {one['p50_ms']} ms, p95 {one['p95_ms']} ms")
    if "tools" in parts:
        found["tools"] = measure_tools(settings, args.rounds)
        show_tools(found["tools"])


def write_readme(path):
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {error}; make bench writes it") from None
    published.write("bench", bench_table.markdown(found))
    say(f"tests/MEASURED.md shows {path}")


def main():
    settings, args = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT", configure=options)
    parts, levels = checked(args)
    out, found = args.out or settings.RUN_DIR / "bench", {}
    if args.publish:
        return write_readme(out / "bench.json")
    processes.allow_many_files()
    out.mkdir(parents=True, exist_ok=True)
    try:
        measure(settings, args, parts, levels, out, found)
    finally:
        (out / "bench.json").write_text(json.dumps(found, indent=1) + "\n")
        (out / "bench.svg").write_text(bench_plot.svg(found))
    say(f"Bench done: {out / 'bench.json'} {out / 'bench.svg'}")


if __name__ == "__main__":
    run(main)
