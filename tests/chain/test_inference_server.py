"""Evaluations of a real inference server: that of transformers, with a Qwen3 of random weights.

The model answers with noise, so no reward is expected. The tests check the way there and back: both wires, tool
calls as the server's own parser finds them, token counts, and that no sample is lost.
INFERENCE_PYTHON names a Python with `torch` and `transformers[serving]`; the tests are skipped without it.
"""

import json
import os
import subprocess
from pathlib import Path

import httpx
import pytest

from proofs.rig import eventually, free_block, run_script

PYTHON = os.environ.get("INFERENCE_PYTHON")
MAKER = Path(__file__).parents[1] / "support" / "tiny_qwen.py"
REPEATS = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON, reason="INFERENCE_PYTHON names no Python with torch and transformers[serving]"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """(URL, name of the model) of a server that is up."""
    folder = tmp_path_factory.mktemp("inference")
    model = folder / "tiny-qwen3"
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    subprocess.run([PYTHON, MAKER, model], check=True, env=offline, capture_output=True, timeout=300)
    port = free_block()
    command = [Path(PYTHON).with_name("transformers"), "serve", model, "--device", "cpu", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen([*command, "--host", "127.0.0.1"], env=offline, stdout=log, stderr=log)
    try:

        def listens():
            assert process.poll() is None, (folder / "server.log").read_text()[-2000:]
            try:
                return httpx.get(f"{url}/v1/models", trust_env=False).status_code == 200
            except httpx.TransportError:
                return False

        eventually(listens, 300, 0.5)
        yield url, str(model)
    finally:
        process.terminate()
        process.wait()


def evaluate(graph, server, data_root, **changes):
    """Run `eval.py` over the example rows. Returns (process, result, samples)."""
    url, model = server
    variables = {
        "MODEL_URL": url, "MODEL": model, "SPLIT": "example", "DATA_ROOT": str(data_root), "REPEATS": str(REPEATS),
        "EVAL_NAME": "noise", "EVAL_PREFLIGHT": "0", "EVAL_CONCURRENCY": "2", "NEMO_GYM_DEADLINE_S": "400",
    }  # fmt: skip
    env = graph.env | variables | changes
    assert run_script("prepare_data.py", env).returncode == 0
    process = run_script("eval.py", env, timeout=800)
    folder = data_root / "eval" / "noise"
    if not (folder / "result.json").exists():
        return process, None, None
    lines = (folder / "rollouts.jsonl").read_text().splitlines()
    return process, json.loads((folder / "result.json").read_text()), [json.loads(line) for line in lines]


def items(samples, kind):
    return [item for sample in samples for item in sample["output"] if item["type"] == kind]


@pytest.mark.parametrize("wire", ["responses", "chat"])
def test_an_engine_of_noise_is_evaluated_whole(graph, server, tmp_path, example_rows, wire):
    process, result, samples = evaluate(graph, server, tmp_path, WIRE=wire)
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    assert len(samples) == REPEATS * len(example_rows) and result["failures"] == 0
    calls, outputs = items(samples, "function_call"), items(samples, "function_call_output")
    # A search finds something or nothing; an error would begin otherwise.
    assert calls and {call["name"] for call in calls} == {"email_search_emails"}
    assert result["metrics"]["behaviour"]["tool_calls"] == len(calls) == len(outputs)
    assert all("query" in json.loads(call["arguments"]) for call in calls)
    assert result["metrics"]["behaviour"]["tool_errors"] == 0
    assert all(sample["usage"]["input_tokens"] > 1000 and sample["usage"]["output_tokens"] > 0 for sample in samples)
    counted = sum(sample["usage"]["output_tokens"] for sample in samples)
    assert result["metrics"]["tokens"]["output_tokens"] == counted
    assert result["config"]["model_reported"] == server[1]
    graph.wait_released()


def test_answers_cut_short_are_truncated_samples_with_a_reward(graph, server, tmp_path, example_rows):
    """With three tokens an answer, most are cut in the middle."""
    process, result, samples = evaluate(graph, server, tmp_path, EVAL_MAX_OUTPUT_TOKENS="3")
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    truncated = [sample for sample in samples if sample["status"] == "truncated"]
    assert sum(result["metrics"]["truncated"].values()) == len(truncated)
    assert len(samples) == REPEATS * len(example_rows) and all(sample["reward"] in (0, 1) for sample in samples)


def test_a_preflight_over_noise_refuses_it_by_name(graph, server, tmp_path):
    """Cut after one token, some answers hold no call; the preflight's calls at once count them."""
    process, result, _ = evaluate(graph, server, tmp_path, EVAL_PREFLIGHT="8", EVAL_MAX_OUTPUT_TOKENS="1")
    assert process.returncode == 1 and result is None
    assert "8 tool calls at once" in process.stderr and "EVAL_UNPARSED_SHARE" in process.stderr
