"""The trainer's arguments from one YAML file, the figures of a training task, and budgets that agree.

Guarantees:
- the arguments are exactly what the file says: each scalar as it is written, with variables put in by name
- a key twice, an unknown variable or a value of another shape is refused by file and line
- no secret can be put in
- `contradictions` names each inequality between budgets that does not hold
- files are read; nothing is started or asked

Which flags the trainer has is not known here. It runs under the trainer's Python too: PyYAML comes with Ray.
"""

from __future__ import annotations

import json
import operator
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from common import program
from common import settings as variables
from common.failure import Failure
from common.settings import ROOT, Settings

MODEL_NAME = "Qwen3-4B"
REFERENCE = re.compile(r"\$\{(\w+)\}")
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
FLAG = re.compile(r"[a-z0-9][a-z0-9-]*")
# Stands in the arguments until the job has a file for the Gateway's token.
TOKEN_FILE = "${GATEWAY_TOKEN_FILE}"

# [(flag, its values)]
Arguments = list[tuple[str, list[str]]]


@dataclass(frozen=True)
class Task:
    """The rows to roll out, and the figures that follow from their number."""

    path: Path
    count: int
    batch: int
    samples: int
    rollouts: int
    global_batch: int

    @classmethod
    def of(cls, settings: Settings, path: Path, count: int) -> Task:
        batch, samples = settings.NEMO_GYM_ROLLOUT_BATCH_SIZE, settings.NEMO_GYM_N_SAMPLES_PER_PROMPT
        rollouts = settings.NEMO_GYM_NUM_ROLLOUT or -(-count // batch)
        return cls(path, count, batch, samples, rollouts, settings.NEMO_GYM_GLOBAL_BATCH_SIZE or batch * samples)

    @property
    def total_samples(self) -> int:
        return self.rollouts * self.batch * self.samples


def rows_path(settings: Settings) -> Path:
    """The rows to train on: NEMO_GYM_SOURCE_DATA, else those of SPLIT, which is train unless it is set."""
    if settings.NEMO_GYM_SOURCE_DATA or settings.is_given("SPLIT"):
        return settings.rows_path()
    return settings.rows_path("train")


def values(settings: Settings, task: Task) -> dict[str, str]:
    """What `${NAME}` can stand for in the file of arguments: {name: text}."""
    secret = [name for name, variable in variables.declared().items() if variable.kind == "secret"]
    texts = {name: text for name, text in settings.texts.items() if name not in secret}
    agent = shlex.join(["exec", *program.stage("session_client", python=str(settings.RELAX_PYTHON))])
    return texts | {
        "ROOT": str(ROOT),
        "MODEL_DIR": str(settings.MODEL_DIR),
        "EXP_DIR": str(settings.EXP_DIR),
        "AGENT_COMMAND": agent,
        "NEMO_GYM_URL": settings.gateway_urls[0],
        "GYM_URLS": ",".join(settings.GYM_URLS or []),
        "GATEWAY_TOKEN_FILE": TOKEN_FILE if settings.GATEWAY_TOKEN or settings.GATEWAY_TOKEN_FILE else "",
        "NEMO_GYM_NUM_ROLLOUT": str(task.rollouts),
        "NEMO_GYM_GLOBAL_BATCH_SIZE": str(task.global_batch),
    }


def read_arguments(path: Path, known: dict[str, str], tracking: bool = False) -> Arguments:
    """Read the file of arguments, in its order; `known` gives the texts of variables by name.

    The part `tracking` is left out unless it is asked for. Raises Failure with file and line.
    """
    try:
        tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror} (TRAIN_ARGUMENTS)") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        cause = " ".join(str(getattr(error, "problem", None) or error).split())[:200]
        raise Failure(f"{path}{f':{mark.line + 1}' if mark else ''}: not YAML: {cause}") from None
    parts = dict(_pairs(tree, path, str))
    if unknown := set(parts) - {"arguments", "tracking"} or {"arguments"} - set(parts):
        raise Failure(f"{path}: the parts are `arguments` and `tracking`; see to {', '.join(sorted(unknown))}")
    wanted = [parts["arguments"]] + ([parts["tracking"]] if tracking and "tracking" in parts else [])
    return [(flag, _texts(node, path, known)) for part in wanted for flag, node in _pairs(part, path, FLAG.fullmatch)]


def _pairs(node: yaml.Node | None, path: Path, check: Callable[[str], object]) -> Iterator[tuple[str, yaml.Node]]:
    """(key, value node) of a mapping, in order; each key stands once and passes `check`."""
    if not isinstance(node, yaml.MappingNode):
        raise Failure(f"{path}{_line(node)}: not a mapping of keys to values")
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen or not isinstance(key, yaml.ScalarNode) or not check(key.value):
            raise Failure(f"{path}{_line(key)}: {key.value!r} stands twice or is no flag without its dashes")
        seen.add(key.value)
        yield key.value, value


def _line(node: yaml.Node | None) -> str:
    return f":{node.start_mark.line + 1}" if node else ""


def _texts(node: yaml.Node, path: Path, known: dict[str, str]) -> list[str]:
    if isinstance(node, yaml.ScalarNode):
        return [_put_in(node, path, known)] if node.value else []
    if not isinstance(node, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in node.value):
        raise Failure(f"{path}{_line(node)}: neither a value nor a list of values")
    texts = [(item, _put_in(item, path, known)) for item in node.value]
    return [text for item, text in texts if not (text.endswith("=") and REFERENCE.search(item.value))]


