#!/usr/bin/env python3
"""Run the whole chain, stage by stage, and say what it proved: `make smoke`.

Needs git, make and Python; no GPU, cluster or container engine. On two cores the first run
takes about two minutes with set-up, a repeat ten seconds. Each stage is the stage's own
script; the first that fails ends the run. Guarantees: the verdict calls each layer by name
and claims nothing that did not run here; the policy model and the trainer's loop are
stand-ins, and it says so. The graph and the rehearsal's Ray stay up for the next run, which
reuses them; `make stop` ends them. With RAY_ADDRESS it is `make train` with one sample: one row,
one rollout, one optimizer step at most, with the real trainer and model.

    make smoke
    make smoke SPLIT=validation LIMIT=32 REHEARSAL_POLICY=noop
"""

import os
import signal
import subprocess
import time
from urllib.parse import urlsplit

from checks import registry
from common import net, program, terminal
from common import settings as variables
from common.failure import Failure
from gateway import health
from inputs import rows
from rollouts import dump as rollout_dump
from rollouts import runs
from servers import processes

OPTIONS = (
    "SPLIT",
    "LIMIT",
    "NEMO_GYM_SOURCE_DATA",
    "REHEARSAL_POLICY",
    "REHEARSAL_SAMPLES",
    "REHEARSAL_CONCURRENCY",
    "MODEL_URL",
    "MODEL",
    "RAY_ADDRESS",
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Which stage proves which layer of the verdict.
LAYERS = {"services ready": "graph", "verifier contract": "verifier contract", "model rollout": "acceptance"}


class Interrupted(Exception):
    """A signal ended the run; its number."""


class Smoke:
    """One run: its stages in order and what became of them."""

    def __init__(self, settings):
        self.settings, self.earlier = settings, runs.rehearsals(settings)
        self.environment = os.environ | {name: settings.texts[name] for name in OPTIONS}
        self.here = any(net.is_here(urlsplit(url).hostname) for url in settings.gateway_urls)
        self.child, self.signalled = None, None
        self.results = []
        self.stages = {
            "data": self.data,
            "graph": lambda: self.script("gym_up"),
            "verifier contract": lambda: self.script("verify_verifier"),
            "deterministic trial": self.trial,
            "Ray job": lambda: self.play("rollouts/submit.py", program.room("rollouts.submit")),
            "rewards": self.rewards,
            "acceptance": self.acceptance,
            "released": self.released,
        }
        if settings.RAY_ADDRESS:
            self.stages = self.training_stages()

    def training_stages(self):
        """The stages with a trainer; those of the Gym's machine only where that is this one."""
        self.environment |= variables.ONE_SAMPLE
        gym = ("graph", "verifier contract", "deterministic trial") if self.here else ()
        stages = {name: stage for name, stage in self.stages.items() if name in ("data", *gym)}
        last = {name: self.stages[name] for name in ("acceptance", "released")}
        return stages | {"training job": lambda: self.script("train")} | last

    def run(self):
        """Run the stages up to the first that fails: whether all passed."""
        return all(self.one(name, stage) for name, stage in self.stages.items())

    def one(self, name, stage):
        began, note = time.monotonic(), ""
        terminal.say(f"--> {name}")
        try:
            note = stage() or ""
            result = "passed"
        except Failure as failure:
            terminal.say(f"error: {failure}")
            result = "failed"
        except Interrupted:
            result = "interrupted"
        self.results.append((name, result, round(time.monotonic() - began, 1), note))
        return result == "passed"

    def script(self, name, *arguments):
        """Run a stage's script to its end."""
        self.play(f"{name}.py", program.stage(name, *arguments))

    def play(self, name, command):
        """Run a program to its end, its output shown as it comes. Raises Failure or Interrupted."""
        # In a session of its own, so that Ctrl-C reaches it once: through `forward`.
        self.child = subprocess.Popen(command, env=self.environment, start_new_session=True)
        if self.signalled:
            self.child.send_signal(self.signalled)
        status = self.child.wait()
        self.child = None
        if self.signalled:
            raise Interrupted(self.signalled)
        if status != 0:
            raise Failure(f"scripts/{name} ended with {status}; what it said is above")

    def forward(self, number, frame):
        self.signalled = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        if self.child:
            self.child.send_signal(self.signalled)

    def data(self):
        if not self.settings.NEMO_GYM_SOURCE_DATA:
            self.script("prepare_data")
        path = self.settings.rows_path()
        return f"{len(rows.read_rows(path, self.settings.LIMIT))} rows"

    def dump(self):
        return runs.newest_dump(self.settings, self.earlier)

    def trial(self):
        # Over loopback, from which a loopback callback is allowed, whatever GYM_HOST is.
        self.script("verify_trial", "--nemo-gym-url", self.settings.local_url("gateway"))

    def acceptance(self):
        chosen = () if self.settings.RAY_ADDRESS else ("--dump", str(self.dump()))
        self.script("accept", *chosen)

    def rewards(self):
        """Check what the rollouts earned: the ground truth must earn 1 on every row."""
        records = rollout_dump.read_dump(self.dump())
        total = rollout_dump.summary(records)
        missed = sorted({str(item["row_id"]) for item in records if item["reward"] != 1.0})
        mean = total["mean_reward"]
        note = f"mean {mean:.3f}, {total['samples']} samples, {total['groups']} groups" if mean is not None else "none"
        terminal.say(f"rewards: {note}, {total['mixed_groups']} groups with mixed rewards")
        if self.settings.REHEARSAL_POLICY == "oracle" and missed:
            raise Failure(f"{self.dump()}: the ground truth earned less than 1 on the rows {', '.join(missed)[:300]}")
        return note

    def released(self):
        clean, said = health.released(self.settings.gateway_urls)
        terminal.say(said)
        if not clean:
            raise Failure(f"{', '.join(self.settings.gateway_urls)}: state is still held: {said}")
        return said


def final_table(smoke, setup_seconds):
    rest = [(name, "not run", "", "") for name in list(smoke.stages)[len(smoke.results) :]]
    done = [("set-up", "passed", setup_seconds, ""), *smoke.results]
    total = round(sum(row[2] for row in done), 1)
    shown = [(name, result, f"{seconds}".rjust(7), note) for name, result, seconds, note in [*done, *rest]]
    return terminal.table(("stage", "result", "seconds", ""), [*shown, ("total", "", f"{total}".rjust(7), "")])


def verdict(smoke):
    """The verdict's lines: each layer by name, and who stood in for whom."""
    results = {name: result for name, result, _, _ in smoke.results}
    if smoke.settings.RAY_ADDRESS:
        return ["The layers, with what proves each, are above and in accept.json; a step is claimed only there."]
    lines = [f"{layer + ':':<20}{results.get(stage, 'not run')}" for layer, stage in LAYERS.items()]
    lines.append(f"{'training step:':<20}{runs.NO_TRAINER}")
    actors = {
        "oracle": "the rows' ground truth stood in for the policy model",
        "noop": "a policy that does nothing stood in for the policy model",
        "endpoint": f"the policy model was {smoke.settings.MODEL} at {smoke.settings.MODEL_URL}",
    }
    if "Ray job" not in results:
        return lines
    actor = actors[smoke.settings.REHEARSAL_POLICY]
    return [*lines, f"Stand-ins: {actor}, and the rehearsal driver for the trainer's loop."]


def main():
    settings, _ = variables.from_command_line(__doc__, *OPTIONS)
    registry.at_start("smoke", settings)
    smoke = Smoke(settings)
    for number in SIGNALS:
        signal.signal(number, smoke.forward)
    passed = smoke.run()
    terminal.say("\n" + final_table(smoke, int(os.environ.get("SETUP_SECONDS", "0"))) + "\n")
    for line in verdict(smoke):
        terminal.say(line)
    if processes.ours(settings):
        terminal.say("The servers and the rehearsal's Ray stay up for the next run; `make stop` ends them.")
    terminal.say(f"make smoke: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 128 + smoke.signalled if smoke.signalled else 1


if __name__ == "__main__":
    terminal.run(main)
