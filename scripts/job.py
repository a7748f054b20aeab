#!/usr/bin/env python3
"""Inside a Ray job: wait for every Gateway, then become the driver, the rehearsal's or the trainer's.

Guarantees:
- the driver starts only after every Gateway is ready, within NEMO_GYM_STARTUP_TIMEOUT_S
- the driver takes this process's place, so that it gets Ray's signals and its exit status is the job's
- credentials come from a file that is removed once read, because Ray shows a job's command line and variables
  to everybody who can see the dashboard

    scripts/job.py --secrets secrets.json -- python3 -m rollouts.rehearsal ...
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from common import settings as variables
from common import terminal
from common.failure import Failure
from common.files import in_words
from gateway import trial_request
from gateway.client import ClientError, Gateway


def take_secrets(path: Path) -> None:
    """Put the variables in `path` into the environment and remove the file."""
    try:
        os.environ.update(json.loads(path.read_bytes()))
        path.unlink()
    except (OSError, ValueError, TypeError) as error:
        raise Failure(f"--secrets {path}: {getattr(error, 'strerror', None) or 'not a JSON object of texts'}") from None


def wait_ready(settings: variables.Settings, url: str) -> None:
    """Return once the Gateway at `url` is ready. Raises Failure with its last answer."""
    try:
        gateway = Gateway(settings, url)
        gateway.insist(lambda: gateway.exchange("GET", "/readyz"))
    except ClientError as error:
        limit = f"NEMO_GYM_STARTUP_TIMEOUT_S={settings.NEMO_GYM_STARTUP_TIMEOUT_S:g}"
        raise Failure(f"{url} is not ready ({limit}): {error}") from None


def main() -> None:
    parser = variables.command_line(__doc__)
    parser.add_argument("--secrets", type=Path, metavar="FILE", help="JSON object of variables; removed once read")
    parser.add_argument("driver", nargs="+", metavar="DRIVER", help="after --: the driver and its arguments")
    args = parser.parse_args()
    if args.secrets:
        take_secrets(args.secrets)
    # Only the session client's variables: a trainer may use our other names for something else.
    settings = variables.load(names=trial_request.NAMES)
    for url in settings.gateway_urls:
        wait_ready(settings, url)
    terminal.say(f"{', '.join(settings.gateway_urls)} ready")
    with in_words(args.driver[0]):
        os.execvp(args.driver[0], args.driver)


if __name__ == "__main__":
    terminal.run(main)
