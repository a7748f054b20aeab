#!/usr/bin/env python3
"""Evaluate a model on task rows: pass rate with interval, pass@k, how it behaved. `make eval`.

Drives any OpenAI-compatible endpoint (vLLM, SGLang, llama.cpp, hosted) through the Gateway at a
stated concurrency; the key goes to the endpoint alone. First one call for the endpoint's wire and
name, then a crowd of tool calls that must parse. Every trajectory is kept, failures apart from
zeros, under $DATA_ROOT/eval/<name>.

Guarantees: the same command again does only what is missing, whatever ended the one before, and
gives the result of an unbroken run; with another configuration it is refused by field. A sample
that the endpoint, the Gateway or the environment failed earns nothing, not 0. Needs a running
graph; takes what the endpoint takes.

Exit status: 0 every sample has a reward, 1 one has none or the run is refused, 130 interrupted.

    make eval MODEL_URL=http://10.0.0.7:8000 MODEL=Qwen3-4B SPLIT=validation REPEATS=4
    make eval MODEL_URL=https://api.example.com WIRE=chat MODEL=big    (MODEL_API_KEY in .env)
"""

import hashlib
import statistics

from checks import registry
from common import settings as variables
from common import terminal
from common.failure import Failure
from evaluation import bounds, files, tables
from evaluation import metrics as eval_metrics
from evaluation import preflight as eval_preflight
from evaluation.sampler import KEPT, Sampler
from gateway.client import ClientError, Gateway
from inputs import rows
from policy import model_api
from policy.endpoint import Endpoint

NAMES = [
    "MODEL_URL", "MODEL", "WIRE", "SPLIT", "LIMIT", "NEMO_GYM_SOURCE_DATA", "REPEATS", "EVAL_NAME",
    "EVAL_CONCURRENCY", "EVAL_TEMPERATURE", "EVAL_TOP_P", "EVAL_MAX_OUTPUT_TOKENS", "EVAL_EXTRA_BODY",
    "EVAL_TRIES", "EVAL_PREFLIGHT", "EVAL_UNPARSED_SHARE", "FRESH", "NEMO_GYM_URL", "DATA_ROOT",
]  # fmt: skip

# Samples in a row without a reward, times those that run at once: whatever failed them will fail the rest too.
GIVE_UP_AFTER = 5


def main():
    settings, _ = variables.from_command_line(__doc__, *NAMES)
    if not settings.MODEL_URL:
        raise Failure("MODEL_URL is empty; name the endpoint: make eval MODEL_URL=http://... MODEL=...")
    registry.at_start("eval", settings)
    numbered = rows.read_numbered(settings.rows_path(), settings.LIMIT)
    task_rows = [row for _, row in numbered]
    sampling, extra = sampling_of(settings)
    gateway = gateway_facts(settings)
    endpoint = endpoint_of(settings, sampling, extra)
    reported = eval_preflight.look(endpoint, task_rows, settings.EVAL_TRIES, settings.NEMO_GYM_DEADLINE_S)
    config = configuration(settings, len(task_rows), sampling | {"extra_body": extra}, gateway, reported)
    path = files.folder(settings.DATA_ROOT, settings.EVAL_NAME or files.folder_name(*default_name(settings)))
    if settings.FRESH == "1" and path.exists():
        terminal.say(f"moved aside: {files.move_aside(path)}")
    writer = files.Writer(path, config)
    try:
        return evaluate(settings, endpoint, numbered, writer)
    finally:
        writer.close()
        endpoint.http.close()


def endpoint_of(settings, sampling, extra):
    connections = max(settings.EVAL_CONCURRENCY, settings.EVAL_PREFLIGHT, 1)
    asked = settings.MODEL_URL, settings.MODEL, settings.MODEL_API_KEY, settings.NEMO_GYM_DEADLINE_S
    return Endpoint(*asked, settings.WIRE, sampling, extra, connections)


def sampling_of(settings):
    """(parameters of the Responses call that are given, what goes into every call besides). Raises Failure."""
    names = {"temperature": "EVAL_TEMPERATURE", "top_p": "EVAL_TOP_P", "max_output_tokens": "EVAL_MAX_OUTPUT_TOKENS"}
    given = {name: getattr(settings, variable) for name, variable in names.items()}
    try:
        extra = rows.parse_json((settings.EVAL_EXTRA_BODY or "{}").encode())
        rows.check_values([extra])
    except ValueError as error:
        raise Failure(f"EVAL_EXTRA_BODY: {error}; it is a JSON object") from None
    if not isinstance(extra, dict) or not extra.keys().isdisjoint({"model", "messages", "input", "tools", "stream"}):
        raise Failure("EVAL_EXTRA_BODY: not a JSON object, or with a key that the evaluation itself sets")
    return {name: value for name, value in given.items() if value is not None}, extra


