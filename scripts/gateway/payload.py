"""What a client may ask for: the create payload, checked to the last field, and the errors in one shape.

Guarantees:
- A payload that passes can be run, sent and stored as it is.
- One that does not is refused with the field's name and never with its value, which may be a secret.
- A host name is never resolved to decide whether a model address is allowed.
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from gateway.tasks import KnownTasks, tools_param
from inputs.rows import RowError, check_row, check_values, to_run_request

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Goes up with any change that may alter what a trial sees or earns: results of two versions are not compared.
VERSION = "1.1"
ENVIRONMENTS = {("workplace_assistant", "workplace-assistant-v1")}
INTERRUPT_POLICY = "protected"
MAX_DEADLINE_S = 1800
# Metadata key that carries the rollout id through the agent to its model calls; no row may have it.
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

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field, self.headers = status, code, message, field, headers

    def body(self) -> dict[str, Any]:
        error = {"code": self.code, "message": self.message}
        return {"error": error | ({"field": self.field} if self.field else {})}


def unfit(field: str, message: str) -> ApiError:
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

    def redact(self, text: str) -> str:
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
    call_params: dict = field(repr=False)  # for each model call: sampling parameters, and the row's tools if any
    deadline_s: float
    lease_s: float
    keeps_trajectory: bool = False


def parse_json(body: bytes) -> dict[str, Any]:
    """Parse a request body: a JSON object. Raises ApiError 422."""
    try:
        payload = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise unfit("(body)", f"is not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    if not isinstance(payload, dict):
        raise unfit("(body)", "is not a JSON object")
    return payload


class Registry:
    """What this Gateway runs and from where: turns payloads into TrialRequests."""

    def __init__(
        self, networks: Collection[Network], own_ports: Collection[int],
        check_params: Callable[[Mapping[str, Any]], BaseModel], salt: bytes,
    ) -> None:  # fmt: skip
        """`check_params` gives NeMo Gym's model of the parameters, or raises pydantic's ValidationError."""
        self.networks, self.own_ports, self.check_params = networks, own_ports, check_params
        self._tasks = KnownTasks(salt)

    def request(self, payload: dict[str, Any], from_loopback: bool) -> TrialRequest:
        """Check a payload. Raises ApiError 422 (shape) or 400 (not registered, not allowed)."""
        try:
            check_values({key: value for key, value in payload.items() if key != "environment"})
            create = CreatePayload.model_validate(payload)
        except RowError as error:
            raise unfit(error.key, error.message) from None
        except ValidationError as error:
            raise unfit(*_first_fault(error)) from None
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

    def _digest(self, tree: dict[str, Any], field: str) -> bytes:
        try:
            return self._tasks.digest(tree)
        except orjson.JSONEncodeError:
            raise unfit(field, "is nested too deep") from None

    def _check_registered(self, create: CreatePayload) -> None:
        wanted = create.environment
        if (wanted.name, wanted.config) not in ENVIRONMENTS:
            known = ", ".join(f"{name}/{config}" for name, config in sorted(ENVIRONMENTS))
            raise ApiError(400, "environment_not_registered", f"registered here: {known}", "environment")
        if create.interrupt_policy != INTERRUPT_POLICY:
            raise ApiError(400, "policy_not_allowed", f"allowed: {INTERRUPT_POLICY}", "interrupt_policy")
        for name in ("deadline_s", "lease_s"):
            if getattr(create, name) > MAX_DEADLINE_S:
                raise ApiError(400, "deadline_not_allowed", f"at most {MAX_DEADLINE_S} s", name)

    def _run_request(self, create: CreatePayload) -> tuple[dict[str, Any], bytes, dict[str, Any]]:
        """The raw row to run, overrides applied, the digest of the task as it was given, and {"tools"} of its calls."""
        task, overrides = create.environment.task, create.generation.responses_create_params
        key = self._tasks.key(task)
        known = self._tasks.get(key)
        row = self._row(task, checked=known is not None)
        if known and not overrides:
            return row, *known
        digest = self._digest(task, "environment.task")
        if overrides:
            row, tools = self._overridden(row, overrides)
        else:
            tools = self._checked_tools(row["responses_create_params"])
            self._tasks.add(key, digest, tools)
        return row, digest, tools_param(tools)

    def _row(self, task: dict[str, Any], checked: bool) -> dict[str, Any]:
        try:
            row: Any = to_run_request(task, checked)
        except RowError as error:
            raise unfit(".".join(filter(None, ("environment.task", error.key))), error.message) from None
        return row

    def _overridden(self, row: dict[str, Any], overrides: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
        params = row["responses_create_params"] | overrides
        tools = self._checked_tools(params, overrides)
        try:
            check_row(row | {"responses_create_params": params})
        except RowError as error:
            raise unfit(f"generation.{error.key}", error.message) from None
        return row | {"responses_create_params": params}, tools

    def _checked_tools(self, params: dict[str, Any], overrides: Collection[str] = ()) -> bytes | None:
        """Have NeMo Gym check parameters: JSON text of their tools as it writes them, or None. Raises ApiError 422."""
        try:
            checked = self.check_params(params)
        except ValidationError as error:
            field, message = _first_fault(error)
            raise unfit(_param_field(field, overrides), message) from None
        if ROLLOUT_KEY in (params.get("metadata") or {}):
            raise unfit(_param_field("metadata", overrides), f"{ROLLOUT_KEY} is the Gateway's own")
        if not params.get("tools"):
            return None
        return orjson.dumps(checked.model_dump(include={"tools"}, exclude_unset=True)["tools"])

    def _endpoint(self, create: CreatePayload, from_loopback: bool) -> Endpoint:
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

    def _allowed_url(self, text: str, from_loopback: bool) -> str:
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
            raise _not_allowed(f"the address {error}") from None
        self._check_network(address, port, from_loopback)
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/')}/v1/responses"

    def _check_network(self, address: Address, port: int, from_loopback: bool) -> None:
        if port in self.own_ports and (address.is_loopback or _is_own(address)):
            raise _not_allowed("the address is the graph's own")
        if not (from_loopback and address.is_loopback) and not any(address in network for network in self.networks):
            raise _not_allowed(f"{address} lies in none of NEMO_GYM_CALLBACK_ALLOWED_NETWORKS")


def _not_allowed(message: str) -> ApiError:
    return ApiError(400, "callback_not_allowed", message, "model_endpoint.base_url")


def _is_own(address: Address) -> bool:
    """Whether the address is this machine's: only those can be bound."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


