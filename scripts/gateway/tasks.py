"""Tasks that passed their checks, so that they are not checked again, and the keyed hashes by which they are known.

Guarantees:
- Memory is bounded: in the number of tasks, and in the number and size of their tools.
- A task is known only if it comes with the same keys in the same order: the model sees a task's tools in that order.
- Without the salt a hash tells nothing about what it was made from.
"""

import hashlib
from typing import Any

import orjson

# A group runs its task many times, and many tasks have the same tools.
KNOWN_TASKS, KNOWN_TOOLS, KNOWN_TOOLS_BYTES = 8192, 64, 64 << 10


class KnownTasks:
    """The memo: hash of a task as it came -> (its digest, {"tools"} of its model calls)."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._tasks: dict[bytes | None, tuple[bytes, dict[str, Any]]] = {}
        self._tools: dict[bytes | None, dict[str, Any]] = {}

    def key(self, task: dict[str, Any]) -> bytes | None:
        """The hash of a task as it came; None if it is nested too deep."""
        try:
            return self._hash(orjson.dumps(task))
        except orjson.JSONEncodeError:
            return None

    def digest(self, tree: dict[str, Any]) -> bytes:
        """A hash for which `30` equals `30.0` and the order of keys does not count. Raises orjson.JSONEncodeError."""
        text = orjson.dumps(tree, option=orjson.OPT_SORT_KEYS)
        if b".0" in text:  # only then can it hold a whole number as a float
            text = orjson.dumps(_whole_numbers(tree), option=orjson.OPT_SORT_KEYS)
        return self._hash(text)

    def _hash(self, text: bytes) -> bytes:
        return hashlib.blake2b(text, key=self._salt, digest_size=32).digest()

    def get(self, key: bytes | None) -> tuple[bytes, dict[str, Any]] | None:
        return self._tasks.get(key)

    def add(self, key: bytes | None, digest: bytes, tools: bytes | None) -> None:
        """Remember a task; `tools`: JSON text of its tools, or None."""
        if len(tools or b"") <= KNOWN_TOOLS_BYTES:
            if len(self._tasks) >= KNOWN_TASKS or len(self._tools) >= KNOWN_TOOLS:
                self._tasks.clear()
                self._tools.clear()
            self._tasks[key] = digest, self._tools.setdefault(tools, tools_param(tools))


def tools_param(tools: bytes | None) -> dict[str, Any]:
    """The parameter with these tools (JSON text, or None without any) of a model call."""
    return {} if tools is None else {"tools": orjson.Fragment(tools)}


def _whole_numbers(tree: Any) -> Any:
    """The object or list with whole floats as integers; the same object if it holds none, as most do."""
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