def _put_in(node: yaml.Node, path: Path, known: dict[str, str]) -> str:
    for name in REFERENCE.findall(node.value):
        if name not in known:
            raise Failure(f"{path}{_line(node)}: ${{{name}}} is no variable that can stand here")
    return REFERENCE.sub(lambda match: known[match[1]], node.value)


def command_line(arguments: Iterable[tuple[str, list[str]]], token_file: Path | str = "") -> list[str]:
    """The arguments as words, --flag value ..., with the token's file put in."""
    words = (word for flag, texts in arguments for word in (f"--{flag}", *texts))
    return [word.replace(TOKEN_FILE, str(token_file)) for word in words]


def contradictions(arguments: Arguments, settings: Settings, task: Task) -> list[str]:
    """The inequalities between budgets that do not hold, a line each."""
    # check_numbers has refused a budget that is missing.
    number = {flag: _number(texts) or 0.0 for flag, texts in arguments}
    compared = [(left, number[left], sign, right, number[right]) for left, sign, right in BUDGETS]
    deadline_s, lease_s = settings.NEMO_GYM_DEADLINE_S, settings.NEMO_GYM_LEASE_S
    compared.append(("AGENT_TIMEOUT_S", number["agent-timeout"], ">", "NEMO_GYM_DEADLINE_S", deadline_s))
    compared.append(("NEMO_GYM_LEASE_S", lease_s, "<=", "NEMO_GYM_DEADLINE_S", deadline_s))
    faults = [
        f"{left} {a:g} {sign} {right} {b:g} does not hold"
        for left, a, sign, right, b in compared
        if not SIGNS[sign](a, b)
    ]
    whole = number["rollout-batch-size"] * number["n-samples-per-prompt"]
    if whole % number["global-batch-size"]:
        faults.append(
            f"global-batch-size {number['global-batch-size']:g} does not divide rollout-batch-size "
            f"{number['rollout-batch-size']:g} x n-samples-per-prompt {number['n-samples-per-prompt']:g} = {whole:g}"
        )
    if number["rollout-batch-size"] > task.count:
        faults.append(f"rollout-batch-size {task.batch} <= rows {task.count} does not hold")
    return faults


BUDGETS = (
    ("rollout-max-prompt-len", "<", "rollout-max-context-len"),
    ("rollout-max-response-len", "<=", "rollout-max-context-len"),
    ("max-tokens-per-gpu", ">=", "rollout-max-context-len"),
    ("log-probs-max-tokens-per-gpu", ">=", "rollout-max-context-len"),
)


def _number(texts: list[str]) -> float | None:
    try:
        return float(texts[0]) if len(texts) == 1 else None
    except ValueError:
        return None


def check_numbers(arguments: Arguments, path: Path) -> None:
    """Refuse a file of arguments that lacks a budget, or gives it no number above 0. Raises Failure."""
    numbers = {flag: _number(texts) for flag, texts in arguments}
    needed = {name for left, _, right in BUDGETS for name in (left, right)}
    needed |= {"rollout-batch-size", "n-samples-per-prompt", "global-batch-size", "num-rollout", "agent-timeout"}
    for flag in sorted(needed):
        if not (numbers.get(flag) or 0) > 0:
            raise Failure(f"{path}: {flag} is missing or no number above 0")


def gpus_asked(arguments: Arguments, path: Path) -> tuple[int, int]:
    """(GPUs in all, GPUs of the largest node) by `resource`; with `colocate` the roles share them. Raises Failure."""
    flags = dict(arguments)
    try:
        shapes = [(int(nodes), int(gpus)) for nodes, gpus in json.loads(flags["resource"][0]).values()]
        totals = [nodes * gpus for nodes, gpus in shapes]
        return (max if "colocate" in flags else sum)(totals), max(gpus for _, gpus in shapes)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError):
        raise Failure(f'{path}: resource is missing or not like {{"actor":[1,8],"rollout":[1,8]}}') from None


def describe(arguments: Arguments, settings: Settings, task: Task) -> list[tuple[str, str]]:
    """The budgets for the plan: [(name, text)]."""
    first = {flag: texts[0] for flag, texts in arguments if texts}
    lengths = "prompt {rollout-max-prompt-len}, answer {rollout-max-response-len}, history {rollout-max-context-len}"
    step = "{rollout-batch-size} rows x {n-samples-per-prompt} samples, {global-batch-size} samples a step"
    most = f"a Gateway runs WORKPLACE_ASSISTANT_MAX_CONCURRENCY={settings.WORKPLACE_ASSISTANT_MAX_CONCURRENCY}"
    wait, deadline_s = "the others wait within their deadline", settings.NEMO_GYM_DEADLINE_S
    lines = [
        ("rollouts", f"{first['num-rollout']} of {step.format_map(first)}; {task.total_samples} samples in all"),
        ("tokens", f"{lengths.format_map(first)}, on a GPU {first['max-tokens-per-gpu']}"),
        ("times", f"trial {deadline_s:g} s, lease {settings.NEMO_GYM_LEASE_S:g} s, agent {first['agent-timeout']} s"),
        ("concurrency", f"{task.batch * task.samples} samples at once; {most} of them, {wait}"),
    ]
    if task.samples == 1:
        lines.append(("note", "one sample a prompt has no advantage in GRPO: this proves the chain, it trains nothing"))
    return lines
