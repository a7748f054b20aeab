"""The figures of bench.py as the Markdown tables of tests/MEASURED.md. Runs nothing."""

from __future__ import annotations

from typing import Any

from common.failure import Failure

PARTS = ("seed", "verify search+reply", "verify all 27 tools")
GRAPH_HEADS = [
    "at once", "environment", "trials/s", "p50", "p99", "CPU a trial: Gateway", "agent", "resource server",
    "load generator", "a live session", "failed",
]  # fmt: skip


def _table(heads: list[str], rows: list[list[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines) + "\n"


def _failed(figures: dict[str, Any]) -> str:
    return f"{figures['failed']} of {figures['trials']}"


def _graph_row(level: str, kind: str, figures: dict[str, Any]) -> list[str]:
    latencies = [f"{figures[name] / 1000:.1f} s" for name in ("p50_ms", "p99_ms")]
    cpus = [f"{figures['cpu_ms_per_trial'][process]:.1f} ms" for process in ("gateway", "agent", "resource", "load")]
    session = "" if figures["mb_per_session"] is None else f"{figures['mb_per_session']:.3f} MB"
    return [level, kind, f"{figures['trials_per_s']:.1f}", *latencies, *cpus, session, _failed(figures)]


def _graphs(levels: dict[str, dict[str, Any]]) -> str:
    rows = []
    for level, kinds in levels.items():
        rows += [_graph_row(level, kind, figures) for kind, figures in kinds.items()]
        if len(kinds) == 2:
            new, old = kinds["patched"], kinds["unpatched"]
            cpu = old["cpu_ms_per_trial"]["resource"] / new["cpu_ms_per_trial"]["resource"]
            speed, latency = new["trials_per_s"] / old["trials_per_s"], old["p99_ms"] / new["p99_ms"]
            rows.append([level, "ratio", f"{speed:.1f}", "", f"1/{latency:.1f}", "", "", f"1/{cpu:.1f}", *[""] * 3])
    return _table(GRAPH_HEADS, rows)


def _tools(tools: dict[str, dict[str, float]]) -> str:
    """Seed and verification, the slowest search and the slowest other tool."""
    searches = [name for name in tools if "_search_" in name]
    others = [name for name in tools if name not in (*PARTS, *searches)]
    shown = [*PARTS, *(max(names, key=lambda name: tools[name]["patched"]) for names in (searches, others))]
    rows = [
        [name, f"{new:.3g} ms", f"{old:.3g} ms", f"1/{old / new:.0f}"]
        for name, new, old in ((name, tools[name]["patched"], tools[name]["unpatched"]) for name in shown)
    ]
    return _table(["part (of searches and of other tools the slowest)", "patched", "unpatched", "ratio"], rows)


def markdown(measured: dict[str, Any]) -> str:
    """The part of tests/MEASURED.md for a bench with all parts. Raises Failure if a part is missing."""
    if missing := [name for name in ("date", "graph", "gateway", "client", "tools") if name not in measured]:
        raise Failure(f"the bench holds no {missing[0]}; run all parts: make bench")
    alone = [
        [level, f"{figures['cpu_ms_per_trial']:.1f} ms", f"{figures['trials_per_s']:.0f}", _failed(figures)]
        for level, figures in measured["gateway"].items()
    ]
    client = measured["client"]
    where = f"{measured['date']}, commit {measured['commit']}, {measured['cores']} cores"
    return (
        f"{where}, load average {measured['load_before']:.1f} before:\n\n"
        + _graphs(measured["graph"])
        + _table(["at once", "Gateway alone: CPU a trial", "trials/s", "failed"], alone)
        + _tools(measured["tools"])
        + f"Session client, from its start to its request: median {client['p50_ms']:.0f} ms of {client['starts']}.\n"
    )
