"""Arguments and budgets of the training job: the file against the contract, word by word, and what is refused."""

import shlex
import sys
from pathlib import Path

import pytest
import yaml

from common import settings as variables
from common.failure import Failure
from training import arguments as train_plan
from training import submit

STANDIN = Path(__file__).resolve().parents[2] / "train" / "standin"
sys.path.insert(0, str(STANDIN))

from relax.entrypoints import contract  # noqa: E402 - the stand-in trainer's checkout is no package of ours

MODEL_ARGS = ["--swiglu", "--num-layers", "36", "--hidden-size", "2560", "--ffn-hidden-size", "9728"]
MODEL_ARGS += ["--num-attention-heads", "32", "--group-query-attention", "--num-query-groups", "8"]
PROMPTS = ["--prompt-data", "/exp/rows"]
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


def planned(count=32, token_file=None, path=None, **environment):
    settings = loaded(**environment)
    task = train_plan.Task(settings, Path("/rows.jsonl"), count)
    known = train_plan.values(settings, task, token_file)
    source = path or settings.TRAIN_ARGUMENTS
    return train_plan.read_arguments(source, known, bool(settings.TRAIN_PROJECT)), settings, task


def words(**environment):
    return train_plan.command_line(planned(**environment)[0])


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
    assert tracked[-6:] == ["--use-clearml", "--use-metrics-service"] + [
        "--tb-project-name", "p q", "--tb-experiment-name", "e",
    ]  # fmt: skip


def test_the_standin_misses_the_rows():
    assert contract.argument_faults([*MODEL_ARGS, *words()])[1] == ["--prompt-data is missing"]
    assert contract.argument_faults([*MODEL_ARGS, *words(), "--prompt-data", "x"])[1]


@pytest.mark.parametrize("flag", contract.MODEL_ARGS)
def test_the_standin_misses_each_part_of_the_models_shape(flag):
    given = contract.parse(MODEL_ARGS)[0]
    kept = train_plan.command_line((name, texts) for name, texts in given.items() if name != flag)
    assert contract.argument_faults([*kept, *words(), *PROMPTS])[1]


@pytest.mark.parametrize("given", [["--lr", "1e-6"], ["--debug"], ["--seed", "1"]])
def test_the_standin_knows_no_flag_twice_and_no_other(given):
    assert faults_of([*words(), *given])


# --- the file of arguments -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
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
    ],
)
def test_a_broken_file_is_refused_by_line(tmp_path, text, said):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(Failure) as refused:
        planned(path=path, GATEWAY_TOKEN="secret")
    assert said in str(refused.value) and str(path) in str(refused.value)


def test_scalars_come_as_they_are_written(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "arguments:\n  a: 1e-6\n  b: 0.0\n  c: yes\n  d: 010\n  e:\n  f: [x, '${GYM_URLS}', 'G=${GYM_URLS}']\n"
    )
    arguments, _, _ = planned(path=path)
    assert arguments == [("a", ["1e-6"]), ("b", ["0.0"]), ("c", ["yes"]), ("d", ["010"]), ("e", []), ("f", ["x", ""])]


def test_a_missing_file_and_a_missing_budget_are_named(tmp_path):
    with pytest.raises(Failure, match="TRAIN_ARGUMENTS"):
        planned(path=tmp_path / "none.yaml")
    path = tmp_path / "a.yaml"
    path.write_text("arguments:\n  num-rollout: 1\n")
    with pytest.raises(Failure, match="agent-timeout is missing or no number above 0"):
        train_plan.check_numbers(planned(path=path)[0], path)


def test_several_gateways_and_a_token_file_reach_the_agent():
    given = contract.parse(words(GYM_URLS="http://10.0.0.4:1,http://10.0.0.5:1", token_file="/run/token"))[0]
    pairs = dict(pair.split("=", 1) for pair in given["agent-env"])
    assert pairs["GYM_URLS"] == "http://10.0.0.4:1,http://10.0.0.5:1"
    assert pairs["NEMO_GYM_URL"] == "http://10.0.0.4:1" and pairs["GATEWAY_TOKEN_FILE"] == "/run/token"


# --- budgets -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"NEMO_GYM_MAX_PROMPT_LEN": "8192"}, "rollout-max-prompt-len 8192 < rollout-max-context-len 8192"),
        ({"NEMO_GYM_MAX_RESPONSE_LEN": "8193"}, "rollout-max-response-len 8193 <= rollout-max-context-len 8192"),
        ({"NEMO_GYM_MAX_TOKENS_PER_GPU": "8191"}, "max-tokens-per-gpu 8191 >= rollout-max-context-len 8192"),
        ({"NEMO_GYM_GLOBAL_BATCH_SIZE": "3"}, "global-batch-size 3 does not divide rollout-batch-size 1 x n-samples"),
        ({"NEMO_GYM_GLOBAL_BATCH_SIZE": "8"}, "global-batch-size 8 does not divide"),
        ({"NEMO_GYM_ROLLOUT_BATCH_SIZE": "33"}, "rollout-batch-size 33 <= rows 32"),
        ({"AGENT_TIMEOUT_S": "600"}, "AGENT_TIMEOUT_S 600 > NEMO_GYM_DEADLINE_S 600"),
        ({"NEMO_GYM_DEADLINE_S": "50"}, "NEMO_GYM_LEASE_S 60 <= NEMO_GYM_DEADLINE_S 50"),
    ],
)
def test_a_contradiction_is_named_by_its_inequality(changes, said):
    found = train_plan.contradictions(*planned(**changes))
    assert any(line.startswith(said) for line in found), found


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"NEMO_GYM_GLOBAL_BATCH_SIZE": "2"},
        {"NEMO_GYM_ROLLOUT_BATCH_SIZE": "8", "NEMO_GYM_GLOBAL_BATCH_SIZE": "32"},
        {"NEMO_GYM_MAX_RESPONSE_LEN": "8192"},
    ],
)
def test_budgets_that_agree_pass(changes):
    assert train_plan.contradictions(*planned(**changes)) == []


