#!/usr/bin/env python3
"""Write one self-contained HTML file about a run: its pass rate, every sample, every trajectory: `make report`.

RUN is an evaluation (its name or folder), a rollout dump or a folder of them, of rehearsals or of
training; empty: the last `make smoke` or `make train`. The calls of each sample and of its ground
truth are replayed on fresh state here, without servers, to show where the final states differ;
about 10 ms a sample.

    make report
    make report RUN=Qwen3-4B-validation
    scripts/run.sh report --run data/experiments/rehearsal/rollout_result/train/ID.jsonl --out report.html
"""

from pathlib import Path

from common import terminal
from common.settings import from_command_line
from reports import document, samples

NAMES = ("RUN", "DATA_ROOT", "EXP_DIR", "SPLIT", "NEMO_GYM_SOURCE_DATA")
OPTIONS = {"--out": {"type": Path, "metavar": "FILE", "help": "where to write it [beside the run]"}}


def main() -> None:
    settings, args = from_command_line(__doc__, *NAMES, options=OPTIONS)
    source = samples.find(settings)
    path = args.out or source.target
    rate = document.write(path, source)["rate"]
    shown = "none" if rate["value"] is None else f"{rate['value']:.3f} [{rate['low']:.3f}, {rate['high']:.3f}]"
    lacking = document.missing(source)
    missing = f" missing={lacking}" if lacking else ""
    terminal.say(
        f"Report ready: {path.resolve()} run={source.name} samples={len(source.samples)}{missing} pass_rate={shown}"
    )


if __name__ == "__main__":
    terminal.run(main)
