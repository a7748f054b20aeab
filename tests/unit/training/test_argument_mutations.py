"""Each line of the trainer's arguments changed in each way it can be wrong: the stand-in trainer must see every one."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from common import settings as variables
from common.failure import Failure
from training import arguments
from training import submit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "train" / "standin"))

from relax.entrypoints import contract  # noqa: E402 - the stand-in trainer's checkout is no package of ours

LINE = re.compile(r"  (?:  - (?P<item>\w+)=|(?P<flag>[a-z0-9-]+):) ?(?P<value>.*)")
TOKEN_FILE = "/run/token"
ENVIRONMENT = {
    "MODEL_DIR": "/m",
    "EXP_DIR": "/e",
    "GYM_URLS": "http://10.0.0.4:29000,http://10.0.0.5:29000",
    "TRAIN_PROJECT": "p",
    # Each another number, so that one taken for another shows.
    "NEMO_GYM_NUM_ROLLOUT": "11",
    "NEMO_GYM_ROLLOUT_BATCH_SIZE": "3",
    "NEMO_GYM_N_SAMPLES_PER_PROMPT": "4",
    "NEMO_GYM_GLOBAL_BATCH_SIZE": "6",
}
BUDGETS = [name for name in ENVIRONMENT if name.startswith("NEMO_GYM_")]
BUDGETS += ["NEMO_GYM_MAX_PROMPT_LEN", "NEMO_GYM_MAX_CONTEXT_LEN", "NEMO_GYM_MAX_RESPONSE_LEN"]
EXPECTED = {"num-rollout": "11", "rollout-batch-size": "3", "n-samples-per-prompt": "4", "global-batch-size": "6"}
EXPECTED |= {"tb-project-name": "p", "tb-experiment-name": "workplace-assistant-qwen3-4B"}
MODEL_ARGS = [word for flag, text in contract.MODEL_ARGS.items() for word in (f"--{flag}", text) if word]


class Job:
    """A training job as its user asked for it: what the file of arguments may name, and the job's variables."""

    def __init__(self):
        settings = variables.load(environment=ENVIRONMENT, dotenv=Path("/nonexistent/.env"))
        task = arguments.Task(settings, Path("/rows.jsonl"), 32)
        self.path, self.known = settings.TRAIN_ARGUMENTS, arguments.values(settings, task, TOKEN_FILE)
        self.variables = submit.job_variables(settings, TOKEN_FILE) | {"STANDIN_EXPECTED": json.dumps(EXPECTED)}

    def faults(self, path):
        """What the stand-in says of a file of arguments."""
        given = arguments.read_arguments(path, self.known, tracking=True)
        words = [*MODEL_ARGS, *arguments.command_line(given), "--prompt-data", "/p"]
        arguments, found = contract.argument_faults(words)
        return found + contract.agreement_faults(arguments, self.variables)


@pytest.fixture(scope="module")
def job():
    return Job()


def changed(line):
    """The ways to get one line wrong: {kind: line, or None for none}."""
    found = LINE.match(line)
    if not found or found["flag"] == "agent-env":
        return {}
    name, value = found["item"] or found["flag"], found["value"]
    ways = {"left out": None, "another name": line.replace(name, f"{name}s", 1)}
    if found["item"]:
        return ways | {"another value": f"    - {name}=17", "a letter more": f"{line}1"}
    if not value:
        return ways | {"a value": f"  {name}: true"}
    return ways | {"no value": f"  {name}:", "a letter more": f"  {name}: {value.strip(chr(39))}1"}


def swapped(line, names):
    """The line with another variable in the place of its own: each other budget's, else the one that comes next."""
    own = "".join(re.findall(r"\$\{(\w+)\}", line))
    if not own or not LINE.match(line):
        return {}
    others = [name for name in BUDGETS if name != own] if own in BUDGETS else [names[names.index(own) - 1]]
    return {f"{name} for {own}": line.replace(f"${{{own}}}", f"${{{name}}}") for name in others}


def mutations(text):
    """(line number, kind, the text with that one change)."""
    lines = text.splitlines()
    names = sorted(set(re.findall(r"\$\{(\w+)\}", text)))
    for index, line in enumerate(lines):
        for kind, new in (changed(line) | swapped(line, names)).items():
            put_in = [] if new is None else [new]
            yield index + 1, kind, "\n".join([*lines[:index], *put_in, *lines[index + 1 :]]) + "\n"


def test_the_file_as_it_is_has_no_fault(job):
    assert job.faults(job.path) == []


def test_every_change_of_every_line_is_seen(job, tmp_path, monkeypatch):
    # The same reader in C, ten times as fast.
    monkeypatch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
    text, path = job.path.read_text(), tmp_path / "a.yaml"
    missed, looked_at = [], set()
    for number, kind, mutant in mutations(text):
        path.write_text(mutant)
        looked_at.add(number)
        try:
            seen = job.faults(path)
        except Failure:
            continue
        if not seen:
            missed.append(f"line {number}: {kind}")
    assert not missed
    flags = [line for line in text.splitlines() if LINE.match(line)]
    assert len(looked_at) == len(flags) - 1, "all but the list's own line"
