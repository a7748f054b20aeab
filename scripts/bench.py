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
  scripts/run.sh bench --readme       writes the results that are in --out into README.md, runs nothing
  scripts/run.sh bench --parts graph --concurrency 64 --trials 1000 --rounds 10 --unpatched-up-to 0
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from apply_patches import PATCHES, fingerprint, installed_tree
from common import git
from common import settings as variables
from common.settings import ROOT, cores_at_hand, from_command_line
from common.terminal import Bar, Failure, clear_line, run, say, stage, table
from gym_down import end_graph
from gym_up import readiness
from proofs import bench_load, bench_plot, bench_table
from proofs.unpatched import overlay
from servers import processes

# What the unpatched environment goes without; the others are needed to run trials at all.
FAST = [PATCHES / "0003-fast-environment.patch", PATCHES / "0005-plain-middleware.patch"]
# "agent" and "resource" are the sums over all pairs.
PROCESSES = ("gateway", "agent", "resource")
LOOK_EVERY_S = 0.25
PARTS = ("graph", "tools", "client", "gateway")
PORTS_APART = 200
CLIENT_STARTS = 15
LEVEL_TIMES = 3
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


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
    add("--readme", action="store_true", help="only write the results in --out into README.md")
    add("--out", type=Path, metavar="DIR", help="folder for bench.json and bench.svg [RUN_DIR/bench]")


def enough(trials, level):
    """How many trials to run where so many run at once: with fewer, most would see fewer beside them."""
    return max(trials, LEVEL_TIMES * level)


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


# --- graphs --------------------------------------------------------------------------------


class Graph:
    """A graph of the bench's own: started by gym_up.py with another Python, run folder and ports."""

    def __init__(self, settings, name, python, nth, concurrency):
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
        self.pids = {}

    def start(self):
        """Start it and wait until it is ready. Raises Failure."""
        command = [self.python, str(ROOT / "scripts" / "gym_up.py")]
        environment = os.environ | self.overrides
        if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL).returncode:
            raise Failure(f"the {self.name} graph did not start; its error is above")
        servers = self.settings.servers()
        self.pids = {
            name: [listener(self.settings, server) for server in servers if server.partition("_")[0] == name]
            for name in PROCESSES
        }

    def end(self):
        end_graph(self.settings)

    def usage(self):
        """{process: (CPU seconds so far, resident bytes)}; this one is "load"."""
        found = {}
        for name, pids in (self.pids | {"load": [os.getpid()]}).items():
            found[name] = tuple(map(sum, zip(*map(usage, pids), strict=True)))
        return found

    async def look(self, found):
        """For ever: add (open sessions, resident bytes of the resource servers) to `found`."""
        while True:
            _, state = await asyncio.to_thread(readiness, self.settings)
            if state.get("open_sessions"):
                found.append((state["open_sessions"], self.usage()["resource"][1]))
            await asyncio.sleep(LOOK_EVERY_S)


def listener(settings, name):
    """The pid that listens on one of the graph's ports."""
    inodes = {inode for _, port, inode in processes.listening() if port == settings.port(name)}
    found = [process.pid for process in processes.ours(settings, "gym") if inodes & processes.sockets_of(process)]
    if not found:
        raise Failure(f"nobody of the graph listens on port {settings.port(name)}")
    return min(found)


def usage(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        raise Failure(f"server process {pid} ended during the bench; see logs/supervisor.log of its graph") from None
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / TICKS, pages * PAGE_BYTES


@contextmanager
def graphs(settings, concurrency, both):
    """The graphs to compare, up and ready; ended whatever happens."""
    kinds = [("patched", sys.executable)]
    if both:
        kinds.append(("unpatched", overlay(FAST, settings.RUN_DIR / "bench" / "unpatched-venv")))
    made = [Graph(settings, name, python, nth, concurrency) for nth, (name, python) in enumerate(kinds)]
    try:
        with stage("graphs"):
            for graph in made:
                graph.start()
        yield made
    finally:
        for graph in made:
            graph.end()


# --- the whole graph -----------------------------------------------------------------------


class Measured:
    """What the rounds of one graph at one concurrency add up to."""

    def __init__(self):
        self.latencies, self.seconds, self.failed = [], 0.0, 0
        self.cpu, self.rss, self.live = {}, [], []

    def add(self, result, before, after, live=()):
        """One round; `live`: what Graph.look found during it."""
        self.latencies += result["latencies"]
        self.seconds += result["seconds"]
        self.failed += result["failed"]
        for name in before:
            self.cpu[name] = self.cpu.get(name, 0.0) + after[name][0] - before[name][0]
        for moment in (after,) if self.rss else (before, after):
            self.rss.append({name: round(rss / 2**20, 1) for name, (_, rss) in moment.items()})
        self.live += live

    def figures(self):
        count = len(self.latencies)
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
            **self.of_sessions(),
        }

    def of_sessions(self):
        """Memory of the resource servers where most sessions were open, over that before, for each session."""
        if not self.live:
            return {"most_sessions": 0, "mb_per_session": None}
        most, rss = max(self.live)
        return {"most_sessions": most, "mb_per_session": round((rss / 2**20 - self.rss[0]["resource"]) / most, 3)}


