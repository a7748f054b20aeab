"""Typed, validated variables: the environment, then `.env`, then `env.example`.

Only `env.example` states a variable, its kind, its range and its default; this module reads them there.
Guarantees:
- every value has the kind and lies in the range that `env.example` states
- a name or value that does not fit is refused by name, with the place it came from
- a secret's value appears in no message
- standard library only and cheap to import, since the session client starts with it

It does not check that hosts answer or that paths exist: the stage that needs them does.
"""

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from common.failure import Failure

# Without importing typing, which would cost the session client a tenth of its start.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    Refuse = Callable[["SettingsError"], object]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "env.example"
# An unknown name with one of these prefixes counts as a misspelt variable of ours.
OUR_PREFIXES = ("GYM_", "GATEWAY_", "REHEARSAL_", "WORKPLACE_ASSISTANT_")
# The smallest training job, which `make smoke` runs.
ONE_SAMPLE = {
    "LIMIT": "1",
    "NEMO_GYM_NUM_ROLLOUT": "1",
    "NEMO_GYM_ROLLOUT_BATCH_SIZE": "1",
    "NEMO_GYM_N_SAMPLES_PER_PROMPT": "1",
    "NEMO_GYM_GLOBAL_BATCH_SIZE": "1",
}
ON_MAKE = "make's command line"
# Offsets from GYM_BASE_PORT, as env.example describes them. Further pairs of agent and resource server
# follow as agent_2, resource_2 and so on; MOST_REPLICAS pairs stay below Ray's own ports.
PORT_OFFSETS = {"gateway": 0, "agent": 1, "resource": 2, "head": 3, "callbacks": 4}
MOST_REPLICAS = 18


class SettingsError(Failure):
    """A variable is unknown or its value does not fit."""

    exit_status = 2


class Variable:
    """One variable as `env.example` declares it: kind, range, unit, default, meaning."""

    def __init__(self, name: str, default: str, kind: str, bounds: str, unit: str, meaning: str, group: str):
        self.name, self.default, self.meaning, self.group = name, default, meaning, group
        self.optional = kind.endswith("?")
        self.kind = kind.rstrip("?")
        self.bounds, self.unit = bounds, unit

    def parse(self, text: str, origin: str) -> Any:
        """Turn `text`, which came from `origin`, into the variable's value.

        By kind that is int, float, str, Path, or a list of networks, URLs or names; an empty optional
        gives None. Raises SettingsError with the name, the origin and what is expected.
        """
        if text == "" and (self.optional or self.kind == "secret"):
            return None
        try:
            return KINDS[self.kind](text, self.bounds)
        except ValueError as error:
            shown = "" if self.kind == "secret" or "@" in text else f"={text[:200]!r}"
            raise SettingsError(f"{origin}: {self.name}{shown} {error}") from None

    def default_text(self) -> str:
        return self.default or "(empty)"

    def range_text(self) -> str:
        return " ".join(part for part in (self.kind, self.bounds, self.unit) if part)


def _number(convert, word):
    def parse(text, bounds):
        low, high = (convert(bound) for bound in bounds.split(".."))
        try:
            value = convert(text)
        except ValueError:
            raise ValueError(f"is not {word} in {bounds}") from None
        if not low <= value <= high:
            raise ValueError(f"is outside {bounds}")
        return value

    return parse


def _choice(text, bounds):
    if text not in bounds.split("|"):
        raise ValueError(f"is none of {bounds.replace('|', ', ')}")
    return text


def _choices(text, bounds):
    names = _items(text)
    if not names:
        raise ValueError("names nothing")
    known = bounds.split("|")
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"holds {unknown[0]!r}, which is none of {', '.join(known)}")
    return names


def _text(text, bounds):
    if not text or not text.isprintable():
        raise ValueError("is empty or holds control characters")
    return text


def _secret(text, bounds):
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("holds characters that cannot stand in a header")
    return text


