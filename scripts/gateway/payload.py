"""What a client may ask for: the create payload, checked to the last field, and the errors in one shape.

Guarantees: a payload that passes can be run, sent and stored as it is; one that does not is
refused with the field's name and never with a value of it, since a value may be a secret. A host name is
never resolved to decide whether a model address is allowed.
"""

import hashlib
import ipaddress
import re
from dataclasses import dataclass, field
from typing import Annotated, Literal
from urllib.parse import urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from inputs.rows import RowError, check_row, check_values, to_run_request

PROTOCOL = "relax-nemo-gym/v1"
# Goes up with any change that may alter what a trial sees or earns: results of two versions are not compared.
VERSION = "1.1"
ENVIRONMENTS = {("workplace_assistant", "workplace-assistant-v1")}
INTERRUPT_POLICY = "protected"
MAX_DEADLINE_S = 1800
# What is remembered of tasks that passed: a group runs its task many times, and many tasks have the same tools.
KNOWN_TASKS, KNOWN_TOOLS, KNOWN_TOOLS_BYTES = 8192, 64, 64 << 10
# Carries the rollout id through the agent to its model calls and back out; no row's own metadata has it.
ROLLOUT_KEY = "relax_nemo_gym_rollout_id"
HOP_BY_HOP = {
    "connection", "content-length", "content-type", "host", "keep-alive", "proxy-authenticate",
    "proxy-authorization", "te", "trailer", "trailers", "transfer-encoding", "upgrade",
}  # fmt: skip
HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
HEADER_VALUE = re.compile(r"[\x20-\x7e]{0,4096}")
# The Gateway itself sets these in each model call.
RESERVED_PARAMS = {"input", "tools", "model", "metadata", "instructions", "stream"}


class ApiError(Exception):
    """An answer other than success: HTTP status, code, message, the field it is about, extra headers."""

    def __init__(self, status, code, message, field=None, headers=None):
        super().__init__(message)
        self.status, self.code, self.message, self.field, self.headers = status, code, message, field, headers

    def body(self):
        error = {"code": self.code, "message": self.message}
        return {"error": error | ({"field": self.field} if self.field else {})}


def unfit(field, message):
    return ApiError(422, "invalid_payload", message, field)


Name = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Secret = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[\x21-\x7e]+$")]


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", hide_input_in_errors=True)


class Session(Part):
    session_id: Secret
    group_id: Name | None = None
    rollout_mode: Literal["train", "eval"]
    attempt: Annotated[int, Field(ge=1, le=1_000_000)] = 1


class EnvironmentRef(Part):
    name: Name
    config: Name
    task: dict


class ModelEndpoint(Part):
    base_url: Annotated[str, StringConstraints(min_length=1, max_length=2048)]
    api_key: Secret | None = None
    model: Name
    api_key_header: Name = "Authorization"
    api_key_prefix: Annotated[str, StringConstraints(max_length=256)] = "Bearer "
    headers: dict[str, str] = Field(default_factory=dict, max_length=32)


class Generation(Part):
    responses_create_params: dict = Field(default_factory=dict)
    sampling_params: dict = Field(default_factory=dict)


class CreatePayload(Part):
    """The body of POST /v1/trials."""

    protocol_version: Literal["relax-nemo-gym/v1"]
    request_id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,200}$")]
    session: Session
    environment: EnvironmentRef
    model_endpoint: ModelEndpoint
    generation: Generation = Field(default_factory=Generation)
    interrupt_policy: Name = INTERRUPT_POLICY
    deadline_s: Annotated[float, Field(gt=0, le=1e9)]
    lease_s: Annotated[float, Field(gt=0, le=1e9)]
    metadata: dict = Field(default_factory=dict)


@dataclass(frozen=True)
class Endpoint:
    """Where a trial's model calls go. `secrets` must appear in no message."""

    url: str
    model: str
    headers: dict = field(repr=False)
    secrets: tuple = field(repr=False)

    def redact(self, text):
        for secret in self.secrets:
            as_json = orjson.dumps(secret)[1:-1].decode()
            text = text.replace(secret, "***").replace(as_json, "***")
        return text


@dataclass(frozen=True)
class TrialRequest:
    """A create payload that passed: what to run, where the policy is, for how long."""

    request_id: str
    digest: str
    run_request: dict = field(repr=False)
    endpoint: Endpoint
    call_params: dict = field(repr=False)  # go into each model call: sampling parameters, and the row's tools if any
    deadline_s: float
    lease_s: float
    keeps_trajectory: bool = False


