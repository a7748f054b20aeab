"""The contract of the driver: every argument with what its value must be, every variable of the job.

A value is a pattern for the whole text, or None for a flag without one. What is not here must
not be given, and what is here must be, once. What a pattern cannot know, the variables tell: those of
the job, and STANDIN_EXPECTED ({flag: value}), which the stand-in entrypoint makes from the user's.
"""

import json
import re
import shlex
from pathlib import Path

NUMBER = r"[1-9]\d*"
MODEL = r"(?P<models>/.*)/Qwen3-4B/"
ARGUMENTS = {
    "resource": re.escape('{"actor":[1,8],"rollout":[1,8]}'),
    "colocate": None,
    "max-staleness": "0",
    "num-data-storage-units": "1",
    "use-health-check": None,
    "hf-checkpoint": MODEL,
    "ref-load": MODEL,
    "megatron-to-hf-mode": "bridge",
    "warm-hf-checkpoint-page-cache": None,
    "save": "/.*/Qwen3-4B_mcore_8xgpu/",
    "save-interval": "100",
    "prompt-data": "/.*",
    "input-key": "input",
    "metadata-key": "metadata",
    "rollout-shuffle": None,
    "use-agentic-rollout": None,
    "agent-command": "exec /.*python3? /.*/scripts/session_client.py",
    "agent-cwd": "/.*",
    "agent-timeout": "660",
    "agentic-reasoning-parser": "qwen3",
    "agentic-tool-call-parser": "qwen",
    "num-rollout": NUMBER,
    "rollout-batch-size": NUMBER,
    "n-samples-per-prompt": NUMBER,
    "global-batch-size": NUMBER,
    "rollout-temperature": "0.7",
    "rollout-max-prompt-len": "8191",
    "rollout-max-context-len": "8192",
    "rollout-max-response-len": "2048",
    "tensor-model-parallel-size": "8",
    "sequence-parallel": None,
    "pipeline-model-parallel-size": "1",
    "context-parallel-size": "1",
    "expert-model-parallel-size": "1",
    "expert-tensor-parallel-size": "1",
    "micro-batch-size": "1",
    "use-dynamic-batch-size": None,
    "max-tokens-per-gpu": "8192",
    "log-probs-max-tokens-per-gpu": "8192",
    "log-probs-chunk-size": "1024",
    "advantage-estimator": "grpo",
    "kl-loss-coef": "0.0",
    "entropy-coef": "0.0",
    "eps-clip": "0.2",
    "eps-clip-high": "0.28",
    "use-tis": None,
    "optimizer": "adam",
    "lr": "1e-6",
    "lr-decay-style": "constant",
    "weight-decay": "0.1",
    "adam-beta1": "0.9",
    "adam-beta2": "0.98",
    "rollout-num-gpus-per-engine": "8",
    "sglang-mem-fraction-static": "0.7",
    "sglang-cuda-graph-max-bs": "4",
    "sglang-router-policy": "consistent_hashing",
    "skip-eval-before-train": None,
    "attention-dropout": "0.0",
    "hidden-dropout": "0.0",
    "accumulate-allreduce-grads-in-fp32": None,
    "attention-softmax-in-fp32": None,
    "attention-backend": "flash",
}
TRACKING = {"use-clearml": None, "use-metrics-service": None, "tb-project-name": ".+", "tb-experiment-name": ".+"}
# What qwen3-4B.sh gives.
MODEL_ARGS = {
    "swiglu": None,
    "num-layers": "36",
    "hidden-size": "2560",
    "ffn-hidden-size": "9728",
    "num-attention-heads": "32",
    "group-query-attention": None,
    "num-query-groups": "8",
}
AGENT_ENV = {
    "NEMO_GYM_URL": r"http://[\d.]+:\d+",
    "NEMO_GYM_ENVIRONMENT": "workplace_assistant",
    "NEMO_GYM_CONFIG": "workplace-assistant-v1",
    "NEMO_GYM_MODEL": "model",
    "NEMO_GYM_INTERRUPT_POLICY": "protected",
    "NEMO_GYM_DEADLINE_S": "600",
    "NEMO_GYM_LEASE_S": "60",
    "NEMO_GYM_STARTUP_TIMEOUT_S": r"\d+",
    "NEMO_GYM_REQUEST_TIMEOUT_S": r"\d+",
    "NEMO_GYM_MAX_RETRIES": r"\d+",
    "NEMO_GYM_RETRY_BACKOFF_S": r"[\d.]+",
}
# Ours alone: which of several Gateways, and where its token lies.
AGENT_ENV_MORE = {"GYM_URLS": r"http://[^ ]+", "GATEWAY_TOKEN_FILE": "/.*/token"}


