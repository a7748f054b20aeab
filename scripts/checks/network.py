"""The way between machines: GYM_HOST, callback networks, clocks, the model endpoint."""

from ipaddress import ip_address
from urllib.parse import urlsplit

from checks.probe import fail, ok, ray_head, warn
from common import net
from common.net import ask

WILD = ("0.0.0.0", "::")
# Whole seconds of a Date header and a slow answer explain less than this.
SKEW_S = 5
# A network of this many bits and fewer is most of the Internet.
WIDE_BITS = {4: 7, 6: 15}


def gym_host(case):
    """GYM_HOST leads to this machine's Gateway, or to another machine's; GYM_BIND_HOST lets it in."""
    s = case.settings
    bind, host = s.GYM_BIND_HOST, urlsplit(case.settings.gateway_urls[0]).hostname
    if bind not in WILD and not net.is_here(bind):
        return fail(f"GYM_BIND_HOST={bind} is no address of this machine", "set it to one of its own, or to 0.0.0.0")
    found = net.addresses(host)
    if not found:
        return fail(f"GYM_HOST={host} has no address", "correct it, or set it to the Gym machine's address")
    if not case.gym_is_here:
        return _elsewhere(case, host)
    if all(ip_address(each).is_loopback for each in found) or bind in (*WILD, *found):
        return ok(f"GYM_HOST={host} is this machine, the Gateway listens on {bind}")
    return fail(
        f"GYM_HOST={host} is this machine, and the Gateway listens on {bind} alone: trainers do not reach it",
        f"set GYM_BIND_HOST={found[0]}, then make gym-up",
    )


def _elsewhere(case, host):
    if case.gateway.status:
        return ok(f"GYM_HOST={host} is another machine, which answers")
    what = f"GYM_HOST={host} is no address of this machine, and nobody answers at {case.gateway.url}"
    if case.stage == "gym-up":
        return warn(what, "set GYM_HOST to this machine's address, unless a router gives it that one")
    return fail(what, "make gym-up on that machine, or set GYM_HOST to an address of this one")


def callbacks(case):
    """The networks that models may be called in are the trainer's and not half the Internet."""
    s = case.settings
    networks = s.NEMO_GYM_CALLBACK_ALLOWED_NETWORKS
    shown = ",".join(map(str, networks)) or "(none)"
    found = [
        warn(
            f"callback network {each} is most of the Internet",
            "name the trainer's network in NEMO_GYM_CALLBACK_ALLOWED_NETWORKS",
        )
        for each in networks
        if each.prefixlen <= WIDE_BITS[each.version]
    ]
    trainers = {name: host for name, host in trainer_hosts(s).items() if host}
    for name, host in trainers.items():
        found += _uncovered(case, name, host, networks)
    said = (
        f"they cover {', '.join(f'{name}={host}' for name, host in trainers.items())}"
        if trainers
        else "no trainer named"
    )
    return found or ok(f"callback networks {shown}; {said}")


def trainer_hosts(settings):
    """Where the trainer serves its model, by the variables that say so."""
    return {"RELAX_HOST": settings.RELAX_HOST, "RAY_ADDRESS": ray_head(settings)[0]}


def _uncovered(case, name, host, networks):
    found = [ip_address(each) for each in net.addresses(host)]
    if not found:
        return [warn(f"{name}: {host} has no address here", f"correct {name}, or use the address itself")]
    if any(a in network for a in found for network in networks) or all(a.is_loopback for a in found):
        return []
    address = found[0]
    network = f"{address}/{address.max_prefixlen}"
    what = f"callback networks do not cover the trainer's address {address} ({name}): its model is not called"
    cure = f"add {network} to NEMO_GYM_CALLBACK_ALLOWED_NETWORKS, then make gym-up"
    return [
        fail(what, cure) if case.gym_is_here else warn(f"{what}, if the Gym's machine has the same", f"there: {cure}")
    ]


def clock(case):
    """The clocks of the Gateways' machines and of the dashboard's against ours."""
    s = case.settings
    urls = [f"{url}/readyz" for url in s.gateway_urls]
    urls += [f"{s.RAY_DASHBOARD_ADDRESS or _dashboard(s)}/api/version"] if s.RAY_ADDRESS else []
    answers = [answer for answer in map(ask, urls) if answer.skew_s is not None]
    off = [answer for answer in answers if abs(answer.skew_s) > SKEW_S]
    return [_skewed(each) for each in off] or ok(f"{len(answers)} other clocks asked, none off by more than {SKEW_S} s")


def _skewed(answer):
    way = "ahead of" if answer.skew_s > 0 else "behind"
    what = f"the clock at {urlsplit(answer.url).netloc} is {abs(answer.skew_s):.0f} s {way} ours"
    return warn(what, "synchronise both clocks (timedatectl set-ntp true)")


def _dashboard(settings):
    host = ray_head(settings)[0] or ""
    return f"http://{f'[{host}]' if ':' in host else host}:8265"


def endpoint(case):
    """The endpoint that plays the policy answers as an OpenAI-compatible one does, and has the model."""
    s = case.settings
    if not s.MODEL_URL:
        if case.stage == "eval":
            return fail("MODEL_URL is empty", "name the endpoint: make eval MODEL_URL=http://... MODEL=...")
        if s.REHEARSAL_POLICY == "endpoint":
            return fail("REHEARSAL_POLICY=endpoint, and MODEL_URL is empty", "set MODEL_URL to the model's endpoint")
        return ok("no MODEL_URL: no endpoint plays the policy")
    answer = ask(
        f"{s.MODEL_URL}/v1/models", {"Authorization": f"Bearer {s.MODEL_API_KEY}"} if s.MODEL_API_KEY else None
    )
    # Some servers show a request's headers to who sent them.
    answer = answer._replace(text=answer.text.replace(s.MODEL_API_KEY, "***")) if s.MODEL_API_KEY else answer
    if answer.status in (401, 403):
        return fail(f"{answer.url} answered {answer.status}", "set MODEL_API_KEY to a key it takes")
    if answer.status == 404:
        return warn(f"{answer.url} is not there: cannot tell what is served", "see that MODEL_URL ends before /v1")
    try:
        names = [model["id"] for model in answer.json()["data"]] if answer.status == 200 else None
    except (KeyError, TypeError):
        names = None
    if names is None:
        return fail(
            f"{answer.url} {answer.told()}, no list of models", "start the model's server, or correct MODEL_URL"
        )
    if s.MODEL not in names:
        return warn(
            f"{s.MODEL_URL} serves {', '.join(map(str, names))[:200]}, not {s.MODEL!r}", "set MODEL to one of these"
        )
    return ok(f"{s.MODEL_URL} serves {s.MODEL}")
