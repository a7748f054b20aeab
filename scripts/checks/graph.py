"""The environment's servers: what would run them, what runs, and whether it is what this clone would start.

Asked are the graph's own pages on loopback; a Gateway elsewhere is asked for its /readyz alone.
"""

from checks.probe import fail, failed, ok, warn
from common.failure import Failure
from common.net import ask
from servers import container, ports, processes, tree
from servers import graph as servers_graph
from servers.processes import run_folder

COMMIT_VARIABLE = "NEMO_GYM_COMMIT="
# Stages that start none themselves.
NEED_A_GRAPH = ("verify", "train", "accept", "audit", "eval")


def engine(case):
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
        return _base(client, s)
    found = _image(client, s, "fail" if needed else "warn")
    return found if needed or "is not there" not in found.what else ok(f"{found.what}: local processes are used")


def _base(client, settings):
    if any(settings.RELAX_IMAGE in image.tags for image in client.images.list()):
        return ok(f"engine {container.engine_address()}, base image {settings.RELAX_IMAGE} is there")
    return ok(f"engine {container.engine_address()}; make image pulls {settings.RELAX_IMAGE}")


def _image(client, settings, verdict):
    """The image holds this clone's code and patches and the pinned commit; the container's name is free or ours."""
    try:
        container.refuse_foreign(client, settings)
        image = container.find_image(client, settings, servers_graph.graph_code())
    except Failure as fault:
        return failed(fault, verdict)
    variables = image.attrs.get("Config", {}).get("Env") or []
    commit = next((each[len(COMMIT_VARIABLE) :] for each in variables if each.startswith(COMMIT_VARIABLE)), None)
    if commit != tree.GYM_COMMIT:
        return failed(f"the image {settings.NEMO_GYM_IMAGE} holds NeMo Gym {commit}; make image", verdict)
    return ok(f"image {settings.NEMO_GYM_IMAGE}: commit {commit[:12]}, code and patches of this clone")


def graph(case):
    """The Gateway that answers is this clone's, of these variables and this code, ready, and holds no state."""
    if not case.gateway.status:
        return _silent(case)
    state = _state(case)
    if state is None:
        return fail(
            f"{case.gateway.url} {case.gateway.told()}, which is no Gateway's answer",
            "end what listens there, or set GYM_BASE_PORT (GYM_HOST, where that is another machine)",
        )
    return _stale(case, state) or _unready(state, case.gateway.url) or ok(_summary(state, case.gateway.url))


def _state(case):
    """What the Gateway says of itself; None where it is none that answers."""
    state = case.gateway.json()
    return state if isinstance(state, dict) and "service_epoch" in state else None


def _silent(case):
    url = case.gateway.url.rpartition("/")[0]
    if any(map(processes.is_supervisor, case.ours)):
        return warn(
            f"servers run and the Gateway at {url} {case.gateway.told()}", "wait, if they start; else make gym-up"
        )
    if case.stage in NEED_A_GRAPH or not case.gym_is_here:
        return fail(f"the Gateway at {url} {case.gateway.told()}", "make gym-up on the Gym's machine, or set GYM_HOST")
    return ok("not running; make gym-up starts it")


def _stale(case, state):
    """A Finding for a graph that this clone would not start as it is; None for one that fits."""
    s, commit = case.settings, str(state.get("gym_commit"))
    if commit != tree.GYM_COMMIT:
        return fail(f"{case.gateway.url}: NeMo Gym {commit[:12]}, not {tree.GYM_COMMIT[:12]}", "make gym-up there")
    if not case.gym_is_here or state.get("config_fingerprint") == servers_graph.graph_fingerprint(s):
        return None
    process = ports.listener({inode for _, port, inode in ports.listening() if port == s.port("gateway")})
    folder = process and run_folder(process)
    if folder and folder != processes.mark(s):
        return fail(
            f"the graph on port {s.port('gateway')} is that of {folder} (process {process.pid})",
            "make stop in that clone, or set GYM_BASE_PORT and GYM_RAY_PORT",
        )
    return warn(f"the graph at {case.gateway.url} was started with other variables or code", "make gym-up replaces it")


def _unready(state, url):
    down = [name for name, server in (state.get("servers") or {}).items() if not server.get("up")]
    if down or state.get("ready") is not True:
        return fail(
            f"{url}: not ready, {', '.join(down) or 'the Gateway itself'} down",
            "see its log in RUN_DIR/logs; make gym-up",
        )
    if state.get("open_sessions") and not state.get("active_trials"):
        return warn(
            f"{url}: {state['open_sessions']} sessions are open and no trial is", "make gym-down, then make gym-up"
        )
    return None


def _summary(state, url):
    return (
        f"{url}: ready, commit {state['gym_commit'][:12]}, fingerprint {state.get('config_fingerprint') or 'unknown'}, "
        f"{state.get('active_trials')} trials, {state.get('open_sessions')} sessions"
    )


def head_server(case):
    """The head server answers JSON: another program on its port, or a proxy's page, would end the graph later."""
    s = case.settings
    if not case.gym_is_here or _state(case) is None:
        return ok("not asked: no graph runs on this machine")
    answer = ask(f"{s.local_url('head')}/server_instances")
    if answer.status == 200 and isinstance(answer.json(), (list, dict)):
        return ok(f"{s.local_url('head')} answers")
    if not answer.status:
        return fail(f"{answer.url} {answer.told()}", "make gym-up")
    return fail(
        f"{answer.url} {answer.told()}, not the list of servers", "end what answers there (a proxy?), then make gym-up"
    )


def exposed(case):
    """Only the Gateway listens beyond loopback."""
    try:
        servers_graph.check_loopback(case.settings)
    except Failure as fault:
        return failed(f"{fault}; make gym-down, and report this")
    beyond = ports.beyond_loopback(processes.ours(case.settings, "rehearsal"))
    if beyond:
        return fail(f"the rehearsal's Ray listens on {beyond[0][0]}:{beyond[0][1]}", "make stop, and report this")
    return ok("nothing of ours but the Gateway listens beyond loopback")