def parse_json(body):
    """Parse a request body: a JSON object. Raises ApiError 422."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise unfit("(body)", f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    if not isinstance(payload, dict):
        raise unfit("(body)", "is not a JSON object")
    return payload


class KnownTasks:
    """Tasks that passed, by the hash of what was sent: (digest, {"tools"} of their model calls). Bounded in memory."""

    def __init__(self):
        self._tasks, self._tools = {}, {}

    def get(self, sent):
        return self._tasks.get(sent)

    def add(self, sent, digest, tools):
        """Remember a task; `tools`: JSON text of its tools, or None."""
        if len(tools or b"") <= KNOWN_TOOLS_BYTES:
            if len(self._tasks) >= KNOWN_TASKS or len(self._tools) >= KNOWN_TOOLS:
                self._tasks.clear()
                self._tools.clear()
            self._tasks[sent] = digest, self._tools.setdefault(tools, tools_param(tools))


def tools_param(tools):
    """The parameter with these tools (JSON text, or None without any) of a model call."""
    return {} if tools is None else {"tools": orjson.Fragment(tools)}


class Registry:
    """What this Gateway runs and from where: turns payloads into TrialRequests."""

    def __init__(self, networks, own_ports, check_params, salt):
        """`check_params(dict)` gives NeMo Gym's model of the parameters, or raises pydantic's ValidationError."""
        self.networks, self.own_ports, self.check_params, self.salt = networks, own_ports, check_params, salt
        self._known = KnownTasks()

    def request(self, payload, from_loopback):
        """Check a payload. Raises ApiError 422 (shape) or 400 (not registered, not allowed)."""
        try:
            check_values({key: value for key, value in payload.items() if key != "environment"})
            create = CreatePayload.model_validate(payload)
        except RowError as error:
            raise unfit(error.key, error.message) from None
        except ValidationError as error:
            raise unfit(*_first(error)) from None
        self._check_registered(create)
        endpoint = self._endpoint(create, from_loopback)
        run_request, task_digest, tools = self._run_request(create)
        environment = payload["environment"] | {"task": task_digest.hex()}
        return TrialRequest(
            request_id=create.request_id,
            digest=self._digest(payload | {"environment": environment}, "environment").hex(),
            run_request=run_request,
            endpoint=endpoint,
            call_params=_sampling_params(create.generation.sampling_params) | tools,
            deadline_s=create.deadline_s,
            lease_s=create.lease_s,
            keeps_trajectory=create.metadata.get("trajectory") is True,
        )

    def _hash(self, text):
        return hashlib.blake2b(text, key=self.salt, digest_size=32).digest()

    def _digest(self, tree, field):
        """The hash by which a repeated object is known: `30` and `30.0` are the same, key order is none."""
        try:
            text = orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)
            if b".0" in text:  # only then can it hold a whole number as a float
                text = orjson.dumps(_whole_numbers(tree), option=orjson.OPT_SORT_KEYS)
        except orjson.JSONEncodeError:
            raise unfit(field, "is nested too deep") from None
        return self._hash(text)

    def _check_registered(self, create):
        wanted = create.environment
        if (wanted.name, wanted.config) not in ENVIRONMENTS:
            known = ", ".join(f"{name}/{config}" for name, config in sorted(ENVIRONMENTS))
            raise ApiError(400, "environment_not_registered", f"registered here: {known}", "environment")
        if create.interrupt_policy != INTERRUPT_POLICY:
            raise ApiError(400, "policy_not_allowed", f"allowed: {INTERRUPT_POLICY}", "interrupt_policy")
        for name in ("deadline_s", "lease_s"):
            if getattr(create, name) > MAX_DEADLINE_S:
                raise ApiError(400, "deadline_not_allowed", f"at most {MAX_DEADLINE_S} s", name)

    def _run_request(self, create):
        """The raw row to run, overrides applied, the digest of the task as it was given, and {"tools"} of its calls."""
        task, overrides = create.environment.task, create.generation.responses_create_params
        sent = self._sent(task)
        known = self._known.get(sent)
        row = self._row(task, checked=known is not None)
        if known and not overrides:
            return row, *known
        digest = self._digest(task, "environment.task")
        if overrides:
            row, tools = self._overridden(row, overrides)
        else:
            tools = self._checked_tools(row["responses_create_params"])
            self._known.add(sent, digest, tools)
        return row, digest, tools_param(tools)

    def _sent(self, task):
        """The hash of a task as it came: a policy is shown its tools in their own order of keys."""
        try:
            return self._hash(orjson.dumps(task))
        except orjson.JSONEncodeError:
            return None  # the checks say what is wrong with it

    def _row(self, task, checked):
        try:
            return to_run_request(task, checked)
        except RowError as error:
            raise unfit(_task_field(error.key), error.message) from None

    def _overridden(self, row, overrides):
        params = row["responses_create_params"] | overrides
        tools = self._checked_tools(params, overrides)
        try:
            check_row(row | {"responses_create_params": params})
        except RowError as error:
            raise unfit(f"generation.{error.key}", error.message) from None
        return row | {"responses_create_params": params}, tools

    def _checked_tools(self, params, overrides=()):
        """Have NeMo Gym check parameters: JSON text of their tools as it writes them, or None. Raises ApiError 422."""
        try:
            checked = self.check_params(params)
        except ValidationError as error:
            field, message = _first(error)
            raise unfit(_param_field(field, overrides), message) from None
        if ROLLOUT_KEY in (params.get("metadata") or {}):
            raise unfit(_param_field("metadata", overrides), f"{ROLLOUT_KEY} is the Gateway's own")
        if not params.get("tools"):
            return None
        return orjson.dumps(checked.model_dump(include={"tools"}, exclude_unset=True)["tools"])

    def _endpoint(self, create, from_loopback):
        wanted = create.model_endpoint
        url = self._allowed_url(wanted.base_url, from_loopback)
        key = wanted.api_key or create.session.session_id
        headers = _extra_headers(wanted) | {wanted.api_key_header: wanted.api_key_prefix + key}
        if not HEADER_NAME.fullmatch(wanted.api_key_header) or wanted.api_key_header.lower() in HOP_BY_HOP:
            raise unfit("model_endpoint.api_key_header", "is not a header that may be set")
        if not HEADER_VALUE.fullmatch(wanted.api_key_prefix):
            raise unfit("model_endpoint.api_key_prefix", "is not printable ASCII")
        secrets = {key, create.session.session_id, *wanted.headers.values()} - {""}
        return Endpoint(url, wanted.model, headers, tuple(sorted(secrets, key=len, reverse=True)))

    def _allowed_url(self, text, from_loopback):
        """The model API's URL, rebuilt from its checked parts. Raises ApiError 400."""
        try:
            if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
                raise ValueError("holds characters that are not part of a URL")
            parts = _split(text)
            if parts.scheme not in ("http", "https"):
                raise ValueError("is neither http nor https")
            if "@" in parts.netloc or "?" in text or "#" in text:
                raise ValueError("holds user info, a query or a fragment")
            address, port = _address(parts.hostname), _port(parts)
        except ValueError as error:
            raise ApiError(400, "callback_not_allowed", f"the address {error}", "model_endpoint.base_url") from None
        self._check_network(address, port, from_loopback)
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}/v1/responses"

    def _check_network(self, address, port, from_loopback):
        if port in self.own_ports and (address.is_loopback or self._is_own(address)):
            raise ApiError(400, "callback_not_allowed", "the address is the graph's own", "model_endpoint.base_url")
        if address.is_loopback:
            allowed = from_loopback or any(address in network for network in self.networks)
        else:
            allowed = any(address in network for network in self.networks)
        if not allowed:
            raise ApiError(
                400,
                "callback_not_allowed",
                f"{address} lies in none of NEMO_GYM_CALLBACK_ALLOWED_NETWORKS",
                "model_endpoint.base_url",
            )

    def _is_own(self, address):
        """Whether a local socket can take this address, which only this machine's own can."""
        import socket

        family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((str(address), 0))
            except OSError:
                return False
        return True


