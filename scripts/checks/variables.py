"""Variables: what does not fit, what is misspelt, proxies, secrets that others could read."""

import os
import urllib.request
from difflib import get_close_matches
from shlex import quote
from urllib.parse import urlsplit

from checks.probe import fail, failed, ok, ray_head, warn
from common import settings as variables
from common.settings import ROOT, read_token
from gateway.client import ClientError

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# Names as short as MODEL are near too many others' to be called misspelt.
LONG_NAME, NEAR = 8, 0.88
TOKEN_LEAST = 16
LOOPBACK = ("127.0.0.1", "localhost")
READABLE_BY_OTHERS = 0o077


def values(case):
    """Values off their range and unknown names, in `.env`, the environment and on make's command line."""
    given = sum(case.settings.is_given(name) for name in variables.declared())
    found = [failed(fault if "; " in fault else f"{fault}; see env.example for what fits") for fault in case.faults]
    return found or ok(f"{given} set in the environment or .env, all known and in range")


def misspelt(case):
    """Exported names that are nearly ours and have another beginning than those refused outright."""
    names = [name for name in variables.declared() if len(name) >= LONG_NAME]
    found = []
    for name in os.environ:
        if name in names or name.startswith(variables.OUR_PREFIXES):
            continue
        if near := get_close_matches(name.upper(), names, 1, NEAR):
            found.append(warn(f"{name} is exported and read by nothing here", f"did you mean {near[0]}? else unset it"))
    return found or ok("no exported name is nearly one of ours")


# --- proxies -------------------------------------------------------------------------------


def proxies(case):
    """NO_PROXY covers our hosts, and both spellings of proxy variables agree.

    Ours ignore them all; the trainer, the hub's client and image builds do not.
    """
    found = [_differing(name) for name in PROXIES if _differing(name)]
    set_here = [name for name in PROXIES[:3] if os.environ.get(name) or os.environ.get(name.upper())]
    if not set_here:
        return found or ok("no proxy variable is set")
    bare = [host for host in hosts(case.settings) if not urllib.request.proxy_bypass_environment(host)]
    if bare:
        whole = quote(",".join(dict.fromkeys([*_bypassed(), *bare])))
        what = f"{', '.join(set_here)} set, and NO_PROXY does not cover {', '.join(bare)}: the trainer may mind it"
        found.append(warn(what, f"export NO_PROXY={whole} no_proxy={whole}"))
    return found or ok(f"{', '.join(set_here)} set, NO_PROXY covers {', '.join(hosts(case.settings))}")


def _bypassed():
    """What either spelling of NO_PROXY holds."""
    held = (os.environ.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    return [host.strip() for text in held for host in text.split(",") if host.strip()]


def _differing(name):
    lower, upper = os.environ.get(name), os.environ.get(name.upper())
    if lower is None or upper is None or lower == upper:
        return None
    return warn(
        f"{name} and {name.upper()} differ: programs disagree on which counts", f"unset {name}, or make them equal"
    )


def hosts(settings):
    """Hosts that must be reached past proxies, each once."""
    # The engine's client minds proxies even on the way to an engine of one's own network.
    urls = [*settings.gateway_urls, settings.MODEL_URL, settings.RAY_DASHBOARD_ADDRESS, _engine()]
    named = [_host(url) for url in urls if url]
    found = [*LOOPBACK, settings.RELAX_HOST, *named, ray_head(settings)[0]]
    return list(dict.fromkeys(filter(None, found)))


def _host(url):
    try:
        return urlsplit(url).hostname
    except ValueError:  # DOCKER_HOST is nobody's to check but the engine's client
        return None


def _engine():
    address = os.environ.get("DOCKER_HOST", "")
    return address if address.startswith("tcp://") else None


# --- secrets -------------------------------------------------------------------------------


def token(case):
    """GATEWAY_TOKEN is hard to guess, and set where the Gateway listens beyond loopback."""
    s = case.settings
    try:
        held = read_token(s)
    except ClientError as fault:
        return fail(str(fault), "name a file that holds the token and nothing else, or set none")
    source = "GATEWAY_TOKEN" if s.GATEWAY_TOKEN else "GATEWAY_TOKEN_FILE"
    if held and len(held) < TOKEN_LEAST:
        return warn(f"{source} has {len(held)} characters and can be guessed", f"unset {source} && {_new_token()}")
    if not held and s.GYM_BIND_HOST not in ("127.0.0.1", "::1"):
        what = f"the Gateway listens on {s.GYM_BIND_HOST} without a token: whoever reaches it may use it"
        return warn(f"{what}, unless the network is closed", _new_token())
    return ok(f"{source} is set" if held else "no token, and nobody beyond this machine to ask for one")


def _new_token():
    """What makes a token that this clone's stages and jobs read, whose file nobody else can."""
    path, dotenv = quote(str(ROOT / "data" / "gateway-token")), quote(str(ROOT / ".env"))
    make = f"""(umask 077; od -An -vtx1 -N32 /dev/urandom | tr -d ' \\n' >{path})"""
    # The last line of a name counts; a GATEWAY_TOKEN would count before the file.
    return f"{make} && printf '\\nGATEWAY_TOKEN=\\nGATEWAY_TOKEN_FILE=%s\\n' {path} >>{dotenv}"


def secrets(case):
    """Files that hold a secret are their owner's alone."""
    s = case.settings
    declared = variables.declared()
    named = [name for name, variable in declared.items() if variable.kind == "secret"]
    dotenv = ROOT / ".env"
    held = variables.read_dotenv(dotenv, declared, refuse=lambda fault: None)
    files = [dotenv] if any(held.get(name, ("",))[0] for name in named) else []
    files += [s.GATEWAY_TOKEN_FILE] if s.GATEWAY_TOKEN_FILE else []
    # A folder or a device has a mode that is nobody's to change for this; the token's check refuses them.
    files = [path for path in files if os.path.isfile(path)]
    found = [_exposed(path) for path in files if path.stat().st_mode & READABLE_BY_OTHERS]
    return found or ok(
        f"{len(files)} files with a secret, readable by their owner alone" if files else "no file holds a secret"
    )


def _exposed(path):
    return warn(f"{path} holds a secret and has mode {path.stat().st_mode & 0o777:o}", f"chmod 600 {quote(str(path))}")
