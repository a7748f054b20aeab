#!/usr/bin/env python3
"""Train Qwen3-4B on the rows: check everything, print the plan, submit through the trainer's entrypoint.

Runs on a machine that reaches the cluster's dashboard and has the trainer's checkout, usually the
cluster's head. Takes a minute until the job is submitted, then as long as the job. It checks the
budgets, the paths and their contents on every node, the way from each node to the Gateways and
from the Gym's machine back to the model, free GPUs and running jobs. The entrypoint would stop
running jobs, so they are refused unless FORCE=1.

Guarantees: every fault is named before anything is submitted; the training job's status is the exit
status; Ctrl-C stops the job and confirms it; DRY_RUN=1 submits nothing, the look at the nodes
included. It judges no result: `make accept`.

    make train LIMIT=32
    make train LIMIT=32 DRY_RUN=1
    make train LIMIT=1 NEMO_GYM_NUM_ROLLOUT=1 NEMO_GYM_N_SAMPLES_PER_PROMPT=1      # the chain, once
"""

import time

from checks import registry
from common import terminal
from common.failure import Failure
from common.settings import from_command_line
from training import nodes
from training.entrypoint import Entrypoint, write_submission
from training.plan import Plan

OPTIONS = (
    "SPLIT", "LIMIT", "NEMO_GYM_SOURCE_DATA", "RAY_ADDRESS", "RELAX_ROOT", "DRY_RUN", "FORCE",
    "NEMO_GYM_NUM_ROLLOUT", "NEMO_GYM_ROLLOUT_BATCH_SIZE", "NEMO_GYM_N_SAMPLES_PER_PROMPT",
    "NEMO_GYM_GLOBAL_BATCH_SIZE", "NEMO_GYM_MAX_PROMPT_LEN", "NEMO_GYM_MAX_RESPONSE_LEN",
    "NEMO_GYM_MAX_CONTEXT_LEN", "NEMO_GYM_MAX_TOKENS_PER_GPU", "NEMO_GYM_DEADLINE_S", "AGENT_TIMEOUT_S",
    "TRAIN_ARGUMENTS",
)  # fmt: skip


def main() -> int:
    settings, _ = from_command_line(__doc__, *OPTIONS)
    registry.at_start("train", settings)
    plan = Plan(settings)
    plan.look(plan.environment, plan.rows, plan.budgets, plan.paths, plan.services)
    if settings.RAY_ADDRESS or settings.DRY_RUN == "0":
        plan.look(plan.cluster)
    plan.show()
    if plan.faults:
        raise Failure("\nerror: ".join(plan.faults))
    if settings.DRY_RUN == "1":
        path = write_submission(plan)
        terminal.say(f"Dry run: nothing submitted, the nodes not looked at; the submission is in {path}")
        return 0
    with terminal.stage("nodes") as stage:
        started = time.monotonic()
        notes = nodes.look(plan)
        stage.note = f"{len(notes['nodes'])} looked at in {time.monotonic() - started:.0f} s"
    for note in notes["notes"]:
        terminal.say(f"  {note}")
    return Entrypoint(plan).run()


if __name__ == "__main__":
    terminal.run(main)
