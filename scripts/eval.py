#!/usr/bin/env python3
"""Evaluate a model on task rows: pass rate with interval, pass@k, how it behaved. `make eval`.

Drives any OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp, hosted) through the Gateway at a
stated concurrency; the key goes to the endpoint alone. First one call for the endpoint's wire and
name, then a crowd of tool calls that must parse. Every trajectory is kept, failures apart from
zeros, under $DATA_ROOT/eval/<name>. Needs a running graph; takes as long as the endpoint takes.

Guarantees: the same command again runs only the missing samples, whatever ended the run before, and
gives the result of an unbroken run; another configuration is refused by field. A sample that the
endpoint, the Gateway or the environment failed has no reward, which is not a 0.

Exit status: 0 every sample has a reward, 1 a sample has none or the run is refused, 130 interrupted.

    make eval MODEL_URL=http://10.0.0.7:8000 MODEL=Qwen3-4B SPLIT=validation REPEATS=4
    make eval MODEL_URL=https://api.example.com WIRE=chat MODEL=big    (MODEL_API_KEY in .env)
"""

import statistics

from checks import registry
from common import terminal
from common.failure import Failure
from common.settings import Settings, from_command_line
from evaluation import bounds, files, metrics, preflight, tables
from evaluation.conditions import configuration, gateway_facts, sampling_of, split_of
from evaluation.sampler import KEPT, Sampler
from inputs import rows
from policy import model_api
from policy.endpoint import Endpoint
from rollouts.samples import Sample

NAMES = (
    "MODEL_URL", "MODEL", "WIRE", "SPLIT", "LIMIT", "NEMO_GYM_SOURCE_DATA", "REPEATS", "EVAL_NAME",
    "EVAL_CONCURRENCY", "EVAL_TEMPERATURE", "EVAL_TOP_P", "EVAL_MAX_OUTPUT_TOKENS", "EVAL_EXTRA_BODY",
    "EVAL_TRIES", "EVAL_PREFLIGHT", "EVAL_UNPARSED_SHARE", "FRESH", "NEMO_GYM_URL", "DATA_ROOT",
)  # fmt: skip

# Samples in a row without a reward, times those that run at once: whatever failed them will fail the rest too.
GIVE_UP_AFTER = 5


def main() -> int:
    settings, _ = from_command_line(__doc__, *NAMES)
    if not settings.MODEL_URL:
        raise Failure("MODEL_URL is empty; name the endpoint: make eval MODEL_URL=http://... MODEL=...")
    registry.at_start("eval", settings)
    numbered = rows.read_numbered(settings.rows_path(), settings.LIMIT)
    task_rows = [row for _, row in numbered]
    sampling, extra = sampling_of(settings)
    gateway = gateway_facts(settings)
    connections = max(settings.EVAL_CONCURRENCY, settings.EVAL_PREFLIGHT, 1)
    place = settings.MODEL_URL, settings.MODEL, settings.MODEL_API_KEY, settings.NEMO_GYM_DEADLINE_S
    endpoint = Endpoint(*place, settings.WIRE, sampling, extra, connections)
    reported = preflight.look(endpoint, task_rows, settings.EVAL_TRIES, settings.NEMO_GYM_DEADLINE_S)
    config = configuration(settings, len(task_rows), sampling | {"extra_body": extra}, gateway, reported)
    name = settings.EVAL_NAME or files.folder_name(settings.MODEL, split_of(settings))
    path = files.folder(settings.DATA_ROOT, name)
    if settings.FRESH == "1" and path.exists():
        terminal.say(f"moved aside: {files.move_aside(path)}")
    writer = files.Writer(path, config)
    try:
        return evaluate(settings, endpoint, numbered, writer)
    finally:
        writer.close()
        endpoint.http.close()


