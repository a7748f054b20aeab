"""The conditions of an evaluation: its sampling, its environment, and the configuration that holds all of them.

Guarantees: two evaluations with equal configurations drew their samples alike; Gateways that run different
environments are refused by the field in which they differ.
"""

from __future__ import annotations

from typing import Any

from common.failure import Failure
from common.files import sha256_of
from common.settings import Settings
from evaluation import files
from gateway.client import ClientError, Gateway
from inputs import rows

SAMPLING = {"temperature": "EVAL_TEMPERATURE", "top_p": "EVAL_TOP_P", "max_output_tokens": "EVAL_MAX_OUTPUT_TOKENS"}
# The evaluation itself sets these keys of a call.
OWN_KEYS = frozenset({"model", "messages", "input", "tools", "stream"})


def sampling_of(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the given sampling parameters of a Responses call, what else goes into every call). Raises Failure."""
    try:
        extra = rows.parse_json((settings.EVAL_EXTRA_BODY or "{}").encode())
        rows.check_values([extra])
    except ValueError as error:
        raise Failure(f"EVAL_EXTRA_BODY: {error}; it is a JSON object") from None
    if not isinstance(extra, dict) or not OWN_KEYS.isdisjoint(extra):
        raise Failure("EVAL_EXTRA_BODY: not a JSON object, or with a key that the evaluation itself sets")
    given = {name: getattr(settings, variable) for name, variable in SAMPLING.items()}
    return {name: value for name, value in given.items() if value is not None}, extra


def gateway_facts(settings: Settings) -> dict[str, Any]:
    """What rewards depend on, as the Gateways answer, the same at each. Raises Failure."""
    facts = {}
    for url in settings.gateway_urls:
        try:
            answer = Gateway(settings, url).exchange("GET", "/readyz")
        except ClientError as fault:
            raise Failure(f"{url}: not ready: {fault}; `make gym-up` starts the servers") from None
        versions = {"protocol_version": answer.get("protocol_version"), "version": answer.get("gateway_version")}
        facts[url] = {"environment": answer.get("environment"), "gateway": versions}
    first_url, first = next(iter(facts.items()))
    for url, other in facts.items():
        if differing := files.differences(first, other):
            field, expected, actual = differing[0]
            raise Failure(f"{url}: {field} is {actual}, and at {first_url} {expected}; evaluate on like hosts")
    return first


def split_of(settings: Settings) -> str:
    """The name of the rows that are evaluated."""
    return settings.NEMO_GYM_SOURCE_DATA.stem if settings.NEMO_GYM_SOURCE_DATA else settings.SPLIT


def configuration(
    settings: Settings, count: int, sampling: dict[str, Any], gateway: dict[str, Any], reported: str
) -> dict[str, Any]:
    """What must match for a resumption or a comparison."""
    path = settings.rows_path()
    return {
        "format": files.FORMAT,
        "rows": {"path": str(path), "sha256": sha256_of(path), "count": count},
        "split": split_of(settings),
        "limit": settings.LIMIT,
        "repeats": settings.REPEATS,
        "model": settings.MODEL,
        "model_reported": reported,
        "wire": settings.WIRE,
        "sampling": sampling,
        "deadline_s": settings.NEMO_GYM_DEADLINE_S,
        **gateway,
    }
