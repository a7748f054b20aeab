#!/usr/bin/env python3
"""Rehearse rollouts in the trainer's place: one agent process a sample, rewards, advantages, a dump.

On one machine. It takes the arguments of the trainer's driver (--prompt-data, --agent-command,
--n-samples-per-prompt, ...), serves a model API of the same shape, starts the agent command with the same
variables, and writes the same dump.

Guarantees:
- every sample has a line in the dump, with its error if it has no reward
- an agent that exits non-zero, takes more than --agent-timeout or leaves no finite reward drops its group
- SIGTERM and SIGINT end every agent before the driver ends
- session ids stand in no argument, log or error
- it trains nothing, and never says that it does

Exit status: 0 if every sample has a reward, 1 if one has none, 128 + signal when stopped.

    PYTHONPATH=scripts .venv/bin/python -m rollouts.rehearsal --prompt-data rows_relax.jsonl --policy oracle \\
        --agent-command 'python3 scripts/session_client.py' --n-samples-per-prompt 2 --dump rollouts.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from common import settings as variables
from common import terminal
from common.failure import Failure
from gateway import launch
from policy import model_api
from policy.endpoint import Endpoint, in_answer
from policy.replies import EndpointFault, PolicyFault
from rollouts import dump, prompts, samples
from rollouts.agent_processes import Agents, Stopping
from rollouts.samples import DumpRecord

LOG_TAIL_BYTES = 2000
KINDS_SHOWN = 5


def command_line() -> argparse.Namespace:
    parser = variables.command_line(__doc__)
    add = parser.add_argument
    add("--prompt-data", type=Path, required=True, metavar="FILE", help="rows as the trainer reads them")
    add("--agent-command", required=True, metavar="CMD", help="started once a sample, by /bin/bash -lc")
    add("--agent-cwd", type=Path, default=Path.cwd(), metavar="DIR", help="where it starts [here]")
    add("--agent-env", nargs="*", default=[], metavar="K=V", help="variables for it")
    add("--agent-timeout", type=float, default=660, metavar="S", help="seconds it may take [660]")
    add("--n-samples-per-prompt", type=int, default=1, metavar="N", help="samples of each row [1]")
    add("--policy", choices=("oracle", "noop", "endpoint"), default="oracle", help="who answers [oracle]")
    add("--concurrency", type=int, default=4, metavar="N", help="agent processes at once [4]")
    add("--host", metavar="ADDRESS", help="address of the model API [the one the Gateway can reach]")
    add("--dump", type=Path, required=True, metavar="FILE", help="one JSON object a sample")
    args = parser.parse_args()
    if args.n_samples_per_prompt < 1 or args.concurrency < 1 or not 0 < args.agent_timeout < math.inf:
        parser.error("--n-samples-per-prompt and --concurrency are at least 1, --agent-timeout is above 0")
    pairs = [pair.partition("=") for pair in args.agent_env]
    for name, equals, _ in pairs:
        if not equals or not name.isidentifier() or name.startswith(launch.PREFIX):
            parser.error(f"--agent-env: {name[:80]!r} is no NAME=value pair, or begins with RELAX_, which is reserved")
    args.agent_env = {name: text for name, _, text in pairs}
    return args


def choose_policy(name: str, timeout_s: float) -> Callable[[model_api.Session, dict[str, Any]], dict[str, Any]]:
    """The policy by that name. Raises Failure if its endpoint is not given."""
    if name != "endpoint":
        return {"oracle": model_api.oracle, "noop": model_api.noop}[name]
    settings = variables.load()
    if not settings.MODEL_URL:
        raise Failure("MODEL_URL is empty; the policy `endpoint` asks the model there: make ... MODEL_URL=http://...")
    endpoint = Endpoint(settings.MODEL_URL, settings.MODEL, settings.MODEL_API_KEY, timeout_s)

    def ask(session: model_api.Session, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return endpoint.answer(body)
        except (EndpointFault, PolicyFault) as fault:
            raise in_answer(fault) from None

    return ask


class Rollouts:
    """Rolls samples out: a session at the model API and an agent process for each."""

    def __init__(self, api: model_api.ModelAPI, agents: Agents):
        self.api, self.agents = api, agents

    def sample(self, index: int, group: int, prompt: dict[str, Any]) -> DumpRecord:
        """Roll one sample out: its record for the dump. Raises Stopping."""
        session = self.api.open({"messages": prompt["input"], "metadata": prompt["metadata"]})
        folder = Path(tempfile.mkdtemp(prefix="session-"))
        started = time.monotonic()
        try:
            result, error = self._run(session, group, folder)
        finally:
            self.api.close(session)
            shutil.rmtree(folder, ignore_errors=True)
        return dump.record(index, group, session, result, error, round(time.monotonic() - started, 3))

    def _run(self, session: model_api.Session, group: int, folder: Path) -> tuple[dict[str, Any], str | None]:
        launched, log_path = launch.session(folder, self.api.base_url, session.id, str(group)), folder / "agent.log"
        with log_path.open("wb") as log:
            status = self.agents.run(launch.prepare(launched, session.task), log)
        if status == 0:
            return read_result(Path(launched["OUTPUT_JSON"]))
        fault = f"took more than {self.agents.timeout_s:g} s" if status is None else f"exited with {status}"
        return {}, f"agent {fault}{last_line(log_path, session.id)}"


def last_line(path: Path, secret: str) -> str:
    """The last line of an agent's output for an error message, without the session id."""
    text = path.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").replace(secret, "***").strip()
    return f": {text.splitlines()[-1][:300]}" if text else ""


