"""The token of a Ray cluster that asks for one, as Ray's own variables give it.

Guarantees: the token goes into one header, and into no message.
"""

from __future__ import annotations

import os
from pathlib import Path

from common.failure import Failure

DEFAULT_FILE = "~/.ray/auth_token"
HOW = "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that holds it"


def headers() -> dict[str, str]:
    """The headers for a dashboard: empty unless RAY_AUTH_MODE=token. Raises Failure where there is no token then."""
    if os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        return {}
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or DEFAULT_FILE).expanduser()
    try:
        token = (os.environ.get("RAY_AUTH_TOKEN") or path.read_text(encoding="ascii")).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not ASCII"
        raise Failure(f"RAY_AUTH_MODE=token, and {path} gives no token ({reason}); {HOW}") from None
    if not token.isascii() or not token.isprintable() or " " in token or not token:
        raise Failure(f"RAY_AUTH_TOKEN (or {path}) is not one line of ASCII without spaces; {HOW}")
    return {"Authorization": f"Bearer {token}"}


def refused(url: str, status: int) -> Failure:
    """What a dashboard that answered 401 or 403 wants."""
    if headers():
        return Failure(f"{url}: Ray's dashboard does not take the token ({status}); correct RAY_AUTH_TOKEN or its file")
    return Failure(f"{url}: Ray's dashboard wants a token ({status}); {HOW}")
