#!/usr/bin/env python3
"""Judge a run layer by layer, each with its evidence: services, verifier, model rollout, training step.

Reads the newest run's dump and log (or --dump, --log), asks the Gateways, and plays the verifier
contract again if the verifier is on this machine. Takes a few seconds; starts and changes nothing.
What a layer needs to pass stands in reports/layers.py. A training run's log is completed from Ray while Ray
still has it. The verdict is printed and written to RUN_DIR/accept.json.

    make accept
    scripts/run.sh accept --dump data/experiments/rehearsal/rollout_result/train/ID.jsonl
"""

import json
import time
from pathlib import Path

from common import terminal
from common.files import write_whole
from common.net import readyz
from common.settings import from_command_line
from common.terminal import say
from reports.layers import Layer, complete_log, rollout, services, summary, training_step, verifier
from rollouts import runs

SHOWN = 5
OPTIONS = {
    "--dump": {"type": Path, "metavar": "FILE", "help": "the rollout dump to judge [the newest run's]"},
    "--log": {
        "type": Path, "action": "append", "metavar": "FILE",
        "help": "log of the trainer's actor; may stand several times",
    },
}  # fmt: skip


def show(layers: list[Layer]) -> None:
    for layer in layers:
        say(f"{layer.name + ':':<20}{layer.verdict}")
        for line in layer.evidence[:SHOWN]:
            say(f"    {line}")
        if len(layer.evidence) > SHOWN:
            say(f"    and {len(layer.evidence) - SHOWN} more")


def write_verdict(path: Path, run: runs.Run, layers: list[Layer]) -> None:
    """Put the verdict at `path` as JSON, whole or not at all."""
    verdict = {
        "dump": str(run.dumps),
        "run": run.id,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "layers": [{"layer": layer.name, "verdict": layer.verdict, "evidence": layer.evidence} for layer in layers],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(verdict, indent=1) + "\n")


def main() -> int:
    names = ("NEMO_GYM_URL", "GYM_BASE_PORT", "RUN_DIR", "EXP_DIR")
    settings, args = from_command_line(__doc__, *names, options=OPTIONS)
    run = runs.of_dump(args.dump) if args.dump else runs.newest(settings)
    if run.dashboard and not args.log:
        status = complete_log(run, settings.RUN_DIR / "logs")
        say(f"run {run.id}: Ray {f'has it as {status}' if status else 'does not know it any more'}")
    run.logs = args.log or run.logs
    urls = run.gateways or settings.gateway_urls
    states = {url: readyz(url) for url in urls}
    silent = [url for url, (_, answer) in states.items() if not answer]
    layers = [services(states), verifier(settings, urls), rollout(run, urls, silent), training_step(run)]
    show(layers)
    verdict = settings.RUN_DIR / "accept.json"
    write_verdict(verdict, run, layers)
    words, missing = summary(layers)
    say(f"acceptance {words} ({verdict})")
    return 1 if missing else 0


if __name__ == "__main__":
    terminal.run(main)
