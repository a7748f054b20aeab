#!/usr/bin/env python3
"""Rehearse rollouts in the trainer's place: one agent process a sample, rewards, advantages, a dump.

On one machine; takes what the trainer's driver takes (--prompt-data, --agent-command,
--n-samples-per-prompt, ...), serves a model API of the same shape (model_api.py), starts the
agent command with the same variables (agents.py) and writes the same dump (rollout_dump.py).
Guarantees: every sample has a line in the dump, with its error if it has no reward; an agent
that exits non-zero, takes more than --agent-timeout or leaves no finite reward drops its
group; SIGTERM and SIGINT end every agent before the driver ends. Session ids stand in no
argument, log or error. It trains nothing: no gradient is computed, and it never says so.

Exit status: 0 if every sample has a reward, 1 if one has none, 128 + signal when stopped.

    scripts/rehearsal.py --prompt-data rows_relax.jsonl --agent-command 'python3 scripts/session_client.py' \\
        --policy oracle --n-samples-per-prompt 2 --dump rollouts.jsonl
"""

import argparse
import json
import math
import shutil
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from common import settings as variables
from common import terminal
from common.failure import Failure
from policy import endpoint as model_wire
from policy import model_api
from rollouts import dump as rollout_dump
from rollouts.agent_processes import Agents, Stopping

LOG_TAIL_BYTES = 2000
KINDS_SHOWN = 5


