"""The READMEs are true: commands, options, variables, paths and links in them exist, and the checks are the doctor's.

The table of checks is written anew by `PYTHONPATH=scripts .venv/bin/python tests/unit/stages/test_readme.py`.
"""

import re
import shlex
import subprocess
import sys

import pytest

from checks import registry
from checks.probe import Finding
from common import settings
from common.settings import ROOT

SCRIPTS, FRONT, CHECKS = ROOT / "scripts", ROOT / "README.md", ROOT / "scripts" / "checks" / "README.md"
# Not below data/, where a trainer's checkout may lie.
READMES = [FRONT, *sorted([*ROOT.glob("[a-z]*/README.md"), *ROOT.glob("[pst]*/[a-z]*/README.md")])]
TARGETS = dict(re.findall(r"^([a-z-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.M))
VARIABLES = settings.declared()
OF_THE_TRAINER = {"RELAX_INPUT_JSON", "RELAX_OUTPUT_JSON"}
FAMILIES = {name.partition("_")[0] for name in VARIABLES}
VARIABLE = r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+"
ASSIGNMENT = r"([A-Z][A-Z0-9_]+)=(\S+)"
FILE = r"(?:(?:scripts|tests|patches|\.ci)/[\w./-]+|[\w./-]+\.(?:py|sh|yaml|patch))"
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)
TABLE = re.compile(r"(?<=<!-- checks: written by `PYTHONPATH=scripts .venv/bin/python ).*?(?=<!-- /checks -->)", re.S)
every_readme = pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))


def code(readme):
    """The lines of a README's shell blocks, and its code in the text; placeholders are capital words."""
    text = readme.read_text()
    blocks = [body for kind, body in FENCE.findall(text) if kind in ("sh", "console")]
    lines = [part.strip() for block in blocks for line in block.splitlines() for part in line.split(" && ")]
    return [*lines, *re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]


def commands(readme, *start):
    """The words of all commands that begin with `start`, what comes before them left out."""
    lines = [line.removeprefix("$ ") for line in code(readme)]
    words = [shlex.split(line, comments=True) for line in lines if line.startswith(" ".join(start))]
    return [line[len(start) :] for line in words if line[: len(start)] == list(start) and len(line) > len(start)]


def table():
    lines = ["| check | what it looks at | for the stages | at the start of |", "| --- | --- | --- | --- |"]
    for check in registry.CHECKS:
        meaning = check.look.__doc__.strip().splitlines()[0].rstrip(".")
        lines.append(f"| {check.name} | {meaning} | {', '.join(check.stages) or 'all'} | {', '.join(check.starts)} |")
    return "tests/unit/stages/test_readme.py` -->\n\n" + "\n".join(lines) + "\n\n"


@every_readme
def test_its_make_commands_are_targets_with_variables_that_fit(readme, tmp_path):
    alone = [re.fullmatch(ASSIGNMENT, line.partition(" #")[0].strip()) for line in code(readme)]
    given = [pair.groups() for pair in alone if pair and pair[1].partition("_")[0] in FAMILIES]
    for target, *words in commands(readme, "make"):
        if not target.isupper():
            assert target in TARGETS
            given += [re.fullmatch(ASSIGNMENT, word).groups() for word in words]
    assert {name for name, _ in given} <= VARIABLES.keys()
    for name, text in given:
        settings.load({name: text}, environment={}, dotenv=tmp_path / "none")


@every_readme
def test_its_stages_take_the_options_it_gives_them(readme):
    found = commands(readme, "scripts/run.sh") + commands(readme, "python3")
    for name, *options in found:
        if name.isupper():
            continue
        script = ROOT / name if name.endswith(".py") else SCRIPTS / f"{name}.py"
        words = options[: options.index("--")] if "--" in options else options
        # argparse reads the options before --help, and prints all that there are.
        shown = subprocess.run([sys.executable, script, *words, "--help"], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", shown.stdout))


@every_readme
def test_its_files_links_and_variables_exist(readme):
    for path in {line.split()[0] for line in code(readme) if re.match(FILE, line)}:
        if re.fullmatch(FILE, path) and "NAME" not in path:
            assert any((folder / path).exists() for folder in (readme.parent, ROOT, SCRIPTS, ROOT / "patches")), path
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", FENCE.sub("", readme.read_text())):
        assert (readme.parent / link).exists(), link
    named = {name for line in code(readme) for name in re.findall(rf"\b{VARIABLE}\b", line)}
    ours = {name for name in named if name.partition("_")[0] in FAMILIES}
    assert ours <= VARIABLES.keys() | OF_THE_TRAINER


def test_the_front_page_is_short_and_names_every_target_and_room():
    text = FRONT.read_text()
    assert len(text.split()) <= 1600
    assert "".join(f"| `make {target}` | {meaning} |\n" for target, meaning in TARGETS.items()) in text
    assert all(f"── {path.parent.name}/ " in text for path in SCRIPTS.glob("*/__init__.py"))
    linked = {(ROOT / link).resolve() for link in re.findall(r"\]\(([^):]+)\)", text)}
    assert {path.parent for path in READMES[1:]} <= linked


def test_the_table_of_checks_is_the_registrys():
    text = CHECKS.read_text()
    assert TABLE.findall(text) == [table()], __doc__.splitlines()[-1]


def test_the_sample_of_the_doctor_is_as_it_speaks():
    sample = CHECKS.read_text().partition("$ make doctor")[2].partition("```")[0]
    *lines, last = [line for line in sample.splitlines()[1:] if line != "..."]
    known = {check.name: check for check in registry.CHECKS}
    for line in lines:
        verdict, name, text = re.fullmatch(r"(ok|warn|fail) +([\w' ]+): +(.+)", line).groups()
        what, _, cure = text.rpartition("; ") if verdict != "ok" else (text, "", "")
        assert registry.shown(known[name], Finding(verdict, what, cure)) == line
    assert re.fullmatch(r"doctor: \d+ ok, \d+ warn, \d+ fail in [\d.]+ s", last)


if __name__ == "__main__":
    CHECKS.write_text(TABLE.sub(lambda _: table(), CHECKS.read_text()))
