"""The README is true: its targets exist, its variables and defaults are those of env.example, its plan is printed.

`make format` does not touch it; `.venv/bin/python tests/unit/test_readme.py` writes table and plan anew.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from checks import registry  # noqa: E402 - this file runs alone too
from checks.probe import Finding  # noqa: E402
from common import settings  # noqa: E402
from proofs import published  # noqa: E402
from support import sample_plan  # noqa: E402

README = ROOT / "README.md"
WRITTEN = "written by `.venv/bin/python tests/unit/test_readme.py` -->\n"


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


def check_table():
    lines = ["| check | what it looks at | for the stages | at the start of |", "| --- | --- | --- | --- |"]
    for check in registry.CHECKS:
        meaning = check.look.__doc__.strip().splitlines()[0].rstrip(".")
        lines.append(f"| {check.name} | {meaning} | {', '.join(check.stages) or 'all'} | {', '.join(check.starts)} |")
    return "\n" + "\n".join(lines) + "\n\n"


def plan():
    return f"```text\n{sample_plan.printed()}```\n"


PARTS = {"variables": variable_table, "checks": check_table, "plan": plan}


def with_parts(text):
    for name, part in PARTS.items():
        before, _, after = published.part(text, name)
        text = before + part() + after
    return text


def test_variables_checks_and_plan_are_those_of_the_code():
    text = README.read_text()
    assert all(f"<!-- {name}: {WRITTEN}" in text for name in PARTS)
    assert text == with_parts(text), "run: .venv/bin/python tests/unit/test_readme.py"


def test_the_sample_of_the_doctor_is_as_it_speaks():
    sample = README.read_text().partition("$ make doctor")[2].partition("```")[0]
    *lines, last = [line for line in sample.splitlines()[1:] if line != "..."]
    found = [re.fullmatch(r"(ok|warn|fail) +([\w' ]+): +(.+)", line) for line in lines]
    assert all(found) and len(found) > 4, lines
    names = [check.name for check in registry.CHECKS]
    places = [names.index(each[2]) for each in found]
    assert places == sorted(places)
    for each in found:
        check = registry.CHECKS[names.index(each[2])]
        what, _, cure = each[3].rpartition("; ") if each[1] != "ok" else (each[3], "", "")
        assert registry.shown(check, Finding(each[1], what, cure)) == each[0]
    assert re.fullmatch(r"doctor: \d+ ok, \d+ warn, \d+ fail in [\d.]+ s", last)


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
    README.write_text(with_parts(README.read_text()))
