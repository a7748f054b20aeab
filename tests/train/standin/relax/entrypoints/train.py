"""Stands in for the trainer's driver in tests: holds what it is given against the contract, then rolls out.

Rollouts are real: while one actor holds the 8 GPUs, wherever they are, another on the head serves the
model API there, starts the agent command once a sample as the trainer does, and writes the trainer's dump
with the trainer's fields alone. The policy is the rows' ground truth. Nothing is trained, so no step is logged.
"""

import json
import os
import sys
from pathlib import Path

from relax.entrypoints import contract

ROOT = Path(__file__).resolve().parents[2]
FIELDS = ("rollout_id", "sample_index", "status", "reward", "agent_turns")
FIELDS += ("prompt_token_count", "response_token_count", "total_token_count", "response")


def refuse(faults):
    for fault in faults:
        print(f"stand-in trainer: {fault}", flush=True)
    sys.exit(64)


class Weights:
    """Takes the place of what holds the GPUs."""

    def placed(self):
        return True


class Rollouts:
    """What the trainer's rollout side does, in an actor on the head."""

    def __init__(self, arguments, host):
        sys.path.insert(0, str(Path(arguments["agent-cwd"][0]) / "scripts"))
        from policy import model_api
        from rollouts import agent_processes, dump, rehearsal

        one = {flag: values[0] for flag, values in arguments.items() if flag != "agent-env" and values}
        self.dump_record = dump.record
        policy = {"noop": model_api.noop}.get(os.environ.get("STANDIN_POLICY"), model_api.oracle)
        self.api = model_api.ModelAPI(host, policy)
        self.agents = agent_processes.Agents(
            one["agent-command"], one["agent-cwd"], arguments["agent-env"], float(one["agent-timeout"])
        )
        self.rollouts = rehearsal.Rollouts(self.api, self.agents)
        self.folder = Path(one["save"]) / "rollout_result" / "train"
        self.samples = int(one["n-samples-per-prompt"])

    def roll_out(self, rollout, prompts):
        """Roll a batch out and dump it: the number of samples."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(8) as pool:
            each = [(group, prompt) for group, prompt in enumerate(prompts) for _ in range(self.samples)]
            numbered = [(index, *rest) for index, rest in enumerate(each)]
            found = list(pool.map(lambda job: self.rollouts.sample(*job), numbered))
        self.folder.mkdir(parents=True, exist_ok=True)
        lines = [{name: item[name] for name in FIELDS} | {"rollout_id": rollout} for item in found]
        with (self.folder / f"{rollout}.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return len(found)


def main():
    # What Ray gives a job's driver along, runtime environment included.
    config = json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])
    arguments, faults = contract.argument_faults(sys.argv[1:])
    faults += contract.agreement_faults(arguments, os.environ)
    faults += contract.environment_faults(os.environ, ROOT, config.get("runtime_env") or {})
    if faults:
        refuse(faults)
    print("stand-in trainer: arguments and variables are the contract's", flush=True)
    import ray

    ray.init(logging_level="ERROR")
    host = os.environ["MASTER_ADDR"]
    number = {flag: int(arguments[flag][0]) for flag in ("num-rollout", "rollout-batch-size")}
    lines = Path(arguments["prompt-data"][0]).read_text().splitlines()
    prompts = [json.loads(line) for line in lines]
    weights = ray.remote(num_gpus=8, num_cpus=0)(Weights).remote()
    ray.get(weights.placed.remote())
    actor = ray.remote(num_cpus=1, resources={f"node:{host}": 0.001})(Rollouts).remote(arguments, host)
    for rollout in range(number["num-rollout"]):
        size = number["rollout-batch-size"]
        batch = [prompts[(rollout * size + place) % len(prompts)] for place in range(size)]
        count = ray.get(actor.roll_out.remote(rollout, batch))
        print(f"stand-in trainer: rollout {rollout} has {count} samples; nothing is trained", flush=True)


if __name__ == "__main__":
    main()
