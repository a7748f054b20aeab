#!/usr/bin/env python3
"""What runs inside a Ray job before the driver: wait for the Gateway, convert the rows, become the driver.

Any driver that takes `--prompt-data FILE` will do: the rehearsal or the trainer's. Guarantees:
the driver starts only after the Gateway said ready (for NEMO_GYM_STARTUP_TIMEOUT_S at most)
and every row was found fit; it takes this process's place, so that Ray's signals and its
exit status are the job's. Credentials come from a file that is removed once read, because
Ray shows a job's command line and variables to everybody who can see the dashboard.

    scripts/job.py --rows rows.jsonl --limit 5 --prompts /tmp/prompts.jsonl -- scripts/rehearsal.py ...
"""

import argparse
import json
import os
import sys
from pathlib import Path

from common import settings as variables
from common import terminal
from common.failure import Failure
from common.files import write_whole
from gateway import trial_request
from gateway.client import ClientError, Gateway
from inputs import rows


def command_line():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--rows", type=Path, required=True, metavar="FILE", help="raw task rows")
    add("--limit", type=int, default=0, metavar="N", help="rows to use, from the first [0: all]")
    add("--prompts", type=Path, required=True, metavar="FILE", help="where the converted rows go")
    add("--secrets", type=Path, metavar="FILE", help="JSON object of variables; removed once read")
    add("driver", nargs="+", metavar="DRIVER", help="after --: the driver and its arguments")
    return parser.parse_args()


def take_secrets(path):
    """Put the variables in `path` into the environment and remove the file."""
    try:
        os.environ.update(json.loads(path.read_bytes()))
        path.unlink()
    except (OSError, ValueError, TypeError) as error:
        raise Failure(f"--secrets {path}: {getattr(error, 'strerror', None) or 'not a JSON object of texts'}") from None


def wait_ready(settings, url):
    """Return once the Gateway at `url` is ready. Raises Failure with what it said last."""
    try:
        gateway = Gateway(settings, url)
        gateway.insist(lambda: gateway.exchange("GET", "/readyz"))
    except ClientError as error:
        limit = f"NEMO_GYM_STARTUP_TIMEOUT_S={settings.NEMO_GYM_STARTUP_TIMEOUT_S:g}"
        raise Failure(f"{url} is not ready ({limit}): {error}") from None


def convert(source, limit, target):
    """Write the first `limit` raw rows of `source` to `target` as the trainer reads them: their number."""
    prompts = [json.dumps(rows.to_relax(row)) + "\n" for row in rows.read_rows(source, limit)]
    write_whole(target, prompts)
    return len(prompts)


def main():
    args = command_line()
    if args.secrets:
        take_secrets(args.secrets)
    # Only the session client's: a trainer may use our other names for something else.
    settings = variables.load(names=trial_request.NAMES)
    for url in settings.gateway_urls:
        wait_ready(settings, url)
    count = convert(args.rows, args.limit, args.prompts)
    terminal.say(f"{', '.join(settings.gateway_urls)} ready, {count} rows converted")
    command = [*args.driver, "--prompt-data", str(args.prompts)]
    sys.stdout.flush()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise Failure(f"{command[0]}: {error.strerror}") from None


if __name__ == "__main__":
    terminal.run(main)