def test_rollouts_cover_the_rows_once_unless_told():
    assert planned(count=32)[2].rollouts == 32
    assert planned(count=33, NEMO_GYM_ROLLOUT_BATCH_SIZE="8")[2].rollouts == 5
    assert planned(NEMO_GYM_NUM_ROLLOUT="3")[2].total_samples == 12


def test_one_sample_a_prompt_is_said_to_train_nothing():
    described = train_plan.describe(*planned(NEMO_GYM_N_SAMPLES_PER_PROMPT="1"))
    assert any("it trains nothing" in text for _, text in described)


def test_rows_are_those_of_train_unless_a_split_is_given():
    assert train_plan.rows_path(loaded()).name == "workplace_assistant_train.jsonl"
    assert train_plan.rows_path(loaded(SPLIT="example")).name == "workplace_assistant_example.jsonl"
    assert train_plan.rows_path(loaded(NEMO_GYM_SOURCE_DATA="/x.jsonl")) == Path("/x.jsonl")


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ('{"actor":[1,8],"rollout":[1,8]}', (16, 8)),
        ('{"actor":[2,8]}', (16, 8)),
        ("[1]", None),
        ("{", None),
    ],
)
def test_gpus_asked(text, asked):
    path = Path("a.yaml")
    if asked is None:
        with pytest.raises(Failure, match="resource is missing or not like"):
            train_plan.gpus_asked([("resource", [text])], path)
    else:
        assert train_plan.gpus_asked([("resource", [text])], path) == asked
    shared = [("resource", ['{"actor":[1,8],"rollout":[1,8]}']), ("colocate", [])]
    assert train_plan.gpus_asked(shared, path) == (8, 8)


# --- what is submitted ---------------------------------------------------------------------


def test_the_runtime_environment_is_the_entrypoints_with_python_and_checkout():
    text = '{"env_vars": {"PYTHONPATH": "/megatron:/relax", "A": "1"}, "config": {"x": 1}}'
    assert submit.runtime_env(text, "/usr/bin/python3", "/relax") == {
        "env_vars": {"PYTHONPATH": "/relax:/megatron", "A": "1"},
        "config": {"x": 1},
        "py_executable": "/usr/bin/python3",
    }


@pytest.mark.parametrize("text", ["", "[]", '{"env_vars": []}', '{"env_vars": {"A": 1}}', '{"working_dir": "/x"}'])
def test_a_runtime_environment_that_does_not_fit_is_refused(text):
    with pytest.raises(Failure, match="RUNTIME_ENV_JSON"):
        submit.runtime_env(text, "/usr/bin/python3", "/relax")


def test_the_jobs_command_is_the_wrapper_and_the_driver_and_shows_no_secret():
    settings = loaded(GATEWAY_TOKEN="never-show-me", LIMIT="32")
    line = submit.entrypoint(settings, Path("/rows file"), Path("/p"), ["--a", "b c"])
    given = shlex.split(line)
    assert given[:3] == ["exec", "/usr/bin/python3", f"{variables.ROOT}/scripts/job.py"]
    assert given[3:9] == ["--rows", "/rows file", "--limit", "32", "--prompts", "/p"]
    assert given[9:] == ["--", "/usr/bin/python3", "-m", "relax.entrypoints.train", "--a", "b c"]
    shown = line + str(submit.job_variables(settings, "/t")) + str(train_plan.values(settings, planned()[2]))
    assert "never-show-me" not in shown


def test_the_file_is_valid_yaml_for_any_reader():
    text = loaded().TRAIN_ARGUMENTS.read_text()
    assert set(yaml.safe_load(text)) == {"arguments", "tracking"}


# --- what the stand-in sees of the job's surroundings --------------------------------------

SURROUNDINGS = {"PYTHONPATH": "/relax:/opt/Megatron-LM", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "MASTER_ADDR": "10.0.0.5"}
SURROUNDINGS |= {"STANDIN_PYTHON": "/usr/bin/python3"}


@pytest.mark.parametrize(
    ("changes", "runtime_env", "said"),
    [
        ({"PYTHONPATH": "/opt/Megatron-LM"}, {}, "the checkout is not on PYTHONPATH"),
        ({"CUDA_DEVICE_MAX_CONNECTIONS": ""}, {}, "CUDA_DEVICE_MAX_CONNECTIONS of the entrypoint's runtime env"),
        ({"MASTER_ADDR": None}, {}, "MASTER_ADDR of the entrypoint's runtime environment is lost"),
        ({}, {"py_executable": "/usr/bin/python4"}, "py_executable is /usr/bin/python4"),
        ({}, {"py_executable": None}, "py_executable is None"),
        ({}, {"working_dir": "/clone"}, "the job was given a working_dir"),
        ({"GATEWAY_TOKEN": "x"}, {}, "GATEWAY_TOKEN is in the job's variables"),
        ({"RAY_NO_WAIT": "1"}, {}, "RAY_NO_WAIT is in the job's variables"),
    ],
)
def test_the_standin_sees_a_runtime_environment_that_is_wrong(changes, runtime_env, said):
    given = {name: text for name, text in (SURROUNDINGS | changes).items() if text is not None}
    found = contract.environment_faults(given, "/relax", {"py_executable": "/usr/bin/python3"} | runtime_env)
    assert len(found) == 1 and found[0].startswith(said)
    assert contract.environment_faults(SURROUNDINGS, "/relax", {"py_executable": "/usr/bin/python3"}) == []
