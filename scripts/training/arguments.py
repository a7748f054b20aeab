"""What a training job is asked to do: the trainer's arguments from one YAML file, and budgets that agree.

Pure: files are read, nothing is started or asked. Guarantees: the arguments are exactly what the
file says, each scalar as it is written there, variables put in by name; a key twice, an unknown
variable or a value of another shape is refused with file and line; no secret can be put in.
`contradictions` names each inequality between budgets that does not hold. It does not know which
flags the trainer has: the trainer refuses a wrong one, and the tests' stand-in does.

Runs under the trainer's Python too: PyYAML and requests come with Ray.
"""

import json
import re
import shlex

import yaml

from common import program
from common import settings as variables
from common.failure import Failure
from common.settings import ROOT

MODEL_NAME = "Qwen3-4B"
REFERENCE = re.compile(r"\$\{(\w+)\}")
FLAG = re.compile(r"[a-z0-9][a-z0-9-]*")


class Task:
    """The rows to roll out and what follows from their number."""

    def __init__(self, settings, path, count):
        self.path, self.count = path, count
        self.batch, self.samples = settings.NEMO_GYM_ROLLOUT_BATCH_SIZE, settings.NEMO_GYM_N_SAMPLES_PER_PROMPT
        self.rollouts = settings.NEMO_GYM_NUM_ROLLOUT or -(-count // self.batch)
        self.global_batch = settings.NEMO_GYM_GLOBAL_BATCH_SIZE or self.batch * self.samples

    @property
    def total_samples(self):
        return self.rollouts * self.batch * self.samples


def rows_path(settings):
    """The rows that training reads: NEMO_GYM_SOURCE_DATA, or those of SPLIT, which is train unless it is set."""
    if settings.NEMO_GYM_SOURCE_DATA or settings.is_given("SPLIT"):
        return settings.rows_path()
    return settings.rows_path("train")


def values(settings, task, token_file=None):
    """What `${NAME}` can stand for in the file of arguments: {name: text}."""
    secret = [name for name, variable in variables.declared().items() if variable.kind == "secret"]
    texts = {name: text for name, text in settings.texts.items() if name not in secret}
    agent = shlex.join(["exec", *program.stage("session_client", python=str(settings.RELAX_PYTHON))])
    urls = ",".join(settings.GYM_URLS or [])
    return texts | {
        "ROOT": str(ROOT),
        "MODEL_DIR": str(settings.MODEL_DIR),
        "EXP_DIR": str(settings.EXP_DIR),
        "AGENT_COMMAND": agent,
        "NEMO_GYM_URL": settings.gateway_urls[0],
        "GYM_URLS": urls,
        "GATEWAY_TOKEN_FILE": str(token_file or settings.GATEWAY_TOKEN_FILE or ""),
        "NEMO_GYM_NUM_ROLLOUT": str(task.rollouts),
        "NEMO_GYM_GLOBAL_BATCH_SIZE": str(task.global_batch),
    }


def read_arguments(path, known, tracking=False):
    """Read the file of arguments: [(flag, [values])] in its order.

    `known` gives the texts of variables by name; the part `tracking` is left out unless asked
    for. Raises Failure with file and line.
    """
    try:
        tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror} (TRAIN_ARGUMENTS)") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        raise Failure(f"{path}{f':{mark.line + 1}' if mark else ''}: not YAML: {_cause(error)}") from None
    parts = dict(_pairs(tree, path, str))
    if unknown := set(parts) - {"arguments", "tracking"} or {"arguments"} - set(parts):
        raise Failure(f"{path}: the parts are `arguments` and `tracking`; see to {', '.join(sorted(unknown))}")
    wanted = [parts["arguments"]] + ([parts["tracking"]] if tracking and "tracking" in parts else [])
    return [(flag, _texts(node, path, known)) for part in wanted for flag, node in _pairs(part, path, _flag)]


def _cause(error):
    return " ".join(str(getattr(error, "problem", None) or error).split())[:200]


def _pairs(node, path, check):
    """(key, value node) of a mapping, in order; each key once and as `check` wants it."""
    if not isinstance(node, yaml.MappingNode):
        raise Failure(f"{path}{_line(node)}: not a mapping of keys to values")
    seen = set()
    for key, value in node.value:
        if key.value in seen or not isinstance(key, yaml.ScalarNode) or not check(key.value):
            raise Failure(f"{path}{_line(key)}: {key.value!r} stands twice or is no flag without its dashes")
        seen.add(key.value)
        yield key.value, value


def _flag(text):
    return FLAG.fullmatch(text)


def _line(node):
    return f":{node.start_mark.line + 1}" if node else ""


def _texts(node, path, known):
    if isinstance(node, yaml.ScalarNode):
        return [_put_in(node, path, known)] if node.value else []
    if not isinstance(node, yaml.SequenceNode) or not all(isinstance(item, yaml.ScalarNode) for item in node.value):
        raise Failure(f"{path}{_line(node)}: neither a value nor a list of values")
    texts = [(item, _put_in(item, path, known)) for item in node.value]
    return [text for item, text in texts if not (text.endswith("=") and REFERENCE.search(item.value))]


