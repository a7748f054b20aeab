"""Arguments and budgets of the training job: against the contract, each line changed in each way, what is refused."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from common import settings as variables
from common.failure import Failure
from training import arguments, submit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "train" / "standin"))

from relax.entrypoints import contract  # noqa: E402 - the stand-in trainer's checkout is no package of ours

MODEL_ARGS = [word for flag, text in contract.MODEL_ARGS.items() for word in (f"--{flag}", text) if word]
PROMPTS = ["--prompt-data", "/exp/rows.jsonl"]
# What the contract lists for the driver, copied from it as it stands there.
CONTRACT = """
--resource {"actor":[1,8],"rollout":[1,8]} --colocate --max-staleness 0
--num-data-storage-units 1 --use-health-check
--hf-checkpoint /m/Qwen3-4B/ --ref-load /m/Qwen3-4B/
--megatron-to-hf-mode bridge --warm-hf-checkpoint-page-cache
--save /e/Qwen3-4B_mcore_8xgpu/ --save-interval 100
--input-key input --metadata-key metadata --rollout-shuffle
--use-agentic-rollout
--agent-timeout 660 --agentic-reasoning-parser qwen3 --agentic-tool-call-parser qwen
--num-rollout 32 --rollout-batch-size 1 --n-samples-per-prompt 4
--global-batch-size 4 --rollout-temperature 0.7
--rollout-max-prompt-len 8191 --rollout-max-context-len 8192
--rollout-max-response-len 2048
--tensor-model-parallel-size 8 --sequence-parallel
--pipeline-model-parallel-size 1 --context-parallel-size 1
--expert-model-parallel-size 1 --expert-tensor-parallel-size 1
--micro-batch-size 1 --use-dynamic-batch-size
--max-tokens-per-gpu 8192 --log-probs-max-tokens-per-gpu 8192
--log-probs-chunk-size 1024
--advantage-estimator grpo --kl-loss-coef 0.0 --entropy-coef 0.0
--eps-clip 0.2 --eps-clip-high 0.28 --use-tis
--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1
--adam-beta1 0.9 --adam-beta2 0.98
--rollout-num-gpus-per-engine 8 --sglang-mem-fraction-static 0.7
--sglang-cuda-graph-max-bs 4 --sglang-router-policy consistent_hashing
--skip-eval-before-train --attention-dropout 0.0 --hidden-dropout 0.0
--accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
--attention-backend flash
"""


def loaded(**environment):
    places = {"MODEL_DIR": "/m", "EXP_DIR": "/e", "GYM_HOST": "10.0.0.4"}
    return variables.load(environment=places | environment, dotenv=Path("/nonexistent/.env"))


def planned(count=32, path=None, **environment):
    settings = loaded(**environment)
    task = arguments.Task.of(settings, Path("/rows.jsonl"), count)
    source, known = path or settings.TRAIN_ARGUMENTS, arguments.values(settings, task)
    return arguments.read_arguments(source, known, bool(settings.TRAIN_PROJECT)), settings, task


def words(token_file="", **environment):
    return arguments.command_line(planned(**environment)[0], token_file)


def faults_of(given):
    return contract.argument_faults([*MODEL_ARGS, *given, *PROMPTS])[1]


# --- against the contract ------------------------------------------------------------------


def test_the_arguments_are_the_contracts_one_by_one():
    given = contract.parse(words())[0]
    # The contract's JSON stands without quotes for the shell.
    listed = contract.parse(CONTRACT.split())[0]
    assert given.pop("agent-command") == [f"exec /usr/bin/python3 {variables.ROOT}/scripts/session_client.py"]
    assert given.pop("agent-cwd") == [str(variables.ROOT)]
    pairs = dict(pair.split("=", 1) for pair in given.pop("agent-env"))
    assert pairs.keys() == contract.AGENT_ENV.keys()
    assert pairs["NEMO_GYM_URL"] == "http://10.0.0.4:29000"
    assert given == listed


def test_the_standin_takes_them_and_tracking_too():
    assert faults_of(words()) == []
    tracked = words(TRAIN_PROJECT="p q", TRAIN_EXPERIMENT="e")
    assert faults_of(tracked) == []
    assert tracked[-6:-4] == ["--use-clearml", "--use-metrics-service"]
    assert tracked[-4:] == ["--tb-project-name", "p q", "--tb-experiment-name", "e"]


def test_the_standin_misses_the_rows_and_knows_no_flag_twice_and_no_other():
    assert contract.argument_faults([*MODEL_ARGS, *words()])[1] == ["--prompt-data is missing"]
    assert contract.argument_faults([*MODEL_ARGS, *words(), "--prompt-data", "x"])[1]
    for given in (["--lr", "1e-6"], ["--debug"], ["--seed", "1"]):
        assert faults_of([*words(), *given])


@pytest.mark.parametrize("flag", contract.MODEL_ARGS)
def test_the_standin_misses_each_part_of_the_models_shape(flag):
    given = contract.parse(MODEL_ARGS)[0]
    kept = arguments.command_line((name, texts) for name, texts in given.items() if name != flag)
    assert contract.argument_faults([*kept, *words(), *PROMPTS])[1]


# --- the file of arguments -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arguments:\n  lr: 1\n  lr: 2\n", ":3: 'lr' stands twice"),
        ("arguments:\n  --lr: 1\n", ":2: '--lr' stands twice or is no flag"),
        ("arguments:\n  lr: ${NOPE}\n", ":2: ${NOPE} is no variable"),
        ("arguments:\n  lr: ${GATEWAY_TOKEN}\n", ":2: ${GATEWAY_TOKEN} is no variable"),
        ("arguments:\n  lr: {a: 1}\n", ":2: neither a value nor a list"),
        ("arguments: [1]\n", ":1: not a mapping"),
        ("arguments: [\n", "not YAML"),
        ("lr: 1\n", "the parts are `arguments` and `tracking`; see to lr"),
        ("", "not a mapping"),
        (None, "TRAIN_ARGUMENTS"),
    ],
)
def test_a_broken_file_is_refused_by_line(tmp_path, text, message):
    path = tmp_path / "a.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Failure) as refused:
        planned(path=path, GATEWAY_TOKEN="secret")
    assert message in str(refused.value) and str(path) in str(refused.value)


def test_scalars_come_as_they_are_written_and_a_missing_budget_is_named(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "arguments:\n  a: 1e-6\n  b: 0.0\n  c: yes\n  d: 010\n  e:\n  f: [x, '${GYM_URLS}', 'G=${GYM_URLS}']\n"
    )
    given, _, _ = planned(path=path)
    assert given == [("a", ["1e-6"]), ("b", ["0.0"]), ("c", ["yes"]), ("d", ["010"]), ("e", []), ("f", ["x", ""])]
    with pytest.raises(Failure, match="agent-timeout is missing or no number above 0"):
        arguments.check_numbers(given, path)


def test_several_gateways_and_a_token_file_reach_the_agent():
    given = words("/run/token", GYM_URLS="http://10.0.0.4:1,http://10.0.0.5:1", GATEWAY_TOKEN="never-show-me")
    pairs = dict(pair.split("=", 1) for pair in contract.parse(given)[0]["agent-env"])
    assert pairs["GYM_URLS"] == "http://10.0.0.4:1,http://10.0.0.5:1"
    assert pairs["NEMO_GYM_URL"] == "http://10.0.0.4:1" and pairs["GATEWAY_TOKEN_FILE"] == "/run/token"
    assert "never-show-me" not in str(given)


# --- budgets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"NEMO_GYM_MAX_PROMPT_LEN": "8192"}, "rollout-max-prompt-len 8192 < rollout-max-context-len 8192"),
        ({"NEMO_GYM_MAX_RESPONSE_LEN": "8193"}, "rollout-max-response-len 8193 <= rollout-max-context-len 8192"),
        ({"NEMO_GYM_MAX_TOKENS_PER_GPU": "8191"}, "max-tokens-per-gpu 8191 >= rollout-max-context-len 8192"),
        ({"NEMO_GYM_GLOBAL_BATCH_SIZE": "3"}, "global-batch-size 3 does not divide rollout-batch-size 1 x n-samples"),
        ({"NEMO_GYM_GLOBAL_BATCH_SIZE": "8"}, "global-batch-size 8 does not divide"),
        ({"NEMO_GYM_ROLLOUT_BATCH_SIZE": "33"}, "rollout-batch-size 33 <= rows 32"),
        ({"AGENT_TIMEOUT_S": "600"}, "AGENT_TIMEOUT_S 600 > NEMO_GYM_DEADLINE_S 600"),
        ({"NEMO_GYM_DEADLINE_S": "50"}, "NEMO_GYM_LEASE_S 60 <= NEMO_GYM_DEADLINE_S 50"),
        ({}, None),
        ({"NEMO_GYM_GLOBAL_BATCH_SIZE": "2"}, None),
        ({"NEMO_GYM_ROLLOUT_BATCH_SIZE": "8", "NEMO_GYM_GLOBAL_BATCH_SIZE": "32"}, None),
        ({"NEMO_GYM_MAX_RESPONSE_LEN": "8192"}, None),
    ],
)
def test_a_contradiction_is_named_by_its_inequality(changes, message):
    faults = arguments.contradictions(*planned(**changes))
    assert any(line.startswith(message) for line in faults) if message else not faults, faults


def test_rollouts_cover_the_rows_once_unless_told_and_one_sample_a_prompt_trains_nothing():
    assert planned(count=32)[2].rollouts == 32
    assert planned(count=33, NEMO_GYM_ROLLOUT_BATCH_SIZE="8")[2].rollouts == 5
    assert planned(NEMO_GYM_NUM_ROLLOUT="3")[2].total_samples == 12
    described = arguments.describe(*planned(NEMO_GYM_N_SAMPLES_PER_PROMPT="1"))
    assert any("it trains nothing" in text for _, text in described)


def test_rows_are_those_of_train_unless_a_split_is_given():
    assert arguments.rows_path(loaded()).name == "workplace_assistant_train.jsonl"
    assert arguments.rows_path(loaded(SPLIT="example")).name == "workplace_assistant_example.jsonl"
    assert arguments.rows_path(loaded(NEMO_GYM_SOURCE_DATA="/x.jsonl")) == Path("/x.jsonl")


def test_gpus_asked():
    path, roles = Path("a.yaml"), ("resource", ['{"actor":[1,8],"rollout":[1,8]}'])
    assert arguments.gpus_asked([roles], path) == (16, 8)
    assert arguments.gpus_asked([roles, ("colocate", [])], path) == (8, 8)
    assert arguments.gpus_asked([("resource", ['{"actor":[2,8]}'])], path) == (16, 8)
    for text in ("[1]", "{"):
        with pytest.raises(Failure, match="resource is missing or not like"):
            arguments.gpus_asked([("resource", [text])], path)


# --- each line changed in each way it can be wrong -----------------------------------------

LINE = re.compile(r"  (?:  - (?P<item>\w+)=|(?P<flag>[a-z0-9-]+):) ?(?P<value>.*)")
TOKEN_FILE = "/run/token"
ENVIRONMENT = {
    "GYM_URLS": "http://10.0.0.4:29000,http://10.0.0.5:29000",
    "GATEWAY_TOKEN": "never-show-me",
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


def standin_faults(path):
    """What the stand-in says of a job with this file of arguments."""
    given, settings, _ = planned(path=path, **ENVIRONMENT)
    job = submit.job_variables(settings, TOKEN_FILE) | {"STANDIN_EXPECTED": json.dumps(EXPECTED)}
    parsed, faults = contract.argument_faults([*MODEL_ARGS, *arguments.command_line(given, TOKEN_FILE), *PROMPTS])
    return faults + contract.agreement_faults(parsed, job)


def changed(line):
    """The ways to get one line wrong: {kind: line, or None for none}."""
    match = LINE.match(line)
    if not match or match["flag"] == "agent-env":
        return {}
    name, value = match["item"] or match["flag"], match["value"]
    ways = {"left out": None, "another name": line.replace(name, f"{name}s", 1)}
    if match["item"]:
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
    lines, names = text.splitlines(), sorted(set(re.findall(r"\$\{(\w+)\}", text)))
    for index, line in enumerate(lines):
        for kind, new in (changed(line) | swapped(line, names)).items():
            put_in = [] if new is None else [new]
            yield index + 1, kind, "\n".join([*lines[:index], *put_in, *lines[index + 1 :]]) + "\n"


def test_every_change_of_every_line_is_seen(tmp_path, monkeypatch):
    # The same reader in C, ten times as fast.
    monkeypatch.setattr(yaml, "SafeLoader", yaml.CSafeLoader)
    source, path = loaded().TRAIN_ARGUMENTS, tmp_path / "a.yaml"
    assert standin_faults(source) == []
    text, missed, touched = source.read_text(), [], set()
    for number, kind, mutant in mutations(text):
        path.write_text(mutant)
        touched.add(number)
        try:
            if not standin_faults(path):
                missed.append(f"line {number}: {kind}")
        except Failure:
            continue
    assert not missed
    flags = [line for line in text.splitlines() if LINE.match(line)]
    assert len(touched) == len(flags) - 1, "all but the list's own line"


# --- what the stand-in sees of the job's surroundings --------------------------------------

SURROUNDINGS = {"PYTHONPATH": "/relax:/opt/Megatron-LM", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "MASTER_ADDR": "10.0.0.5"}
SURROUNDINGS |= {"STANDIN_PYTHON": "/usr/bin/python3"}


@pytest.mark.parametrize(
    ("changes", "runtime_env", "message"),
    [
        ({"PYTHONPATH": "/opt/Megatron-LM"}, {}, "the checkout is not on PYTHONPATH"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": ""}, {}, "CUDA_DEVICE_MAX_CONNECTIONS of the entrypoint's runtime env"),
        ({"MASTER_ADDR": None}, {}, "MASTER_ADDR of the entrypoint's runtime environment is lost"),
        ({}, {"py_executable": "/usr/bin/python4"}, "py_executable is /usr/bin/python4"),
        ({}, {"py_executable": None}, "py_executable is None"),
        ({}, {"working_dir": "/clone"}, "the job was given a working_dir"),
        ({"GATEWAY_TOKEN": "x"}, {}, "GATEWAY_TOKEN is in the job's variables"),
        ({"RAY_NO_WAIT": "1"}, {}, "RAY_NO_WAIT is in the job's variables"),
        ({}, {}, None),
    ],
)
def test_the_standin_sees_a_runtime_environment_that_is_wrong(changes, runtime_env, message):
    given = {name: text for name, text in (SURROUNDINGS | changes).items() if text is not None}
    faults = contract.environment_faults(given, "/relax", {"py_executable": "/usr/bin/python3"} | runtime_env)
    assert [fault.startswith(message) for fault in faults] == [True] if message else not faults
