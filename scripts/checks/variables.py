"""Variables: what does not fit, what is misspelt, proxies, and secrets that others could read.

Guarantees: no finding holds a secret's value.
"""

from __future__ import annotations

import os
import urllib.request
from difflib import get_close_matches
from shlex import quote
from urllib.parse import urlsplit

from checks.probe import Case, Finding, fail, failed, ok, ray_head, warn
from common.failure import Failure
from common.settings import OUR_PREFIXES, ROOT, Settings, declared, read_dotenv, read_token

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# Names as short as MODEL resemble too many others to be called misspelt.
LONG_NAME, NEAR = 8, 0.88
TOKEN_LEAST = 16
LOOPBACK = ("127.0.0.1", "localhost")
READABLE_BY_OTHERS = 0o077


def values(case: Case) -> Finding | list[Finding]:
    """Values out of range and unknown names, in `.env`, the environment and on make's command line."""
    given = sum(case.settings.is_given(name) for name in declared())
    faults = [failed(fault, cure="see env.example for what fits") for fault in case.faults]
    return faults or ok(f"{given} set in the environment or .env, all known and in range")


def misspelt(case: Case) -> Finding | list[Finding]:
    """Exported names that are nearly ours; those with our prefixes are refused anyway."""
    names = [name for name in declared() if len(name) >= LONG_NAME]
    findings = []
    for name in os.environ:
        if name in names or name.startswith(OUR_PREFIXES):
            continue
        if near := get_close_matches(name.upper(), names, 1, NEAR):
            cure = f"did you mean {near[0]}? else unset it"
            findings.append(warn(f"{name} is exported and read by nothing here", cure))
    return findings or ok("no exported name is nearly one of ours")


def proxies(case: Case) -> Finding | list[Finding]:
    """NO_PROXY covers our hosts, and both spellings of proxy variables agree.

    Our own programs ignore them all; the trainer, the hub's client and image builds do not.
    """
    findings = []
    for name in PROXIES:
        lower, upper = os.environ.get(name), os.environ.get(name.upper())
        if None not in (lower, upper) and lower != upper:
            what = f"{name} and {name.upper()} differ: programs disagree on which counts"
            findings.append(warn(what, f"unset {name}, or make them equal"))
    set_here = [name for name in PROXIES[:3] if os.environ.get(name) or os.environ.get(name.upper())]
    if not set_here:
        return findings or ok("no proxy variable is set")
    ours = hosts(case.settings)
    bare = [host for host in ours if not urllib.request.proxy_bypass(host)]
    if bare:
        kept = (host.strip() for name in ("no_proxy", "NO_PROXY") for host in os.environ.get(name, "").split(","))
        whole = quote(",".join(dict.fromkeys([*filter(None, kept), *bare])))
        what = f"{', '.join(set_here)} set, and NO_PROXY does not cover {', '.join(bare)}: the trainer may mind it"
        findings.append(warn(what, f"export NO_PROXY={whole} no_proxy={whole}"))
    return findings or ok(f"{', '.join(set_here)} set, NO_PROXY covers {', '.join(ours)}")


def hosts(settings: Settings) -> list[str]:
    """Hosts that must be reached past proxies, without repeats."""
    # Docker's client uses proxies even for an engine on our own network.
    engine = os.environ.get("DOCKER_HOST", "")
    urls = [*settings.gateway_urls, settings.MODEL_URL, settings.RAY_DASHBOARD_ADDRESS]
    urls += [engine] if engine.startswith("tcp://") else []
    names = [*LOOPBACK, settings.RELAX_HOST, *(_host(url) for url in urls if url), ray_head(settings)[0]]
    return list(dict.fromkeys(filter(None, names)))


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:  # only Docker's client checks DOCKER_HOST
        return None


def token(case: Case) -> Finding:
    """GATEWAY_TOKEN is hard to guess, and is set where the Gateway listens beyond loopback."""
    s = case.settings
    try:
        text = read_token(s)
    except Failure as fault:
        return fail(str(fault), "name a file that holds the token and nothing else, or set none")
    source = "GATEWAY_TOKEN" if s.GATEWAY_TOKEN else "GATEWAY_TOKEN_FILE"
    if text and len(text) < TOKEN_LEAST:
        return warn(f"{source} has {len(text)} characters and can be guessed", f"unset {source} && {_new_token()}")
    if not text and s.GYM_BIND_HOST not in ("127.0.0.1", "::1"):
        what = f"the Gateway listens on {s.GYM_BIND_HOST} without a token: whoever reaches it may use it"
        return warn(f"{what}, unless the network is closed", _new_token())
    return ok(f"{source} is set" if text else "no token, and nobody beyond this machine to ask for one")


def _new_token() -> str:
    """The command for a token that this clone's stages and jobs read, in a file that nobody else can read."""
    path, dotenv = quote(str(ROOT / "data" / "gateway-token")), quote(str(ROOT / ".env"))
    make = f"""(umask 077; od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n' >{path})"""
    # The last line of a name counts, and a GATEWAY_TOKEN would count before the file.
    return f"{make} && printf '\\nGATEWAY_TOKEN=\\nGATEWAY_TOKEN_FILE=%s\\n' {path} >>{dotenv}"


def secrets(case: Case) -> Finding | list[Finding]:
    """Files that hold a secret are readable by their owner alone."""
    names = [name for name, variable in declared().items() if variable.kind == "secret"]
    texts = read_dotenv(ROOT / ".env", declared(), refuse=lambda fault: None)
    files = [ROOT / ".env"] if any(texts.get(name, ("",))[0] for name in names) else []
    files += [case.settings.GATEWAY_TOKEN_FILE] if case.settings.GATEWAY_TOKEN_FILE else []
    # Nobody should change the mode of a folder or a device for this; the token's check refuses them.
    files = [path for path in files if os.path.isfile(path)]
    exposed = [
        warn(f"{path} holds a secret and has mode {mode & 0o777:o}", f"chmod 600 {quote(str(path))}")
        for path in files
        if (mode := path.stat().st_mode) & READABLE_BY_OTHERS
    ]
    fine = f"{len(files)} files with a secret, readable by their owner alone" if files else "no file holds a secret"
    return exposed or ok(fine)