def command_line(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
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
    args = parser.parse_args(argv)
    if args.n_samples_per_prompt < 1 or args.concurrency < 1 or not 0 < args.agent_timeout < math.inf:
        parser.error("--n-samples-per-prompt and --concurrency are at least 1, --agent-timeout is above 0")
    args.agent_env = _agent_environment(parser, args.agent_env)
    return args


def _agent_environment(parser, pairs):
    found = dict(pair.partition("=")[::2] for pair in pairs)
    for name in found:
        if not name.isidentifier() or name.startswith("RELAX_") or f"{name}={found[name]}" not in pairs:
            parser.error(f"--agent-env: {name[:80]!r} is no NAME=value pair, or begins with RELAX_, which is reserved")
    return found


def read_prompts(path):
    """Read the trainer's rows: a list of {"input", "metadata"}. Raises Failure with file and line."""
    prompts = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    prompts.append(_prompt(line, f"{path}:{number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"{path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    if not prompts:
        raise Failure(f"{path}: holds no rows")
    return prompts


def _prompt(line, place):
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise Failure(f"{place}: not JSON") from None
    if not isinstance(row, dict) or "input" not in row or not isinstance(row.get("metadata"), dict):
        raise Failure(f"{place}: not a row of the trainer's, with input and metadata (`make data` converts)")
    if not isinstance(row["metadata"].get("ground_truth"), list):
        raise Failure(f"{place}: metadata.ground_truth is missing or no list")
    return row


def choose_policy(name, timeout_s):
    """The policy by that name. Raises Failure if its endpoint is not given."""
    if name != "endpoint":
        return {"oracle": model_api.oracle, "noop": model_api.noop}[name]
    settings = variables.load()
    if not settings.MODEL_URL:
        raise Failure("MODEL_URL is empty; the policy `endpoint` asks the model there: make ... MODEL_URL=http://...")
    endpoint = model_wire.Endpoint(settings.MODEL_URL, settings.MODEL, settings.MODEL_API_KEY, timeout_s)
    return lambda session, body: endpoint.answer(body)


class Rollouts:
    """Rolls samples out: a session at the model API and an agent process for each."""

    def __init__(self, api, agents):
        self.api, self.agents = api, agents

    def sample(self, index, group, prompt):
        """Roll one sample out: its record for the dump. Raises Stopping."""
        session = self.api.open({"messages": prompt["input"], "metadata": prompt["metadata"]})
        folder = Path(tempfile.mkdtemp(prefix="session-"))
        started = time.monotonic()
        try:
            result, error = self._run(session, group, folder)
        finally:
            self.api.close(session)
            shutil.rmtree(folder, ignore_errors=True)
        item = rollout_dump.record(index, group, prompt["metadata"], session, result, error)
        return item | {"seconds": round(time.monotonic() - started, 3)}

    def _run(self, session, group, folder):
        source, target, log_path = folder / "input.json", folder / "output.json", folder / "agent.log"
        source.write_text(json.dumps(session.task), encoding="utf-8")
        variables_ = {
            "RELAX_INPUT_JSON": str(source),
            "RELAX_OUTPUT_JSON": str(target),
            "RELAX_SESSION_IO_DIR": str(folder),
            "RELAX_BASE_URL": self.api.base_url,
            "RELAX_SESSION_ID": session.id,
            "RELAX_ROLLOUT_MODE": "train",
            "RELAX_GROUP_ID": str(group),
        }
        with log_path.open("wb") as log:
            status = self.agents.run(variables_, log)
        if status == 0:
            return read_result(target)
        fault = f"took more than {self.agents.timeout_s:g} s" if status is None else f"exited with {status}"
        return {}, f"agent {fault}{last_line(log_path, session.id)}"


def last_line(path, secret):
    """The end of an agent's output for an error message, the session id taken out."""
    text = path.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").replace(secret, "***").strip()
    return f": {text.splitlines()[-1][:300]}" if text else ""


def read_result(path):
    """(result, error): the agent's output, or what is wrong with it."""
    try:
        result = json.loads(path.read_bytes())
    except OSError:
        return {}, "agent left no output file"
    except (ValueError, RecursionError):
        return {}, "agent's output is not JSON"
    reward = result.get("reward") if isinstance(result, dict) else None
    if isinstance(reward, bool) or not isinstance(reward, (int, float)) or not math.isfinite(reward):
        return {}, "agent's output has no finite reward"
    return result, None


def roll_out(args, prompts, api, agents, dump):
    """Roll out every sample of every prompt: the records in order, fewer if the driver was stopped."""
    rollouts, records = Rollouts(api, agents), []
    bar = terminal.Bar("samples", len(prompts) * args.n_samples_per_prompt)
    with ThreadPoolExecutor(args.concurrency) as pool:
        futures = [
            pool.submit(rollouts.sample, group * args.n_samples_per_prompt + nth, group, prompt)
            for group, prompt in enumerate(prompts)
            for nth in range(args.n_samples_per_prompt)
        ]
        for future in as_completed(futures):
            try:
                item = future.result()
            except Stopping:
                continue
            dump.add(item)
            records.append(item)
            bar.step()
    terminal.clear_line()
    return sorted(records, key=lambda item: item["sample_index"])


def report(args, records, seconds):
    """Say what came out; the exit status."""
    total = rollout_dump.summary(records)
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


def main():
    args = command_line()
    prompts = read_prompts(args.prompt_data)
    policy = choose_policy(args.policy, args.agent_timeout)
    agents = Agents(args.agent_command, args.agent_cwd, args.agent_env, args.agent_timeout)
    dump = rollout_dump.Dump(args.dump)
    api = model_api.ModelAPI(args.host or model_api.own_address(args.agent_env.get("NEMO_GYM_URL")), policy)
    stopped_by = []

    def stop(number, frame):
        stopped_by.append(number)
        agents.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    started = time.monotonic()
    records = roll_out(args, prompts, api, agents, dump)
    api.stop()
    dump.close()
    if stopped_by:
        terminal.say(f"stopped by {signal.Signals(stopped_by[0]).name}; what had ended is in {dump.partial}")
        return 128 + stopped_by[0]
    rollout_dump.set_advantages(records)
    dump.finish(records)
    return report(args, records, time.monotonic() - started)


if __name__ == "__main__":
    terminal.run(main)
