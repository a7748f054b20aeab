"""The bench's parts that need no whole graph: the tools, the session client's start, and the Gateway alone."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import files, net, program
from common.failure import Failure
from common.settings import ROOT, Settings
from gateway import launch
from policy import model_api
from proofs import bench_load
from proofs.bench_graphs import FAST, Measured, MeasuredGraph, enough, percentile, usage
from proofs.unpatched import overlay
from servers import processes
from servers.graph import end_graph

CLIENT_STARTS = 15
FIGURES = ("trials", "trials_per_s", "p50_ms", "p99_ms", "failed")


def measure_tools(settings: Settings, rounds: int) -> dict[str, dict[str, float]]:
    """{part: {"patched": ms, "unpatched": ms}}: the median of the rounds, in which the two take turns."""
    unpatched = overlay(FAST, settings.RUN_DIR / "bench" / "unpatched-venv")
    pythons = {"patched": sys.executable, "unpatched": str(unpatched)}
    runs = {name: [] for name in pythons}
    for _ in range(max(rounds, 3)):
        for name, python in pythons.items():
            command = program.room("proofs.bench_parts", python=python)
            runs[name].append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return {
        part: {name: statistics.median(times[part] for times in answers) for name, answers in runs.items()}
        for part in runs["patched"][0]
    }


async def measure_client(folder: Path) -> dict[str, Any]:
    """Milliseconds from the session client's start to its request for a trial, for some starts."""
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
    return {"starts": len(taken), "p50_ms": percentile(taken, 50), "p95_ms": percentile(taken, 95)}


async def measure_gateway(settings: Settings, args: argparse.Namespace, level: int) -> dict[str, Any]:
    """Figures of a Gateway whose agent and resource server do nothing: what it costs itself."""
    graph = MeasuredGraph(settings, "gateway-alone", sys.executable, 0, level)
    callbacks, url = graph.settings.local_url("callbacks"), graph.settings.local_url("gateway")
    async with bench_load.serving(bench_load.Servers(callbacks)) as nothing:
        host, port = nothing.removeprefix("http://").split(":")
        server = {"host": host, "port": int(port)}
        agent = {"server": server | {"resources_server": {"name": "resource"}}}
        config = {
            "agent": {"responses_api_agents": agent},
            "resource": {"resources_servers": {"server": server}},
        }
        environment = processes.environment(graph.settings, "gym") | graph.settings.texts
        environment |= {"NEMO_GYM_CONFIG_DICT": json.dumps(config)}
        log = graph.settings.RUN_DIR / "logs" / "gateway.log"
        process = processes.spawn(program.room("gateway.app"), log, environment, ROOT)
        try:
            await _ready(graph.settings, process)
            await bench_load.load(graph.settings, url, 20, 4, callbacks)
            before = {"gateway": usage(process.pid)}
            result = await bench_load.load(graph.settings, url, enough(args.trials, level), level, callbacks)
            measured = Measured()
            measured.add(result, before, {"gateway": usage(process.pid)})
        finally:
            end_graph(graph.settings)
            process.wait()
    figures = measured.figures()
    return {name: figures[name] for name in FIGURES} | {"cpu_ms_per_trial": figures["cpu_ms_per_trial"]["gateway"]}


async def _ready(settings: Settings, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + settings.GYM_START_TIMEOUT_S
    while not (await asyncio.to_thread(net.readyz, settings.local_url("gateway")))[0]:
        if process.poll() is not None or time.monotonic() > deadline:
            raise Failure(f"the Gateway did not get ready:\n{files.tail(settings.RUN_DIR / 'logs' / 'gateway.log')}")
        await asyncio.sleep(0.2)