def _split(text: str) -> SplitResult:
    # The library's own message would show parts of the address.
    try:
        return urlsplit(text)
    except ValueError:
        raise ValueError("has a host that is no IP address literal") from None


def _port(parts: SplitResult) -> int:
    try:
        port = {"http": 80, "https": 443}[parts.scheme] if parts.port is None else parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.netloc.endswith(":"):
        raise ValueError("has no valid port")
    return port


def _address(host: str | None) -> Address:
    """IP address of a literal host; an IPv4-mapped IPv6 address gives the IPv4 address."""
    if not host or "%" in host:
        raise ValueError("has no usable host")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError("has a host that is no IP address literal") from None
    return getattr(address, "ipv4_mapped", None) or address


def _extra_headers(wanted: ModelEndpoint) -> dict[str, str]:
    for name, value in wanted.headers.items():
        if not HEADER_NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
            raise unfit("model_endpoint.headers", "holds a name or value that cannot stand in a header")
        if name.lower() in HOP_BY_HOP | {wanted.api_key_header.lower()}:
            raise unfit("model_endpoint.headers", f"{name} may not be set")
    return dict(wanted.headers)


def _sampling_params(params: dict[str, Any]) -> dict[str, Any]:
    if taken := RESERVED_PARAMS & params.keys():
        raise unfit(f"generation.sampling_params.{min(taken)}", "is not a sampling parameter")
    return params


def _param_field(key: str, overrides: Collection[str]) -> str:
    """The field in which a parameter was given: the generation's, or the task's."""
    place = "generation" if key.partition(".")[0] in overrides else "environment.task"
    return f"{place}.responses_create_params.{key}"


def _first_fault(error: ValidationError) -> tuple[str, str]:
    """Field and message of a ValidationError's first entry, without the value."""
    entry = error.errors(include_input=False, include_url=False, include_context=False)[0]
    return ".".join(str(part) for part in entry["loc"])[:200] or "(body)", entry["msg"][:200]