def _put_in(node, path, known):
    for name in REFERENCE.findall(node.value):
        if name not in known:
            raise Failure(f"{path}{_line(node)}: ${{{name}}} is no variable that can stand here")
    return REFERENCE.sub(lambda match: known[match[1]], node.value)


def command_line(arguments):
    """The arguments as words: --flag value ..."""
    return [word for flag, texts in arguments for word in (f"--{flag}", *texts)]


def contradictions(arguments, settings, task):
    """The inequalities between budgets that do not hold, a line each."""
    number = {flag: _number(texts) for flag, texts in arguments}
    faults = [line for left, sign, right in BUDGETS if (line := _compare(number, left, sign, right))]
    whole = number["rollout-batch-size"] * number["n-samples-per-prompt"]
    if whole % number["global-batch-size"]:
        faults.append(
            f"global-batch-size {number['global-batch-size']:g} does not divide rollout-batch-size "
            f"{number['rollout-batch-size']:g} x n-samples-per-prompt {number['n-samples-per-prompt']:g} = {whole:g}"
        )
    if number["rollout-batch-size"] > task.count:
        faults.append(f"rollout-batch-size {task.batch} <= rows {task.count} does not hold")
    faults += _time_faults(number["agent-timeout"], settings)
    return faults


BUDGETS = (
    ("rollout-max-prompt-len", "<", "rollout-max-context-len"),
    ("rollout-max-response-len", "<=", "rollout-max-context-len"),
    ("max-tokens-per-gpu", ">=", "rollout-max-context-len"),
    ("log-probs-max-tokens-per-gpu", ">=", "rollout-max-context-len"),
)


def _compare(number, left, sign, right):
    a, b = number[left], number[right]
    holds = {"<": a < b, "<=": a <= b, ">=": a >= b}[sign]
    return None if holds else f"{left} {a:g} {sign} {right} {b:g} does not hold"


def _time_faults(agent_timeout, settings):
    deadline, lease = settings.NEMO_GYM_DEADLINE_S, settings.NEMO_GYM_LEASE_S
    faults = []
    if not agent_timeout > deadline:
        faults.append(f"AGENT_TIMEOUT_S {agent_timeout:g} > NEMO_GYM_DEADLINE_S {deadline:g} does not hold")
    if lease > deadline:
        faults.append(f"NEMO_GYM_LEASE_S {lease:g} <= NEMO_GYM_DEADLINE_S {deadline:g} does not hold")
    return faults


def _number(texts):
    try:
        return float(texts[0]) if len(texts) == 1 else None
    except ValueError:
        return None


def check_numbers(arguments, path):
    """Refuse a file of arguments that lacks a budget or gives it no number above 0. Raises Failure."""
    found = {flag: _number(texts) for flag, texts in arguments}
    needed = {name for left, _, right in BUDGETS for name in (left, right)}
    needed |= {"rollout-batch-size", "n-samples-per-prompt", "global-batch-size", "num-rollout", "agent-timeout"}
    for flag in sorted(needed):
        if not (found.get(flag) or 0) > 0:
            raise Failure(f"{path}: {flag} is missing or no number above 0")


def gpus_asked(arguments, path):
    """(GPUs in all, most GPUs one node must have) by `resource`; roles share them with `colocate`. Raises Failure."""
    flags = dict(arguments)
    try:
        shapes = [(int(nodes), int(gpus)) for nodes, gpus in json.loads(flags["resource"][0]).values()]
        totals = [nodes * gpus for nodes, gpus in shapes]
        return (max if "colocate" in flags else sum)(totals), max(gpus for _, gpus in shapes)
    except (KeyError, IndexError, ValueError, TypeError, AttributeError):
        raise Failure(f'{path}: resource is missing or not like {{"actor":[1,8],"rollout":[1,8]}}') from None


def describe(arguments, settings, task):
    """The budgets for the plan: [(name, text)]."""
    first = {flag: texts[0] for flag, texts in arguments if texts}
    lengths = "prompt {rollout-max-prompt-len}, answer {rollout-max-response-len}, history {rollout-max-context-len}"
    step = "{rollout-batch-size} rows x {n-samples-per-prompt} samples, {global-batch-size} samples a step"
    found = [
        ("rollouts", f"{first['num-rollout']} of {step.format_map(first)}; {task.total_samples} samples in all"),
        ("tokens", f"{lengths.format_map(first)}, on a GPU {first['max-tokens-per-gpu']}"),
        (
            "times",
            f"trial {settings.NEMO_GYM_DEADLINE_S:g} s, lease {settings.NEMO_GYM_LEASE_S:g} s, "
            f"agent {first['agent-timeout']} s",
        ),
        (
            "concurrency",
            f"{task.batch * task.samples} samples at once; a Gateway runs WORKPLACE_ASSISTANT_MAX_CONCURRENCY="
            f"{settings.WORKPLACE_ASSISTANT_MAX_CONCURRENCY} of them, the others wait within their deadline",
        ),
    ]
    if task.samples == 1:
        found.append(("note", "one sample a prompt has no advantage in GRPO: this proves the chain, it trains nothing"))
    return found