def _split(text):
    # The messages of the library would show parts of the address.
    try:
        return urlsplit(text)
    except ValueError:
        raise ValueError("has a host that is no IP address literal") from None


def _port(parts):
    try:
        port = {"http": 80, "https": 443}[parts.scheme] if parts.port is None else parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError("has no valid port")
    return port


def _address(host):
    """IP address of a literal host; an IPv4 address in IPv6 clothes is the IPv4 address."""
    if not host or "%" in host:
        raise ValueError("has no usable host")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError("has a host that is no IP address literal") from None
    return getattr(address, "ipv4_mapped", None) or address


def _extra_headers(wanted):
    for name, value in wanted.headers.items():
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise unfit("model_endpoint.headers", "holds a name or value that cannot stand in a header")
        if name.lower() in HOP_BY_HOP | {wanted.api_key_header.lower()}:
            raise unfit("model_endpoint.headers", f"{name} may not be set")
    return dict(wanted.headers)


def _sampling_params(params):
    if taken := RESERVED_PARAMS & params.keys():
        raise unfit(f"generation.sampling_params.{min(taken)}", "is not a sampling parameter")
    return params


def _task_field(key):
    return f"environment.task.{key}" if key else "environment.task"


def _param_field(key, overrides):
    """Where a parameter was given: over the task's, or in it."""
    place = "generation" if key.partition(".")[0] in overrides else "environment.task"
    return f"{place}.responses_create_params.{key}"


def _first(error):
    """Field and message of a ValidationError's first entry, without the value."""
    entry = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return ".".join(str(part) for part in entry["loc"])[:200] or "(body)", entry["msg"][:200]


def _whole_numbers(tree):
    """The object or list with whole floats as integers; itself where it holds none, which is most of it."""
    changed = {}
    for key, item in tree.items() if isinstance(tree, dict) else enumerate(tree):
        if isinstance(item, str):
            continue
        if isinstance(item, (dict, list)):
            other = _whole_numbers(item)
        elif isinstance(item, float) and item.is_integer() and abs(item) < 2**53:
            other = int(item)
        else:
            continue
        if other is not item:
            changed[key] = other
    if not changed:
        return tree
    return tree | changed if isinstance(tree, dict) else [changed.get(n, item) for n, item in enumerate(tree)]