def evaluate(settings: Settings, endpoint: Endpoint, numbered: list, writer: files.Writer) -> int:
    """Run the missing samples of [(line, row)], then say and write the result of all. Returns the exit status."""
    task_rows = [row for _, row in numbered]
    jobs = [
        (index, line, row, repeat)
        for repeat in range(settings.REPEATS)
        for index, (line, row) in enumerate(numbered)
        if (index, repeat) not in writer.done
    ]
    if jobs:
        check_tool_calls(settings, endpoint, task_rows)
        writer.reopen()
        if len(jobs) < settings.REPEATS * len(task_rows):
            terminal.say(f"going on: {len(writer.done)} samples are there, {len(jobs)} are missing")
        try:
            run(settings, endpoint, jobs, writer)
        except KeyboardInterrupt:
            terminal.say(f"interrupted; {len(writer.done)} samples are kept in {writer.path}")
            terminal.say("the same command does what is missing")
            return 130
    return conclude(settings, task_rows, writer)


def check_tool_calls(settings: Settings, endpoint: Endpoint, task_rows: list) -> None:
    """Send a crowd of tool calls. Raises Failure if too many come back unparsed."""
    count = settings.EVAL_PREFLIGHT
    if not count or not preflight.calls_of(task_rows):
        return
    with terminal.stage("preflight") as stage:
        findings = preflight.crowd(endpoint, task_rows, count, settings.EVAL_TRIES, settings.NEMO_GYM_DEADLINE_S)
        stage.note = preflight.accept(findings, settings.EVAL_UNPARSED_SHARE)


def run(settings: Settings, endpoint: Endpoint, jobs: list, writer: files.Writer) -> None:
    """Run the jobs and keep each sample as it ends."""
    sampler = Sampler(settings, endpoint, model_api.own_address(settings.gateway_urls[0]))
    bar, rewards, failed, in_a_row = terminal.Bar("samples", len(jobs)), {}, 0, 0
    try:
        for sample in sampler.run(jobs):
            writer.add(sample)
            lost = sample.get("reward") is None
            failed, in_a_row = failed + lost, (in_a_row + 1) * lost
            if in_a_row >= GIVE_UP_AFTER * settings.EVAL_CONCURRENCY:
                raise Failure(f"{in_a_row} samples in a row got no reward: {tables.reason(sample['error'])}; {KEPT}")
            if not lost:
                passed, count = rewards.get(sample["row"], (0, 0))
                rewards[sample["row"]] = passed + (sample["reward"] >= metrics.PASSED), count + 1
            bar.step(text=tables.running(metrics.rate(list(rewards.values())), failed, sampler.waiting))
    finally:
        terminal.clear_line()
        sampler.stop()


def conclude(settings: Settings, task_rows: list, writer: files.Writer) -> int:
    """Write and say the result. Returns the exit status."""
    evaluation = files.read_folder(writer.path)
    samples, expected = evaluation.samples, settings.REPEATS * len(task_rows)
    tools_of = [row[rows.WRAPPER].get("tools") for row in task_rows].__getitem__
    result = {
        "config": evaluation.config,
        "metrics": metrics.summary(samples, expected, tools_of) | bounds.bounds(settings, task_rows),
        "models_reported": sorted({name for sample in samples for name in sample.get("models_reported") or ()}),
        "failures": expected - len(samples),
        "times": times(samples),
    }
    writer.finish(result)
    tables.say(result, evaluation.failures, settings.EVAL_UNPARSED_SHARE)
    terminal.say(f"result: {writer.path / files.RESULT}")
    return 1 if result["failures"] else 0


def times(samples: list[Sample]) -> dict[str, float] | None:
    """Seconds of a sample: {"median", "longest", "sum"}; None without samples."""
    seconds = [sample["seconds"] for sample in samples if sample["seconds"] is not None]
    if not seconds:
        return None
    return {"median": statistics.median(seconds), "longest": max(seconds), "sum": round(sum(seconds), 3)}


if __name__ == "__main__":
    terminal.run(main)
