"""The error that a stage shows as one line, and text that is safe to print.

Guarantees:
- printable text moves no cursor and colours nothing, whoever wrote it
- an address is shown without its user and password
- standard library only, since the session client starts with it
"""

from __future__ import annotations

import re

# Control characters but tab and line feed, and lone surrogates, which no encoding can write.
CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160), *range(0xD800, 0xE000)), "\ufffd")


class Failure(Exception):
    """What is wrong, where, and the command that fixes it: one line for the user."""

    exit_status = 1


def printable(text: object) -> str:
    """Text that is safe on a terminal: CONTROLS are replaced, line ends and tabs stay."""
    return str(text).translate(CONTROLS)


def one_line(text: object) -> str:
    """Printable text without line ends and tabs, which names of files and programs may hold."""
    return re.sub(r"[\n\t]", "\ufffd", printable(text))


def without_user(address: object) -> str:
    """An address without its user and password."""
    return re.sub(r"^(\w+://)?.*@", r"\1", str(address), flags=re.DOTALL)
