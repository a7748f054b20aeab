"""What came back over HTTP: a reply, its error in words, and whose fault it is.

Guarantees:
- An EndpointFault carries the endpoint's own words, made printable, without the secrets that `redact` knows.
- A full context is told by a code, by counts, or by two signs in the words: never by one word alone.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

import orjson

from common.failure import printable

Json = dict[str, Any]

AGAIN = frozenset({429, 500, 502, 503, 504})
RATE_LIMITED = 429
PAYMENT_REQUIRED = 402
RETRY_AFTER_LIMIT_S = 86_400.0
EXCERPT = 300
# Codes by which endpoints say that the history no longer fits.
CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "context_window_exceeded"})
CONTEXT_WORDS = re.compile(
    r"context[ _-]?(length|size|window)|max(imum)?[ _](model|sequence|input|prompt|context)[ _]len(gth)?"
    r"|prompt is too long|input is too long|too many (input )?tokens|`?inputs`? tokens|max_tokens must be at least 1",
    re.IGNORECASE,
)
CONTEXT_ADVICE = re.compile(
    r"reduce|shorten|truncate|exceed|longer than|too long|must (be|have) (at least|at most|<|less)|however", re.I
)
QUOTA_CODES = frozenset({"insufficient_quota", "billing_hard_limit_reached", "quota_exceeded", "insufficient_credits"})
QUOTA_WORDS = re.compile(
    r"\bquota\b|\bbilling\b|\binsufficient (credit|fund|balance)|\bcredits?\b.*\b(used up|exhausted)", re.I
)
# How the trainer's API says that its parsers made nothing of what the policy wrote.
UNPARSABLE_WORDS = re.compile(
    r"response parsers? produced an empty assistant message|could not parse tool calls?", re.I
)

CONTEXT_FULL, UNPARSABLE_CALL = "context_length_exceeded", "unparsable_call"


class EndpointFault(Exception):
    """The endpoint did not do its part: `kind` for programs, the message for people.

    `again`: whether another try may help, after `retry_after` seconds where the endpoint named some.
    """

    def __init__(
        self, kind: str, message: str, again: bool = False, retry_after: float | None = None, status: int = 502
    ):
        super().__init__(message)
        self.kind, self.message, self.again, self.retry_after, self.status = kind, message, again, retry_after, status


class PolicyFault(Exception):
    """The policy itself cannot go on: it filled its context, or wrote a call that no parser reads.

    The actions so far are graded. `reason` for programs, the message holds the endpoint's sentence.
    """

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason, self.message = reason, message


class Reply(NamedTuple):
    """What came back over HTTP, whole. `url` is named in faults as the user knows it."""

    url: str
    status: int
    headers: Mapping[str, str]
    data: bytes


def is_first_call(body: Json) -> bool:
    """Whether a call's history holds nothing of the policy yet."""
    items = body.get("input")
    return not isinstance(items, list) or not any(
        isinstance(item, dict) and (item.get("role") == "assistant" or item.get("type") == "function_call_output")
        for item in items
    )


def parse(data: bytes) -> Any:
    """The JSON value in a body. Numbers that JSON does not know and halves of surrogate pairs are taken.

    Raises ValueError, RecursionError.
    """
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    return json.loads(data)


@contextmanager
def nesting(reply: Reply, redact: Callable[[str], str]) -> Iterator[None]:
    """Raises EndpointFault if what is read inside is nested deeper than Python follows."""
    try:
        yield
    except RecursionError:
        raise fault_of(reply, "schema", "answered with JSON that is nested too deep to read", redact) from None


def object_in(reply: Reply, first_call: bool, redact: Callable[[str], str]) -> Json:
    """The JSON object of a reply that is no error. Raises EndpointFault, PolicyFault."""
    if reply.status != 200:
        _refuse(reply, first_call, redact)
    try:
        raw = parse(reply.data)
    except (ValueError, RecursionError):
        raise fault_of(reply, "not_json", f"answered 200 {_no_json(reply)}", redact) from None
    if not isinstance(raw, dict):
        raise fault_of(reply, "not_json", f"answered 200 with {name_of(raw)} instead of a JSON object", redact)
    if _is_error(raw):
        raise fault_of(reply, "error_body", f"answered 200 with an error: {words_of(raw)}", redact)
    return raw


def _is_error(raw: Json) -> bool:
    """Whether a body with status 200 says that it is an error, in one of the ways that servers have."""
    error = raw.get("error")
    if isinstance(error, dict):
        return any(value not in (None, "", [], {}) for value in error.values())
    if error or raw.get("object") == "error":
        return True
    return not ("output" in raw or "choices" in raw) and any(raw.get(name) for name in ("detail", "message", "msg"))


def words_of(raw: Any) -> str:
    """The sentence in an error's body, wherever servers put it; the body itself where there is none."""
    if isinstance(raw, dict):
        for name in ("error", "detail", "message", "msg", "error_description", "title"):
            value = raw.get(name)
            if isinstance(value, str) and value.strip():
                return value
            if isinstance(value, dict) and value:
                return words_of(value)
            if isinstance(value, list) and value:
                return "; ".join(words_of(item) for item in value[:3])
    return raw if isinstance(raw, str) else json.dumps(raw, default=str)