def read_result(path: Path) -> tuple[dict[str, Any], str | None]:
    """(the agent's output, None), or ({}, what is wrong with it)."""
    try:
        result = json.loads(path.read_bytes())
    except OSError:
        return {}, "agent left no output file"
    except (ValueError, RecursionError):
        return {}, "agent's output is not JSON"
    if not samples.number(result.get("reward") if isinstance(result, dict) else None):
        return {}, "agent's output has no finite reward"
    return result, None


def roll_out(
    args: argparse.Namespace, rows: list[dict[str, Any]], rollouts: Rollouts, written: dump.Dump
) -> list[DumpRecord]:
    """Roll out every sample of every row: the records in order, fewer if the driver was stopped."""
    records: list[DumpRecord] = []
    bar = terminal.Bar("samples", len(rows) * args.n_samples_per_prompt)
    with ThreadPoolExecutor(args.concurrency) as pool:
        futures = [
            pool.submit(rollouts.sample, group * args.n_samples_per_prompt + nth, group, prompt)
            for group, prompt in enumerate(rows)
            for nth in range(args.n_samples_per_prompt)
        ]
        for future in as_completed(futures):
            try:
                item = future.result()
            except Stopping:
                continue
            written.add(item)
            records.append(item)
            bar.step()
    terminal.clear_line()
    return sorted(records, key=lambda item: item["sample_index"])


def report(args: argparse.Namespace, records: list[DumpRecord], seconds: float) -> int:
    """Say what came out: the exit status."""
    total = dump.summary(records)
    mean = "none" if total["mean_reward"] is None else f"{total['mean_reward']:.3f}"
    terminal.say(
        f"rehearsal, policy {args.policy}: samples={total['samples']} groups={total['groups']} "
        f"mixed_groups={total['mixed_groups']} dropped_groups={total['dropped_groups']} "
        f"mean_reward={mean} model_calls={total['model_calls']} seconds={seconds:.1f}"
    )
    terminal.say(f"dump: {args.dump}")
    failures = Counter(item["error"] for item in records if item["error"])
    for error, count in failures.most_common(KINDS_SHOWN):
        terminal.say(f"{count} sample{'s' if count > 1 else ''} without a reward: {error}")
    return 1 if failures else 0


def main() -> int:
    args = command_line()
    rows = prompts.read(args.prompt_data)
    policy = choose_policy(args.policy, args.agent_timeout)
    agents = Agents(args.agent_command, args.agent_cwd, args.agent_env, args.agent_timeout)
    written = dump.Dump(args.dump)
    api = model_api.ModelAPI(args.host or model_api.own_address(args.agent_env.get("NEMO_GYM_URL")), policy)
    stopped_by: list[int] = []

    def stop(number: int, frame: Any) -> None:
        stopped_by.append(number)
        agents.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    started = time.monotonic()
    records = roll_out(args, rows, Rollouts(api, agents), written)
    api.stop()
    written.close()
    if stopped_by:
        terminal.say(f"stopped by {signal.Signals(stopped_by[0]).name}; what had ended is in {written.partial}")
        return 128 + stopped_by[0]
    dump.set_advantages(records)
    written.finish(records)
    return report(args, records, time.monotonic() - started)


if __name__ == "__main__":
    terminal.run(main)