def gateway_facts(settings):
    """What rewards depend on, as the Gateways tell it, the same at each. Raises Failure."""
    found = []
    for url in settings.gateway_urls:
        try:
            told = Gateway(settings, url).exchange("GET", "/readyz")
        except ClientError as fault:
            raise Failure(f"{url}: not ready: {fault}; `make gym-up` starts the servers") from None
        versions = {"protocol_version": told.get("protocol_version"), "version": told.get("gateway_version")}
        found.append({"environment": told.get("environment"), "gateway": versions})
    for url, facts in zip(settings.gateway_urls, found, strict=True):
        if differing := files.differences(found[0], facts):
            field, first, other = differing[0]
            raise Failure(
                f"{url}: {field} is {other}, and at {settings.gateway_urls[0]} {first}; evaluate on like hosts"
            )
    return found[0]


def default_name(settings):
    return settings.MODEL, settings.NEMO_GYM_SOURCE_DATA.stem if settings.NEMO_GYM_SOURCE_DATA else settings.SPLIT


def configuration(settings, count, sampling, gateway, reported):
    """What must match for a resumption or a comparison."""
    path = settings.rows_path()
    return {
        "format": files.FORMAT,
        "rows": {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "count": count},
        "split": default_name(settings)[1],
        "limit": settings.LIMIT,
        "repeats": settings.REPEATS,
        "model": settings.MODEL,
        "model_reported": reported,
        "wire": settings.WIRE,
        "sampling": sampling,
        "deadline_s": settings.NEMO_GYM_DEADLINE_S,
        **gateway,
    }


def evaluate(settings, endpoint, numbered, writer):
    """Do what is missing of [(line, row)], then say and write what all of it shows. Returns the exit status."""
    task_rows = [row for _, row in numbered]
    jobs = [
        (index, line, row, repeat)
        for repeat in range(settings.REPEATS)
        for index, (line, row) in enumerate(numbered)
        if (index, repeat) not in writer.done
    ]
    if jobs:
        preflight(settings, endpoint, task_rows)
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


def preflight(settings, endpoint, task_rows):
    if not settings.EVAL_PREFLIGHT or not eval_preflight.calls_of(task_rows):
        return
    with terminal.stage("preflight") as stage:
        findings = eval_preflight.crowd(
            endpoint, task_rows, settings.EVAL_PREFLIGHT, settings.EVAL_TRIES, settings.NEMO_GYM_DEADLINE_S
        )
        stage.note = eval_preflight.accept(findings, settings.EVAL_UNPARSED_SHARE)


def run(settings, endpoint, jobs, writer):
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
                rewards[sample["row"]] = passed + (sample["reward"] >= eval_metrics.PASSED), count + 1
            bar.step(text=tables.running(eval_metrics.rate(list(rewards.values())), failed))
    finally:
        terminal.clear_line()
        sampler.stop()


def conclude(settings, task_rows, writer):
    """Write and say the result. Returns the exit status."""
    found = files.read_folder(writer.path)
    expected = settings.REPEATS * len(task_rows)
    tools_of = [row[rows.WRAPPER].get("tools") for row in task_rows].__getitem__
    metrics = eval_metrics.summary(found.samples, expected, tools_of) | bounds.bounds(settings, task_rows)
    result = {
        "config": found.config,
        "metrics": metrics,
        "failures": expected - len(found.samples),
        "times": times(found.samples),
    }
    writer.finish(result)
    tables.say(result, found.failures, settings.EVAL_UNPARSED_SHARE)
    terminal.say(f"result: {writer.path / files.RESULT}")
    return 1 if result["failures"] else 0


def times(samples):
    """Seconds of a sample: {"median", "longest", "sum"}; None without samples."""
    seconds = [item["seconds"] for item in samples]
    if not seconds:
        return None
    return {"median": statistics.median(seconds), "longest": max(seconds), "sum": round(sum(seconds), 3)}


if __name__ == "__main__":
    terminal.run(main)
