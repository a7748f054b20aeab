"""A real Docker engine for these tests, what they build on, and what makes them skip.

With an engine alone, the engine's own faults are tested, in seconds. The image itself needs two
things more, which a machine without registry and without GitHub lacks: IMAGE_TEST_BASE, an image
with Python 3.12, git, ray and loguru that stands in for the trainer's, and IMAGE_TEST_GIT, a bare
repository of NeMo Gym that holds the pinned commit (it is served from here by `git daemon`).
"""

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

import docker_backend
from terminal import Failure

# The same each time: the build remembers its steps by what it is given, this address too.
GIT_PORT = 12399


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.docker)
            # The first build takes minutes.
            item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(scope="session")
def client():
    try:
        return docker_backend.connect()
    except Failure as failure:
        pytest.skip(str(failure))


@pytest.fixture(scope="session")
def base(client):
    name = os.environ.get("IMAGE_TEST_BASE")
    if not name:
        pytest.skip("IMAGE_TEST_BASE names no image to build on")
    client.images.get(name)
    return name


@pytest.fixture(scope="session")
def git_source(tmp_path_factory):
    """URL of a local git server that has NeMo Gym's pinned commit and allows partial clones."""
    repository = os.environ.get("IMAGE_TEST_GIT")
    if not repository:
        pytest.skip("IMAGE_TEST_GIT names no bare repository of NeMo Gym")
    repository = Path(repository).resolve()
    allowed = ["uploadpack.allowFilter=true", "uploadpack.allowAnySHA1InWant=true", "safe.directory=*"]
    options = [word for option in allowed for word in ("-c", option)]
    command = ["git", *options, "daemon", "--reuseaddr", "--export-all", f"--base-path={repository.parent}"]
    server = subprocess.Popen([*command, "--listen=127.0.0.1", f"--port={GIT_PORT}", str(repository)])
    try:
        wait_for(GIT_PORT)
        yield f"git://127.0.0.1:{GIT_PORT}/{repository.name}"
    finally:
        server.terminate()
        server.wait()


def wait_for(port):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with socket.socket() as probe:
            if not probe.connect_ex(("127.0.0.1", port)):
                return
        time.sleep(0.1)
    raise RuntimeError("the git server does not answer")