def _path(text, bounds):
    if not text or "\0" in text:
        raise ValueError("is not a path")
    try:
        path = Path(text).expanduser()
    except RuntimeError:
        raise ValueError("begins with a home folder that is not known here") from None
    return path if path.is_absolute() else ROOT / path


def _url(text, bounds):
    try:
        parts = urlsplit(text)
        fits = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fits = False
    if not fits or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("is not an http(s) URL without user, query and fragment")
    return text.rstrip("/")


def _host(text, bounds):
    if not text or not all(c.isalnum() or c in ".-:_" for c in text):
        raise ValueError("is not a host name or address")
    return text


def _ip(text, bounds):
    try:
        return str(ip_address(text))
    except ValueError:
        raise ValueError("is not an IP address") from None


def _items(text):
    return [item for part in text.split(",") if (item := part.strip())]


def _cidrs(text, bounds):
    networks = []
    for item in _items(text):
        try:
            network = ip_network(item, strict=True)
        except ValueError:
            raise ValueError(f"holds {item!r}, which is no strict CIDR (10.0.0.0/8, 10.1.2.3/32)") from None
        if network.prefixlen == 0:
            raise ValueError(f"holds {item!r}, which covers every address; name the trainer's network")
        networks.append(network)
    return networks


def _urls(text, bounds):
    return [_url(item, bounds) for item in _items(text)]


def existing(*paths: str | Path) -> Path | None:
    """The first path that exists, "~" expanded; None if none does."""
    # os.path answers False to a text that cannot be a path, such as one that is too long; Path raises.
    spelled = (os.path.expanduser(path) for path in paths)
    return next((Path(path) for path in spelled if os.path.exists(path)), None)


KINDS = {
    "int": _number(int, "a whole number"),
    "float": _number(float, "a number"),
    "choice": _choice,
    "choices": _choices,
    "text": _text,
    "secret": _secret,
    "path": _path,
    "url": _url,
    "urls": _urls,
    "host": _host,
    "ip": _ip,
    "cidrs": _cidrs,
}


def names_of(*groups: str) -> list[str]:
    """Names of the variables in groups of `env.example` (its lines "##@ GROUP"), in its order."""
    return [name for name, variable in declared().items() if variable.group in groups]


@cache
def declared() -> dict[str, Variable]:
    """The variables of `env.example` by name, in its order."""
    variables, meaning, spec, group = {}, [], "", ""
    for line in EXAMPLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("##@"):
            group = line[3:].strip()
        elif line.startswith("#:"):
            spec += line[2:].strip()  # a long list of choices continues on the next line
        elif line.startswith("#"):
            meaning.append(line[1:].strip())
        elif "=" in line:
            name, default = line.split("=", 1)
            kind, *rest = spec.split(None, 2)
            bounds = rest.pop(0) if rest and (".." in rest[0] or kind.startswith("choice")) else ""
            variables[name] = Variable(name, default, kind, bounds, " ".join(rest), " ".join(meaning), group)
            meaning, spec = [], ""
        else:
            meaning, spec = [], ""
    return variables


def raise_fault(fault: SettingsError) -> None:
    raise fault


def read_dotenv(path: Path, variables: dict[str, Variable], refuse: Refuse = raise_fault) -> dict[str, tuple[str, str]]:
    """Read a `.env`: {name: (text, "file:line")}. `refuse` gets a SettingsError for each line that is no NAME=value."""
    texts: dict[str, tuple[str, str]] = {}
    if not path.exists():
        return texts
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        refuse(SettingsError(f"{path} cannot be read as text: {reason}; make it a text file of yours, or move it away"))
        return texts
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        origin = f"{path.name}:{number}"
        try:
            name, text = _name_and_text(line, origin, variables)
        except SettingsError as fault:
            refuse(fault)
        else:
            texts[name] = (text, origin)
    return texts


def _name_and_text(line, origin, variables):
    name, equals, text = line.removeprefix("export ").partition("=")
    if not equals:
        raise SettingsError(f"{origin}: not a NAME=value line")
    name, text = name.strip(), text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    if name not in variables:
        raise SettingsError(f"{origin}: {_unknown(name, variables)}")
    return name, text


