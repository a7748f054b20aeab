#!/usr/bin/env python3
"""Run the whole chain, stage by stage, and say what it proved: `make smoke`.

Needs git, make and Python; no GPU, cluster or container engine. On two cores the first run
takes about two minutes with set-up, a repeat ten seconds. Each stage is the stage's own
script; the first that fails ends the run. The graph and the rehearsal's Ray stay up for the next
run, which reuses them; `make stop` ends them. With RAY_ADDRESS it is `make train` with one sample:
one row, one rollout, one optimizer step at most, with the real trainer and model.

Guarantees: the verdict calls each layer by name and claims nothing that did not run here; it says
that the policy model and the trainer's loop are stand-ins.

    make smoke
    make smoke SPLIT=validation LIMIT=32 REHEARSAL_POLICY=noop
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from urllib.parse import urlsplit

from checks import registry
from common import net, program, terminal
from common.failure import Failure
from common.settings import ONE_SAMPLE, Settings, from_command_line
from gateway import health
from inputs import rows
from rollouts import dump, runs
from servers import processes

OPTIONS = (
    "SPLIT", "LIMIT", "NEMO_GYM_SOURCE_DATA", "REHEARSAL_POLICY", "REHEARSAL_SAMPLES", "REHEARSAL_CONCURRENCY",
    "MODEL_URL", "MODEL", "RAY_ADDRESS",
)  # fmt: skip
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Which stage proves which layer of the verdict.
LAYERS = {"services ready": "graph", "verifier contract": "verifier contract", "model rollout": "acceptance"}


class Interrupted(Exception):
    """A signal ended the run; its number."""


class Result(NamedTuple):
    """How a stage ended: "passed", "failed" or "interrupted"."""

    stage: str
    end: str
    seconds: float
    note: str = ""


class Smoke:
    """One run: its stages in order and their results."""

    def __init__(self, settings: Settings):
        self.settings, self.earlier = settings, runs.rehearsals(settings)
        self.environment = os.environ | {name: settings.texts[name] for name in OPTIONS}
        self.child: subprocess.Popen | None = None
        self.signalled: int | None = None
        self.results: list[Result] = []
        self.stages: dict[str, Callable[[], str | None]] = {
            "data": self.data,
            "graph": lambda: self.script("gym_up"),
            "verifier contract": lambda: self.script("verify_verifier"),
            "deterministic trial": self.trial,
            "Ray job": lambda: self.run_program("rollouts/submit.py", program.room("rollouts.submit")),
            "rewards": self.rewards,
            "acceptance": self.acceptance,
            "released": self.released,
        }
        if settings.RAY_ADDRESS:
            self.stages = self.training_stages()

    def training_stages(self) -> dict[str, Callable[[], str | None]]:
        """The stages with a trainer; those of the Gym's machine only if that is this machine."""
        self.environment |= ONE_SAMPLE
        is_here = any(net.is_here(urlsplit(url).hostname) for url in self.settings.gateway_urls)
        gym = ("graph", "verifier contract", "deterministic trial") if is_here else ()
        first = {name: self.stages[name] for name in ("data", *gym)}
        last = {name: self.stages[name] for name in ("acceptance", "released")}
        return first | {"training job": lambda: self.script("train")} | last

    def run(self) -> bool:
        """Run the stages up to the first that fails: whether all passed."""
        return all(self.run_stage(name, stage) for name, stage in self.stages.items())

    def run_stage(self, name: str, stage: Callable[[], str | None]) -> bool:
        began, note = time.monotonic(), ""
        terminal.say(f"--> {name}")
        try:
            note = stage() or ""
            end = "passed"
        except Failure as failure:
            terminal.say(f"error: {failure}")
            end = "failed"
        except Interrupted:
            end = "interrupted"
        self.results.append(Result(name, end, round(time.monotonic() - began, 1), note))
        return end == "passed"

    def script(self, name: str, *arguments: str) -> None:
        """Run a stage's script to its end."""
        self.run_program(f"{name}.py", program.stage(name, *arguments))

    def run_program(self, name: str, command: list[str]) -> None:
        """Run a program to its end, its output shown as it comes. Raises Failure or Interrupted."""
        # In a session of its own, so that Ctrl-C reaches it only once: through `forward`.
        self.child = subprocess.Popen(command, env=self.environment, start_new_session=True)
        if self.signalled:
            self.child.send_signal(self.signalled)
        status = self.child.wait()
        self.child = None
        if self.signalled:
            raise Interrupted(self.signalled)
        if status != 0:
            raise Failure(f"scripts/{name} ended with {status}; what it said is above")

    def forward(self, number: int, frame: FrameType | None) -> None:
        self.signalled = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        if self.child:
            self.child.send_signal(self.signalled)

    def data(self) -> str:
        if not self.settings.NEMO_GYM_SOURCE_DATA:
            self.script("prepare_data")
        path = self.settings.rows_path()
        return f"{len(rows.read_rows(path, self.settings.LIMIT))} rows"

    def dump(self) -> Path:
        return runs.newest_dump(self.settings, self.earlier)

    def trial(self) -> None:
        # Over loopback: a trial from there may call back to loopback, whatever GYM_HOST is.
        self.script("verify_trial", "--nemo-gym-url", self.settings.local_url("gateway"))

    def acceptance(self) -> None:
        chosen = () if self.settings.RAY_ADDRESS else ("--dump", str(self.dump()))
        self.script("accept", *chosen)

    def rewards(self) -> str:
        """Check the rewards of the rollouts: the ground truth must earn 1 on every row."""
        records = dump.read_dump(self.dump())
        total = dump.summary(records)
        missed = sorted({str(record["row_id"]) for record in records if record["reward"] != 1.0})
        mean = total["mean_reward"]
        note = f"mean {mean:.3f}, {total['samples']} samples, {total['groups']} groups" if mean is not None else "none"
        terminal.say(f"rewards: {note}, {total['mixed_groups']} groups with mixed rewards")
        if self.settings.REHEARSAL_POLICY == "oracle" and missed:
            raise Failure(f"{self.dump()}: the ground truth earned less than 1 on the rows {', '.join(missed)[:300]}")
        return note

    def released(self) -> str:
        clean, held = health.released(self.settings.gateway_urls)
        terminal.say(held)
        if not clean:
            raise Failure(f"{', '.join(self.settings.gateway_urls)}: state is still held: {held}")
        return held