def parse(words):
    """Split a command line: {flag: [values]}. A flag twice is an error."""
    found, flag, faults = {}, None, []
    for word in words:
        # A number below 0 is a value.
        if word.startswith("--"):
            flag = word[2:]
            faults += [f"--{flag} stands twice"] if flag in found else []
            found[flag] = []
        elif flag is None:
            faults.append(f"{word!r} belongs to no flag")
        else:
            found[flag].append(word)
    return found, faults


def argument_faults(words):
    """What is wrong with the driver's arguments: (parsed, a line each)."""
    found, faults = parse(words)
    pairs = dict(pair.partition("=")[::2] for pair in found.pop("agent-env", []))
    known = ARGUMENTS | MODEL_ARGS | (TRACKING if found.keys() & TRACKING.keys() else {})
    faults += [f"--{flag} is missing" for flag in known if flag not in found]
    faults += [f"--{flag} is not known" for flag in found if flag not in known]
    faults += [fault for flag in known if flag in found for fault in _value_faults(flag, known[flag], found[flag])]
    faults += _agent_faults(pairs)
    return found | {"agent-env": pairs}, faults + _sum_faults(found)


def _value_faults(flag, pattern, values):
    if pattern is None:
        return [f"--{flag} takes no value"] if values else []
    if len(values) != 1 or not re.fullmatch(pattern, values[0]):
        return [f"--{flag} {shlex.join(values)} is not {pattern}"]
    return []


def _agent_faults(pairs):
    known = AGENT_ENV | {name: pattern for name, pattern in AGENT_ENV_MORE.items() if name in pairs}
    faults = [f"--agent-env {name} is missing" for name in known if name not in pairs]
    faults += [f"--agent-env {name} is not known" for name in pairs if name not in known]
    matches = {name: re.fullmatch(known[name], value) for name, value in pairs.items() if name in known}
    return faults + [f"--agent-env {name}={pairs[name]} does not fit" for name, match in matches.items() if not match]


def _sum_faults(found):
    try:
        number = {flag: int(values[0]) for flag, values in found.items() if values and values[0].isdigit()}
        whole = number["rollout-batch-size"] * number["n-samples-per-prompt"]
        fits = whole % number["global-batch-size"] == 0
        fits &= number["rollout-max-prompt-len"] < number["rollout-max-context-len"]
        fits &= number["rollout-max-response-len"] <= number["rollout-max-context-len"] <= number["max-tokens-per-gpu"]
    except KeyError:
        return []
    return [] if fits else ["the budgets do not agree"]


def agreement_faults(arguments, environment):
    """Where the driver's (parsed) arguments say other than the variables of its job, a line each."""
    faults, pairs = [], arguments["agent-env"]
    for name in AGENT_ENV | AGENT_ENV_MORE:
        if pairs.get(name, "") != environment.get(name, ""):
            faults.append(f"--agent-env {name} is not the {name} of the job's variables")
    expected = json.loads(environment.get("STANDIN_EXPECTED", "{}"))
    for flag, text in expected.items():
        if arguments.get(flag) != [text]:
            faults.append(f"--{flag} {shlex.join(arguments.get(flag, []))} is not the {text} that was asked for")
    client = Path(*arguments.get("agent-cwd", []), "scripts", "session_client.py")
    command = " ".join(arguments.get("agent-command", []))
    if not client.is_file() or not command.endswith(f" {client}"):
        faults.append(f"--agent-command does not start {client}, which has to be in --agent-cwd")
    return faults


def environment_faults(environment, root, runtime_env):
    """What is wrong with the variables and the runtime environment the driver was started in, a line each."""
    faults = []
    if str(root) not in environment.get("PYTHONPATH", "").split(":"):
        faults.append("the checkout is not on PYTHONPATH")
    for name, value in (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("MASTER_ADDR", None)):
        if environment.get(name) != (value or environment.get(name)) or name not in environment:
            faults.append(f"{name} of the entrypoint's runtime environment is lost")
    python, asked = environment.get("STANDIN_PYTHON"), runtime_env.get("py_executable")
    if asked != python:
        faults.append(f"py_executable is {asked}, and RELAX_PYTHON {python}")
    faults += [f"the job was given a {name}" for name in ("working_dir", "py_modules") if runtime_env.get(name)]
    faults += [
        f"{name} is in the job's variables" for name in ("GATEWAY_TOKEN", "RAY_NO_WAIT") if environment.get(name)
    ]
    return faults