def _unknown(name, variables):
    # Imported late: the session client needs it for a misspelt name only, and it takes milliseconds.
    from difflib import get_close_matches

    near = get_close_matches(name.upper(), variables, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{name} is not a variable of env.example{hint}"


def _named_on_make(environment):
    """Names given as `make NAME=value`, which make exports and lists in MAKEFLAGS."""
    _, _, overrides = environment.get("MAKEFLAGS", "").partition(" -- ")
    # make escapes a space in a value; what follows it may hold a "=" and is no name.
    words = overrides.replace("\\ ", "").split()
    return [word.partition("=")[0].rstrip(":+?") for word in words if "=" in word]


def _refuse_misspelt(environment, variables, refuse):
    """Refuse unknown names that were meant for us: those with our prefixes, and `make NAME=value`."""
    for name in _named_on_make(environment):
        if name not in variables and (name.isupper() or name.upper() in variables):
            refuse(SettingsError(f"{ON_MAKE}: {_unknown(name, variables)}"))
    for name, text in environment.items():
        if name.startswith(OUR_PREFIXES) and name not in variables and not _is_service_link(name, text):
            refuse(SettingsError(f"environment: {_unknown(name, variables)}"))


def _is_service_link(name, text):
    """Whether Kubernetes set this for a service named `gateway` or `gym`."""
    return "_SERVICE_" in name or "_PORT_" in name or text.startswith(("tcp://", "udp://"))


class Settings:
    """The values of all variables as attributes (`settings.GYM_BASE_PORT`), and what follows from them."""

    def __init__(self, values: dict[str, Any], texts: dict[str, str], given: Iterable[str] = ()):
        self._values = values
        self.texts = texts
        self._given = frozenset(given)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"{name} is not declared in env.example") from None

    def is_given(self, name: str) -> bool:
        """Whether the variable was set anywhere but in env.example."""
        return name in self._given

    @property
    def replicas(self) -> int:
        """Pairs of agent and resource server in the graph; GYM_REPLICAS=0 takes one a core and leaves a core free."""
        return self.GYM_REPLICAS or max(1, min(cores_at_hand() - 1, MOST_REPLICAS))

    def servers(self) -> dict[str, int]:
        """{server: port} of the whole graph."""
        further = [f"{kind}_{nth}" for nth in range(2, self.replicas + 1) for kind in ("agent", "resource")]
        return {name: self.port(name) for name in (*PORT_OFFSETS, *further)}

    def port(self, server: str) -> int:
        """Port of "gateway", "agent", "resource", "head" or "callbacks", or of a further pair's "agent_2", …"""
        if server in PORT_OFFSETS:
            return self.GYM_BASE_PORT + PORT_OFFSETS[server]
        kind, nth = server.split("_")
        return self.GYM_BASE_PORT + len(PORT_OFFSETS) + 2 * (int(nth) - 2) + ("agent", "resource").index(kind)

    def local_url(self, server: str) -> str:
        """URL of one of our servers as seen on this machine."""
        return f"http://127.0.0.1:{self.port(server)}"

    @property
    def gateway_url(self) -> str:
        if self.NEMO_GYM_URL:
            return self.NEMO_GYM_URL
        host = f"[{self.GYM_HOST}]" if ":" in self.GYM_HOST else self.GYM_HOST
        return f"http://{host}:{self.port('gateway')}"

    @property
    def gateway_urls(self) -> list[str]:
        """The Gateways that sessions are spread over; never empty."""
        return self.GYM_URLS or [self.gateway_url]

    @property
    def gym_data(self) -> Path:
        """Folder of the task rows."""
        return self.DATA_ROOT / "nemo-gym"

    def rows_path(self, split: str | None = None) -> Path:
        """The raw rows of a split (default: NEMO_GYM_SOURCE_DATA, else those of SPLIT)."""
        if split is None and self.NEMO_GYM_SOURCE_DATA:
            return self.NEMO_GYM_SOURCE_DATA
        return self.gym_data / f"workplace_assistant_{split or self.SPLIT}.jsonl"


