"""The README is true: its targets exist, its variables and defaults are those of env.example.

`make format` does not touch it; `.venv/bin/python tests/unit/test_readme.py` writes the table anew.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import settings  # noqa: E402 - this file runs alone too

README = ROOT / "README.md"
START, END = "<!-- variables: written by `.venv/bin/python tests/unit/test_readme.py` -->\n", "<!-- /variables -->"


def variable_table():
    lines, group = [], None
    for variable in settings.declared().values():
        if variable.group != group:
            group = variable.group
            lines += ["", f"**{group}**", "", "| variable | default | kind | meaning |", "| --- | --- | --- | --- |"]
        default = f"`{variable.default}`" if variable.default else "*(empty)*"
        kind = variable.range_text().replace("|", " \\| ")
        lines.append(f"| `{variable.name}` | {default} | {kind} | {variable.meaning} |")
    return "\n".join(lines)[1:] + "\n\n"


def with_table(text):
    before, _, rest = text.partition("<!-- variables:")
    return before + START + variable_table() + END + rest.partition(END)[2]


def test_variables_are_those_of_env_example():
    text = README.read_text()
    assert text == with_table(text), "run: .venv/bin/python tests/unit/test_readme.py"


def test_every_make_target_it_names_exists():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^|`|&& )make ([a-z][a-z-]*)", README.read_text(), re.M))
    assert named and named <= targets, named - targets


def test_every_target_is_named():
    public = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    internal = {"help", "test", "lint", "format", "lock", "clean"}
    named = set(re.findall(r"`make ([a-z][a-z-]*)", README.read_text()))
    assert public - internal <= named


def test_every_file_it_names_exists():
    for path in re.findall(r"`((?:scripts|tests|patches)/[\w./-]+)`", README.read_text()):
        assert (ROOT / path).exists(), path


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
