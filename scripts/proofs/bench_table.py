"""The figures of bench.py as tables for people: what tests/MEASURED.md shows of them. Runs nothing."""

from common.failure import Failure

PARTS = ("seed", "verify search+reply", "verify all 27 tools")
GRAPH_HEADS = [
    "at once", "environment", "trials/s", "p50", "p99", "CPU a trial: Gateway", "agent", "resource server",
    "load generator", "a live session", "failed",
]  # fmt: skip


def _table(heads, rows):
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines) + "\n"


def _cpu(one, process):
    return f"{one['cpu_ms_per_trial'][process]:.1f} ms"


def _seconds(one, name):
    return f"{one[name] / 1000:.1f} s"


def _graph_row(level, kind, one):
    cpus = [_cpu(one, process) for process in ("gateway", "agent", "resource", "load")]
    session = "" if one["mb_per_session"] is None else f"{one['mb_per_session']:.3f} MB"
    latencies = [_seconds(one, "p50_ms"), _seconds(one, "p99_ms")]
    return [
        level,
        kind,
        f"{one['trials_per_s']:.1f}",
        *latencies,
        *cpus,
        session,
        f"{one['failed']} of {one['trials']}",
    ]


def _ratio_row(level, new, old):
    cpu = old["cpu_ms_per_trial"]["resource"] / new["cpu_ms_per_trial"]["resource"]
    speed = new["trials_per_s"] / old["trials_per_s"]
    return [
        level,
        "ratio",
        f"{speed:.1f}",
        "",
        f"1/{old['p99_ms'] / new['p99_ms']:.1f}",
        "",
        "",
        f"1/{cpu:.1f}",
        *[""] * 3,
    ]


def _graphs(graph):
    rows = []
    for level, kinds in graph.items():
        rows += [_graph_row(level, kind, one) for kind, one in kinds.items()]
        if len(kinds) == 2:
            rows.append(_ratio_row(level, kinds["patched"], kinds["unpatched"]))
    return _table(GRAPH_HEADS, rows)


def _tools(tools):
    """Seed and verification, the slowest search and the slowest other tool."""
    searches = [name for name in tools if "_search_" in name]
    others = [name for name in tools if name not in (*PARTS, *searches)]
    shown = [*PARTS, *(max(names, key=lambda name: tools[name]["patched"]) for names in (searches, others))]
    rows = [
        [name, f"{one['patched']:.3g} ms", f"{one['unpatched']:.3g} ms", f"1/{one['unpatched'] / one['patched']:.0f}"]
        for name, one in ((name, tools[name]) for name in shown)
    ]
    return _table(["part (of searches and of other tools the slowest)", "patched", "unpatched", "ratio"], rows)


def markdown(found):
    """What tests/MEASURED.md shows of a bench with all parts. Raises Failure where one is missing."""
    if missing := [name for name in ("date", "graph", "gateway", "client", "tools") if name not in found]:
        raise Failure(f"the bench holds no {missing[0]}; run all parts: make bench")
    alone = [
        [
            level,
            f"{one['cpu_ms_per_trial']:.1f} ms",
            f"{one['trials_per_s']:.0f}",
            f"{one['failed']} of {one['trials']}",
        ]
        for level, one in found["gateway"].items()
    ]
    client = found["client"]
    where = f"{found['date']}, commit {found['commit']}, {found['cores']} cores"
    return (
        f"{where}, load average {found['load_before']:.1f} before:\n\n"
        + _graphs(found["graph"])
        + _table(["at once", "Gateway alone: CPU a trial", "trials/s", "failed"], alone)
        + _tools(found["tools"])
        + f"Session client, from its start to its request: median {client['p50_ms']:.0f} ms of {client['starts']}.\n"
    )