def cores_at_hand() -> int:
    """Whole cores this process may use: by its CPU affinity, and by its control group's quota."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores, int(quota) // int(period))
    except (OSError, ValueError):  # no such group, or "max"
        return cores


def load(
    overrides: Mapping[str, str | None] | None = None,
    environment: Mapping[str, str] | None = None,
    dotenv: Path | None = None,
    names: Iterable[str] | None = None,
    refuse: Refuse = raise_fault,
) -> Settings:
    """Read all variables. `overrides` maps names to text from the command line.

    With `names`, only those are read and checked: for a program among the variables of others, who may
    use our names (LIMIT, MODEL) and prefixes for something else.

    Raises SettingsError (one line) for an unknown name or a value that does not fit. A `refuse` that does
    not raise gets each such fault instead, and the variable keeps its default.
    """
    environment = os.environ if environment is None else environment
    variables = declared()
    if names is None:
        _refuse_misspelt(environment, variables, refuse)
    from_file = read_dotenv(dotenv or EXAMPLE.with_name(".env"), variables, refuse)
    on_make = _named_on_make(environment)
    values, texts, given = {}, {}, []
    for name in names or variables:
        variable = variables[name]
        if overrides and (option := overrides.get(name)) is not None:
            text, origin = option, "command line"
        elif name in environment:
            text, origin = environment[name], ON_MAKE if name in on_make else "environment"
        elif name in from_file:
            text, origin = from_file[name]
        else:
            text, origin = variable.default, "env.example"
        try:
            values[name] = variable.parse(text, origin)
        except SettingsError as fault:
            refuse(fault)
            text, origin = variable.default, "env.example"
            values[name] = variable.parse(text, origin)
        texts[name] = text
        given += [name] if origin != "env.example" else []
    return Settings(values, texts, given)


def command_line(description: str | None) -> ArgumentParser:
    """A parser that shows a program's description as it is written, and takes no abbreviations."""
    # Imported late: the session client has no options, and argparse takes some 10 ms.
    import argparse

    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )


def from_command_line(
    description: str | None,
    *names: str,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    refuse: Refuse = raise_fault,
) -> tuple[Settings, Namespace]:
    """Read a stage's command line, with an option for each variable in `names` (SPLIT: --split).

    `options` holds further ones: {flag: what add_argument takes}. Prints help, or one line on what is wrong, and exits.
    Never name a secret: process lists show arguments. `refuse` as in `load`.
    """
    variables, parser = declared(), command_line(description)
    for name in names:
        variable = variables[name]
        parser.add_argument(
            f"--{name.lower().replace('_', '-')}",
            dest=name,
            metavar=variable.kind.upper(),
            help=f"{variable.meaning} [{variable.range_text()}; default {variable.default_text()}]".replace("%", "%%"),
        )
    for flag, given in (options or {}).items():
        parser.add_argument(flag, **given)
    args = parser.parse_args()
    try:
        return load({name: getattr(args, name) for name in names}, refuse=refuse), args
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def read_token(settings: Settings) -> str | None:
    """GATEWAY_TOKEN, or what the file GATEWAY_TOKEN_FILE holds; None without both. Raises Failure."""
    if settings.GATEWAY_TOKEN or not settings.GATEWAY_TOKEN_FILE:
        return settings.GATEWAY_TOKEN
    path = settings.GATEWAY_TOKEN_FILE
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a device or a pipe may have no end
            raise Failure(f"GATEWAY_TOKEN_FILE: {path}: not a regular file")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII"
        raise Failure(f"GATEWAY_TOKEN_FILE: {path}: {reason}") from None
    if not token.isprintable() or " " in token:
        raise Failure(f"GATEWAY_TOKEN_FILE: {path}: not one line without spaces")
    return token or None