def percentile(values, percent):
    """A percentile in ms, by nearest rank."""
    ordered = sorted(values)
    return round(1000 * ordered[max(0, -(-len(ordered) * percent // 100) - 1)], 1)


def measure_graphs(settings, args, levels, found):
    """Add {concurrency: {graph: figures}} to `found`; the graphs take turns."""
    with graphs(settings, max(levels), min(levels) <= args.unpatched_up_to) as made:
        for graph in made:
            asyncio.run(bench_load.load(graph.settings, graph.settings.local_url("gateway"), 20, 4))
        for level in levels:
            compared = [graph for graph in made if graph.name == "patched" or level <= args.unpatched_up_to]
            trials = enough(args.trials, level)
            measured = {graph.name: Measured() for graph in compared}
            bar = Bar(f"concurrency {level}", trials * args.rounds * len(compared))
            for _ in range(args.rounds):
                for graph in compared:
                    asyncio.run(one_round(graph, measured[graph.name], trials, level, bar.step))
            clear_line()
            found[level] = {name: one.figures() for name, one in measured.items()}
            show_graphs({level: found[level]})


async def one_round(graph, measured, trials, level, on_trial):
    before, live = graph.usage(), []
    looks = asyncio.create_task(graph.look(live))
    url = graph.settings.local_url("gateway")
    result = await bench_load.load(graph.settings, url, trials, level, on_trial=on_trial)
    looks.cancel()
    measured.add(result, before, graph.usage(), live)


def show_graphs(found):
    rows = []
    for level, graphs_ in found.items():
        for name, one in graphs_.items():
            cpu, before, after = one["cpu_ms_per_trial"], one["rss_mb_before"], one["rss_mb_after"]
            memory = " ".join(f"{before[process]:.0f}>{after[process]:.0f}" for process in PROCESSES)
            latencies = [one[f"p{percent}_ms"] for percent in (50, 95, 99)]
            cpus = [cpu[process] for process in (*PROCESSES, "load")]
            sessions = f"{one['most_sessions']} {one['mb_per_session']}"
            rows.append([level, name, one["trials_per_s"], *latencies, *cpus, memory, sessions, one["failed"]])
    heads = ["at once", "environment", "trials/s", "p50 ms", "p95 ms", "p99 ms"]
    heads += [f"{process} CPU ms" for process in (*PROCESSES, "load")]
    say(table([*heads, "MB " + " ".join(PROCESSES), "sessions, MB each", "failed"], rows))
    for level, graphs_ in found.items():
        if len(graphs_) == 2:
            new, old = graphs_["patched"], graphs_["unpatched"]
            cpu = old["cpu_ms_per_trial"]["resource"] / max(new["cpu_ms_per_trial"]["resource"], 0.01)
            speed = new["trials_per_s"] / old["trials_per_s"]
            say(f"at {level}: {speed:.1f} times the trials/s; 1/{cpu:.1f} of the CPU in the resource server")


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
            command = [str(python), str(ROOT / "scripts" / "bench_parts.py")]
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
        body = bench_load.payload(settings, url)
        task = folder / "input.json"
        task.write_text(json.dumps(body["environment"]["task"]))
        environment = os.environ | {
            "NEMO_GYM_URL": url,
            "RELAX_INPUT_JSON": str(task),
            "RELAX_OUTPUT_JSON": str(folder / "output.json"),
            "RELAX_SESSION_IO_DIR": str(folder),
            "RELAX_BASE_URL": body["model_endpoint"]["base_url"],
            "RELAX_SESSION_ID": body["session"]["session_id"],
            "RELAX_ROLLOUT_MODE": "train",
            "RELAX_GROUP_ID": "0",
        }
        for _ in range(CLIENT_STARTS):
            servers.created.clear()
            started = time.monotonic()
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(ROOT / "scripts" / "session_client.py"), env=environment
            )
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
    graph = Graph(settings, "gateway-alone", sys.executable, 0, level)
    callbacks, url = graph.settings.local_url("callbacks"), graph.settings.local_url("gateway")
    async with bench_load.serving(bench_load.Servers(callbacks)) as nothing:
        host, port = nothing.removeprefix("http://").split(":")
        place = {"server": {"host": host, "port": int(port)}}
        agent = {"server": place["server"] | {"resources_server": {"name": "resource"}}}
        config = {"agent": {"responses_api_agents": agent}, "resource": {"resources_servers": place}}
        environment = processes.environment(graph.settings, "gym") | graph.settings.texts
        environment |= {"NEMO_GYM_CONFIG_DICT": json.dumps(config)}
        command = [sys.executable, str(ROOT / "scripts" / "gateway" / "app.py")]
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
    url = f"{settings.local_url('gateway')}/readyz"
    while (await asyncio.to_thread(processes.get, url, 2))[0] != 200:
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failure(
                f"the Gateway did not get ready:\n{processes.tail(settings.RUN_DIR / 'logs' / 'gateway.log')}"
            )
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
    git.write("bench", bench_table.markdown(found))
    say(f"README.md shows {path}")


def main():
    settings, args = from_command_line(__doc__, "RUN_DIR", "GYM_BASE_PORT", configure=options)
    parts, levels = checked(args)
    out, found = args.out or settings.RUN_DIR / "bench", {}
    if args.readme:
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
