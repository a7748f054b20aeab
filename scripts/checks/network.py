"""The way between machines: GYM_HOST, callback networks, clocks, the model endpoint.

Guarantees: the key of the endpoint is in no finding, even where the endpoint sends it back.
"""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address
from urllib.parse import urlsplit

from checks.probe import Case, Finding, fail, ok, ray_head, warn
from common import net
from common.net import ask

WILD = ("0.0.0.0", "::")
# Whole seconds of a Date header and a slow answer explain less than this.
SKEW_S = 5
# A network with as few bits is most of the Internet.
WIDE_BITS = {4: 7, 6: 15}


def gym_host(case: Case) -> Finding:
    """GYM_HOST leads to this machine's Gateway, or to another machine's; GYM_BIND_HOST lets it in."""
    bind, host = case.settings.GYM_BIND_HOST, urlsplit(case.settings.gateway_urls[0]).hostname
    if bind not in WILD and not net.is_here(bind):
        return fail(f"GYM_BIND_HOST={bind} is no address of this machine", "set it to one of its own, or to 0.0.0.0")
    addresses = net.addresses(host)
    if not addresses:
        return fail(f"GYM_HOST={host} has no address", "correct it, or set it to the Gym machine's address")
    if not case.gym_is_here:
        if case.gateway.status:
            return ok(f"GYM_HOST={host} is another machine, which answers")
        what = f"GYM_HOST={host} is no address of this machine, and nobody answers at {case.gateway.url}"
        if case.stage == "gym-up":
            return warn(what, "set GYM_HOST to this machine's address, unless a router gives it that one")
        return fail(what, "make gym-up on that machine, or set GYM_HOST to an address of this one")
    if all(ip_address(address).is_loopback for address in addresses) or bind in (*WILD, *addresses):
        return ok(f"GYM_HOST={host} is this machine, the Gateway listens on {bind}")
    return fail(
        f"GYM_HOST={host} is this machine, and the Gateway listens on {bind} alone: trainers do not reach it",
        f"set GYM_BIND_HOST={addresses[0]}, then make gym-up",
    )


def callbacks(case: Case) -> Finding | list[Finding]:
    """The networks that models may be called in hold the trainer, and not half the Internet."""
    s = case.settings
    networks = s.NEMO_GYM_CALLBACK_ALLOWED_NETWORKS
    cure = "name the trainer's network in NEMO_GYM_CALLBACK_ALLOWED_NETWORKS"
    wide = [network for network in networks if network.prefixlen <= WIDE_BITS[network.version]]
    findings = [warn(f"callback network {network} is most of the Internet", cure) for network in wide]
    trainers = {"RELAX_HOST": s.RELAX_HOST, "RAY_ADDRESS": ray_head(s)[0]}
    trainers = {name: host for name, host in trainers.items() if host}
    for name, host in trainers.items():
        findings += _uncovered(case, name, host, networks)
    shown = ",".join(map(str, networks)) or "(none)"
    covered = ", ".join(f"{name}={host}" for name, host in trainers.items())
    return findings or ok(f"callback networks {shown}; {f'they cover {covered}' if covered else 'no trainer named'}")


def _uncovered(case: Case, name: str, host: str, networks: list[IPv4Network | IPv6Network]) -> list[Finding]:
    addresses = [ip_address(text) for text in net.addresses(host)]
    if not addresses:
        return [warn(f"{name}: {host} has no address here", f"correct {name}, or use the address itself")]
    covered = any(address in network for address in addresses for network in networks)
    if covered or all(address.is_loopback for address in addresses):
        return []
    address = addresses[0]
    what = f"callback networks do not cover the trainer's address {address} ({name}): its model is not called"
    cure = f"add {address}/{address.max_prefixlen} to NEMO_GYM_CALLBACK_ALLOWED_NETWORKS, then make gym-up"
    if case.gym_is_here:
        return [fail(what, cure)]
    return [warn(f"{what}, if the Gym's machine has the same", f"there: {cure}")]


def clock(case: Case) -> Finding | list[Finding]:
    """The clocks of the Gateways' machines and of the dashboard's against ours."""
    s = case.settings
    urls = [f"{url}/readyz" for url in s.gateway_urls]
    if s.RAY_ADDRESS:
        host = ray_head(s)[0] or ""
        head = f"http://{f'[{host}]' if ':' in host else host}:8265"
        urls.append(f"{s.RAY_DASHBOARD_ADDRESS or head}/api/version")
    skews = [(answer.url, answer.skew_s) for answer in map(ask, urls) if answer.skew_s is not None]
    off = [
        f"the clock at {urlsplit(url).netloc} is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} ours"
        for url, skew in skews
        if abs(skew) > SKEW_S
    ]
    findings = [warn(what, "synchronise both clocks (timedatectl set-ntp true)") for what in off]
    return findings or ok(f"{len(skews)} other clocks asked, none off by more than {SKEW_S} s")


def endpoint(case: Case) -> Finding:
    """The endpoint that plays the policy answers as an OpenAI-compatible one does, and has the model."""
    s = case.settings
    if not s.MODEL_URL:
        if case.stage == "eval":
            return fail("MODEL_URL is empty", "name the endpoint: make eval MODEL_URL=http://... MODEL=...")
        if s.REHEARSAL_POLICY == "endpoint":
            return fail("REHEARSAL_POLICY=endpoint, and MODEL_URL is empty", "set MODEL_URL to the model's endpoint")
        return ok("no MODEL_URL: no endpoint plays the policy")
    headers = {"Authorization": f"Bearer {s.MODEL_API_KEY}"} if s.MODEL_API_KEY else None
    answer = ask(f"{s.MODEL_URL}/v1/models", headers)
    # Some servers show the headers of a request in their answer.
    answer = answer._replace(text=answer.text.replace(s.MODEL_API_KEY, "***")) if s.MODEL_API_KEY else answer
    if answer.status in (401, 403):
        return fail(f"{answer.url} answered {answer.status}", "set MODEL_API_KEY to a key it takes")
    if answer.status == 404:
        return warn(f"{answer.url} is not there: cannot tell what is served", "see that MODEL_URL ends before /v1")
    models = answer.json() if answer.status == 200 else None
    try:
        names = [model["id"] for model in models["data"]] if models else None
    except (KeyError, TypeError):
        names = None
    if names is None:
        what = f"{answer.url} {answer.told()}, no list of models"
        return fail(what, "start the model's server, or correct MODEL_URL")
    if s.MODEL not in names:
        served = ", ".join(map(str, names))[:200]
        return warn(f"{s.MODEL_URL} serves {served}, not {s.MODEL!r}", "set MODEL to one of these")
    return ok(f"{s.MODEL_URL} serves {s.MODEL}")