def final_table(smoke: Smoke, setup_seconds: int) -> str:
    done = [Result("set-up", "passed", setup_seconds), *smoke.results]
    total = round(sum(result.seconds for result in done), 1)
    lines = [(result.stage, result.end, f"{result.seconds}".rjust(7), result.note) for result in done]
    lines += [(name, "not run", " " * 7, "") for name in list(smoke.stages)[len(smoke.results) :]]
    return terminal.table(("stage", "result", "seconds", ""), [*lines, ("total", "", f"{total}".rjust(7), "")])


def verdict(smoke: Smoke) -> list[str]:
    """The verdict's lines: each layer by name, and who stood in for whom."""
    ends = {result.stage: result.end for result in smoke.results}
    if smoke.settings.RAY_ADDRESS:
        return ["The layers, with what proves each, are above and in accept.json; a step is claimed only there."]
    lines = [f"{layer + ':':<20}{ends.get(stage, 'not run')}" for layer, stage in LAYERS.items()]
    lines.append(f"{'training step:':<20}{runs.NO_TRAINER}")
    actors = {
        "oracle": "the rows' ground truth stood in for the policy model",
        "noop": "a policy that does nothing stood in for the policy model",
        "endpoint": f"the policy model was {smoke.settings.MODEL} at {smoke.settings.MODEL_URL}",
    }
    if "Ray job" not in ends:
        return lines
    actor = actors[smoke.settings.REHEARSAL_POLICY]
    return [*lines, f"Stand-ins: {actor}, and the rehearsal driver for the trainer's loop."]


def main() -> int:
    settings, _ = from_command_line(__doc__, *OPTIONS)
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
