"""Programs that a test runs to their end: any command, or one of our stages."""

import os
import subprocess
import sys

from common import program

# Runs a stage as its own program, without the waits of clients between tries.
WITHOUT_WAITS = """
import runpy, sys, time
time.sleep = lambda seconds: None
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
DEAD = "http://127.0.0.1:9"


def run(*command, **options):
    """The completed process of a command, with its output as text."""
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=100, **options)


def stage(name, *options, **variables):
    """The completed process of a stage in the tests' own environment with `variables`; it ends without a traceback."""
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    done = run(*program.stage(name), *options, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def stage_alone(name, *options, home, **variables):
    """The completed process of a stage in an empty home, with `variables` and proxies that lead nowhere."""
    environment = {"PATH": os.environ["PATH"], "HOME": home, "http_proxy": DEAD, "https_proxy": DEAD}
    environment |= {"no_proxy": "127.0.0.1"} | variables
    command = [sys.executable, "-c", WITHOUT_WAITS, program.SCRIPTS / f"{name}.py", *options]
    return run(*command, env={name: str(value) for name, value in environment.items()})


def only_error(done):
    """The one line of what went wrong, after asserting that it is one and no traceback."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
