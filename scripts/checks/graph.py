"""The environment's servers: what would run them, what runs, and whether it is what this clone would start.

Guarantees: only the graph's own pages on loopback are asked; a Gateway elsewhere is asked for its /readyz alone.
"""

from __future__ import annotations

from typing import Any

from checks.probe import Case, Finding, fail, failed, ok, warn
from common.failure import Failure
from common.net import ask
from common.settings import Settings
from servers import container, graph, ports, processes, tree

COMMIT_VARIABLE = "NEMO_GYM_COMMIT="
# Stages that start no graph themselves.
NEED_A_GRAPH = ("verify", "train", "accept", "audit", "eval")


def engine(case: Case) -> Finding:
    """The Docker engine and the image, as GYM_BACKEND wants them."""
    s = case.settings
    needed = s.GYM_BACKEND == "docker" or case.stage == "image"
    if s.GYM_BACKEND == "local" and not needed:
        return ok("GYM_BACKEND=local: no engine is asked")
    try:
        client = container.connect()
    except Failure as fault:
        if needed:
            return failed(fault)
        denied = "permission" in str(fault)
        return failed(fault, "warn") if denied else ok(f"{str(fault).partition(';')[0]}: local processes are used")
    if case.stage == "image":
        there = any(s.RELAX_IMAGE in image.tags for image in client.images.list())
        base = f"base image {s.RELAX_IMAGE} is there" if there else f"make image pulls {s.RELAX_IMAGE}"
        return ok(f"engine {container.engine_address()}, {base}")
    finding = _image(client, s, "fail" if needed else "warn")
    return finding if needed or "is not there" not in finding.what else ok(f"{finding.what}: local processes are used")


def _image(client: Any, settings: Settings, verdict: str) -> Finding:
    """The image holds this clone's code and patches and the pinned commit; the container's name is free or ours."""
    try:
        container.refuse_foreign(client, settings)
        image = container.find_image(client, settings, graph.graph_code())
    except Failure as fault:
        return failed(fault, verdict)
    variables = image.attrs.get("Config", {}).get("Env") or []
    commit = next((text[len(COMMIT_VARIABLE) :] for text in variables if text.startswith(COMMIT_VARIABLE)), None)
    if commit != tree.GYM_COMMIT:
        return Finding(verdict, f"the image {settings.NEMO_GYM_IMAGE} holds NeMo Gym {commit}", "make image")
    return ok(f"image {settings.NEMO_GYM_IMAGE}: commit {commit[:12]}, code and patches of this clone")


def running(case: Case) -> Finding:
    """The Gateway that answers is this clone's, of these variables and this code, ready, and holds no state."""
    if not case.gateway.status:
        return _silent(case)
    state = _state(case)
    if state is None:
        return fail(
            f"{case.gateway.url} {case.gateway.told()}, which is no Gateway's answer",
            "end what listens there, or set GYM_BASE_PORT (GYM_HOST, where that is another machine)",
        )
    return (
        _stale(case, state)
        or _unready(state, case.gateway.url)
        or ok(
            f"{case.gateway.url}: ready, commit {state['gym_commit'][:12]}, "
            f"fingerprint {state.get('config_fingerprint') or 'unknown'}, "
            f"{state.get('active_trials')} trials, {state.get('open_sessions')} sessions"
        )
    )


def _state(case: Case) -> dict[str, Any] | None:
    """The Gateway's own state; None where no Gateway answers."""
    state = case.gateway.json()
    return state if isinstance(state, dict) and "service_epoch" in state else None


def _silent(case: Case) -> Finding:
    what = f"the Gateway at {case.gateway.url.rpartition('/')[0]} {case.gateway.told()}"
    if any(map(processes.is_supervisor, case.ours)):
        return warn(f"servers run and {what}", "wait, if they start; else make gym-up")
    if case.stage in NEED_A_GRAPH or not case.gym_is_here:
        return fail(what, "make gym-up on the Gym's machine, or set GYM_HOST")
    return ok("not running; make gym-up starts it")


def _stale(case: Case, state: dict[str, Any]) -> Finding | None:
    """A Finding for a graph that differs from what this clone would start."""
    s, commit = case.settings, str(state.get("gym_commit"))
    if commit != tree.GYM_COMMIT:
        return fail(f"{case.gateway.url}: NeMo Gym {commit[:12]}, not {tree.GYM_COMMIT[:12]}", "make gym-up there")
    if not case.gym_is_here or state.get("config_fingerprint") == graph.graph_fingerprint(s):
        return None
    port = s.port("gateway")
    process = ports.listener({inode for _, number, inode in ports.listening() if number == port})
    folder = processes.run_folder(process) if process else None
    if process and folder and folder != processes.mark(s):
        what = f"the graph on port {port} is that of {folder} (process {process.pid})"
        return fail(what, "make stop in that clone, or set GYM_BASE_PORT and GYM_RAY_PORT")
    return warn(f"the graph at {case.gateway.url} was started with other variables or code", "make gym-up replaces it")


def _unready(state: dict[str, Any], url: str) -> Finding | None:
    down = [name for name, server in (state.get("servers") or {}).items() if not server.get("up")]
    if down or state.get("ready") is not True:
        what = f"{url}: not ready, {', '.join(down) or 'the Gateway itself'} down"
        return fail(what, "see its log in RUN_DIR/logs; make gym-up")
    if state.get("open_sessions") and not state.get("active_trials"):
        what = f"{url}: {state['open_sessions']} sessions are open and no trial is"
        return warn(what, "make gym-down, then make gym-up")
    return None


def head_server(case: Case) -> Finding:
    """The head server answers JSON: another program on its port, or a proxy's page, would end the graph later."""
    if not case.gym_is_here or _state(case) is None:
        return ok("not asked: no graph runs on this machine")
    url = case.settings.local_url("head")
    answer = ask(f"{url}/server_instances")
    if answer.status == 200 and isinstance(answer.json(), (list, dict)):
        return ok(f"{url} answers")
    what = f"{answer.url} {answer.told()}"
    if not answer.status:
        return fail(what, "make gym-up")
    return fail(f"{what}, not the list of servers", "end what answers there (a proxy?), then make gym-up")


def exposed(case: Case) -> Finding:
    """Only the Gateway listens beyond loopback."""
    try:
        graph.check_loopback(case.settings)
    except Failure as fault:
        return failed(f"{fault}; make gym-down, and report this")
    beyond = ports.beyond_loopback(processes.ours(case.settings, "rehearsal"))
    if beyond:
        return fail(f"the rehearsal's Ray listens on {beyond[0][0]}:{beyond[0][1]}", "make stop, and report this")
    return ok("nothing of ours but the Gateway listens beyond loopback")
