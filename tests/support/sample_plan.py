"""The plan that the README shows: what a dry run prints against a scripted cluster, with places anybody may have."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support.http_server import HttpServer
from support.scripted_dashboard import ScriptedDashboard
from unit.stages import test_train

COMMIT = re.compile(r"(?<= at )(?:[0-9a-f]{12}\+?|no git checkout)$", re.M)


def printed():
    """The plan's lines, places replaced by those of the README."""
    state = test_train.READY | {"gym_commit": "<commit>", "service_epoch": "<epoch>"}
    folder = Path(tempfile.mkdtemp())
    try:
        with HttpServer({"/readyz": state}) as gateway, ScriptedDashboard() as dashboard:
            test_train.make_place(folder, 32)
            environment = test_train.variables(folder, [gateway], dashboard, DRY_RUN="1", LIMIT="32")
            found = plan(environment)
            places = {dashboard.url: "http://10.0.0.5:8265", environment["RAY_ADDRESS"]: "10.0.0.5:6379"}
    finally:
        shutil.rmtree(folder)
    places |= {gateway.url: "http://10.0.0.4:29000", f"{folder}/relax": "/shared/Relax"}
    places |= {f"{folder}/exp": "/shared/experiments", str(folder): "/shared", str(test_train.ROOT): "/shared/clone"}
    for ours, shown in places.items():
        found = found.replace(ours, shown)
    return COMMIT.sub("<commit>", found)


def plan(environment):
    command = [sys.executable, str(test_train.SCRIPTS / "train.py")]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout[: done.stdout.index("Dry run:")]
