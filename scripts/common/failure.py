"""The error that a stage shows as one line, and text that is safe to print.

Guarantees: printable text moves no cursor and colours nothing, whoever wrote it; an address loses
the user and password that it may carry. Standard library only: the session client starts with it.
"""

import re

# What moves a cursor, and halves of surrogate pairs, which no encoding can say.
CONTROLS = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160), *range(0xD800, 0xE000)), "\ufffd")


class Failure(Exception):
    """What is wrong, where, and the command that fixes it: one line for the user."""

    exit_status = 1


def printable(text):
    """Text that can be printed: control characters, line ends and tabs apart, and lone surrogates are replaced."""
    return str(text).translate(CONTROLS)


def one_line(text):
    """Printable text without line ends and tabs, which names of files and programs may hold."""
    return re.sub(r"[\n\t]", "\ufffd", printable(text))


def without_user(address):
    """An address as it may be shown: without the user and the password that it may carry."""
    return re.sub(r"^(\w+://)?.*@", r"\1", str(address), flags=re.DOTALL)
