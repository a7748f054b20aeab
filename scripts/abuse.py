#!/usr/bin/env python3
"""The abuse list: hostile and excessive clients against a graph of its own, at full size.

The same tests run small in `make test`. Here: what the OpenAPI document allows and any value anywhere in
a payload, the protocol in any order of requests, storms of aborts, a soak of short trials, leases
that expire under load, more clients than the queue holds, slow and oversized and malformed requests,
addresses that try to leave the allowed networks, hostile tool names, replayed rollout ids, and what
listens where. A quarter of an hour on 2 cores; the graph is started for it and ended after it.

    make abuse
    scripts/run.sh abuse --abuse-trials 1000 -- -k soak        (what follows -- goes to pytest)
"""

import os
import subprocess
import sys

from common.failure import Failure
from common.settings import ROOT, from_command_line
from common.terminal import run, say

SIZES = ("ABUSE_TRIALS", "ABUSE_ABORTS", "ABUSE_CLIENTS", "ABUSE_EXAMPLES")
OPTIONS = {"pytest": {"nargs": "*", "help": "arguments for pytest"}}
FILES = ("chain/test_abuse_*.py", "chain/test_bad_input.py", "chain/test_ports.py")


def main() -> None:
    settings, args = from_command_line(__doc__, *SIZES, options=OPTIONS)
    tests = ROOT / "tests"
    files = [str(path.relative_to(tests)) for pattern in FILES for path in sorted(tests.glob(pattern))]
    environment = os.environ | {name: settings.texts[name] for name in SIZES} | {"ABUSE_FULL": "1"}
    command = [sys.executable, "-m", "pytest", "-q", *files, *args.pytest]
    if status := subprocess.run(command, cwd=tests, env=environment).returncode:
        raise Failure(f"the abuse list did not hold (pytest ended with {status}); the lines above say where")
    say("Abuse list held: " + " ".join(f"{name.lower()}={settings.texts[name]}" for name in SIZES))


if __name__ == "__main__":
    run(main)