def _no_json(reply: Reply) -> str:
    """In words, what a body is that is no JSON."""
    text = reply.data[:4096].decode(errors="replace").lstrip("\ufeff \r\n\t")
    kind = _header(reply, "Content-Type").partition(";")[0].strip().lower()
    if not reply.data.strip():
        return "with an empty body"
    if kind == "text/event-stream" or text.startswith(("data:", "event:")):
        return "with a stream of events, although it was asked for one answer (stream: false)"
    if kind == "text/html" or text[:15].lower().startswith(("<!doctype html", "<html")):
        title = re.search(r"<title>(.*?)</title>", text, re.I | re.S)
        return f"with a web page{f' ({title[1].strip()!r})' if title else ''}: a login, a proxy, or the wrong URL"
    return f"without JSON: {text}"


# --- errors --------------------------------------------------------------------------------


def _refuse(reply: Reply, first_call: bool, redact: Callable[[str], str]) -> None:
    """Raise what a reply with another status than 200 is."""
    status = reply.status
    try:
        raw = parse(reply.data)
    except (ValueError, RecursionError):
        raw = None
    text = words_of(raw) if raw is not None else _no_json(reply).removeprefix("without JSON: ").removeprefix("with ")
    if context_is_full(status, raw, text):
        if first_call:
            raise fault_of(
                reply, "prompt_too_long", f"answered {status}, the prompt alone does not fit: {text}", redact
            )
        raise PolicyFault(CONTEXT_FULL, _shown(text, redact))
    final = _header(reply, "x-should-retry").lower() == "false"
    if final and (_codes(raw)[0] == UNPARSABLE_CALL or status >= 500 and UNPARSABLE_WORDS.search(text)):
        raise PolicyFault(UNPARSABLE_CALL, _shown(text, redact))
    if 300 <= status < 400:
        raise fault_of(reply, "redirect", f"answered {status}, which is not followed; give the URL it leads to", redact)
    if is_quota(status, raw, text):
        raise fault_of(reply, "quota", f"answered {status}, its quota is used up: {text}", redact, status=status)
    again = status in AGAIN and not final
    raise fault_of(reply, "status", f"answered {status}: {text}", redact, again, retry_after(reply.headers), status)


def context_is_full(status: int, raw: Any, text: str) -> bool:
    """Whether an error says that the history does not fit: by its code, by its counts, or by two signs in its words."""
    if status not in (400, 413, 422, 500):
        return False
    if not CONTEXT_CODES.isdisjoint(_codes(raw)):
        return True
    if "rate_limit" in _codes(raw)[0]:
        return False
    error = raw.get("error", raw) if isinstance(raw, dict) else {}
    error = error if isinstance(error, dict) else {}
    prompt, limit = error.get("n_prompt_tokens"), error.get("n_ctx")
    if isinstance(prompt, int) and isinstance(limit, int):
        return prompt >= limit
    numbers = {int(number) for number in re.findall(r"(?<![\w.])\d{3,9}(?![\w.]\d)", text)}
    return bool(CONTEXT_WORDS.search(text)) and (len(numbers - {status}) > 1 or bool(CONTEXT_ADVICE.search(text)))


def is_quota(status: int, raw: Any, text: str) -> bool:
    """Whether an error says that waiting will not help: the account has no money or no quota left."""
    if status == PAYMENT_REQUIRED:
        return True
    return status in (403, 429) and (not QUOTA_CODES.isdisjoint(_codes(raw)) or bool(QUOTA_WORDS.search(text)))


def _codes(raw: Any) -> tuple[str, str]:
    """(code, type) of an error's body, each empty where it is no text."""
    error = raw.get("error", raw) if isinstance(raw, dict) else {}
    given = (error.get("code"), error.get("type")) if isinstance(error, dict) else ("", "")
    code, kind = (value if isinstance(value, str) else "" for value in given)
    return code, kind


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a reply asks to wait (retry-after-ms, or Retry-After as a number or a date); None without any."""
    given = {name.lower(): value for name, value in headers.items()}
    seconds: float | None = None
    with suppress(KeyError, ValueError):
        seconds = float(given["retry-after-ms"]) / 1000
    if seconds is None:
        with suppress(KeyError, ValueError):
            seconds = float(given["retry-after"])
    if seconds is None:
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            seconds = parsedate_to_datetime(given["retry-after"]).timestamp() - time.time()
    if seconds is None or seconds != seconds:
        return None
    return max(0.0, min(seconds, RETRY_AFTER_LIMIT_S))


def _header(reply: Reply, name: str) -> str:
    return next((value for key, value in reply.headers.items() if key.lower() == name.lower()), "")


def _shown(text: str, redact: Callable[[str], str]) -> str:
    # Redacted before it is cut: a cut secret would no longer be recognised.
    return printable(" ".join(redact(text).split())[:EXCERPT])


def fault_of(
    reply: Reply, kind: str, text: str, redact: Callable[[str], str], again: bool = False,
    after: float | None = None, status: int = 502,
) -> EndpointFault:  # fmt: skip
    return EndpointFault(kind, f"{reply.url} {_shown(text, redact)}", again, after, status)


def name_of(value: Any) -> str:
    """A JSON value's kind in words."""
    kinds = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        int: "a number",
        float: "a number",
    }
    return "null" if value is None else kinds.get(type(value), "unknown")
