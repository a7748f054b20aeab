"""A real Docker engine, what the tests of the image build on, and what makes them skip.

The base is a stand-in for the trainer's image, made of this machine (standin_base). NeMo Gym comes from a
repository made of the installed release (standin_gym), which `git daemon` serves. The first build takes minutes;
the images stay, and the next run builds in seconds. IMAGE_TEST_BASE names another base that the engine has
(empty: skip these tests), IMAGE_TEST_GIT a bare repository that holds the pinned commit.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import docker
from common.failure import Failure
from common.settings import ROOT
from proofs.rig import eventually
from servers import container, ports, tree
from support import standin_base, standin_gym

# Fixed, since the build caches its steps by their arguments, this address among them.
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
        return container.connect()
    except Failure as failure:
        pytest.skip(str(failure))


@pytest.fixture(scope="session")
def base(client):
    """Name of the base image. Skips where the engine could not build on it in reasonable time."""
    if client.info()["Driver"] == "vfs":
        pytest.skip("the engine copies the whole image at each step of a build (storage driver vfs)")
    name = os.environ.get("IMAGE_TEST_BASE", standin_base.NAME)
    if not name:
        pytest.skip("IMAGE_TEST_BASE is empty")
    if name == standin_base.NAME:
        standin_base.make(client)
    try:
        client.containers.run(name, ["/bin/sh", "-c", ":"], network_mode="none", remove=True)
    except docker.errors.APIError as error:
        pytest.skip(f"the engine runs no containers: {error.explanation}")
    return name


@pytest.fixture(scope="session")
def repository(tmp_path_factory):
    """A git repository that holds NeMo Gym, and the commit to take from it."""
    if given := os.environ.get("IMAGE_TEST_GIT"):
        return Path(given).resolve(), tree.GYM_COMMIT
    folder = tmp_path_factory.mktemp("git") / "gym"
    folder.mkdir()
    return folder, standin_gym.make(folder)


@pytest.fixture(scope="session")
def git_source(repository):
    """URL of a local git server that has the repository and allows partial clones."""
    folder, _ = repository
    allowed = ["uploadpack.allowFilter=true", "uploadpack.allowAnySHA1InWant=true", "safe.directory=*"]
    options = [word for option in allowed for word in ("-c", option)]
    command = ["git", *options, "daemon", "--reuseaddr", "--export-all", f"--base-path={folder.parent}"]
    server = subprocess.Popen([*command, "--listen=127.0.0.1", f"--port={GIT_PORT}", str(folder)])
    try:
        eventually(lambda: ports.connects(GIT_PORT))
        yield f"git://127.0.0.1:{GIT_PORT}/{folder.name}"
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="session")
def clone(tmp_path_factory, repository):
    """This clone; a copy of it that pins another commit where the repository lacks the pinned one."""
    _, commit = repository
    if commit == tree.GYM_COMMIT:
        return ROOT
    folder = tmp_path_factory.mktemp("clone")
    (folder / "data").mkdir()
    for name in ("Dockerfile", ".dockerignore", "env.example", "data/dataset.lock.json"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("scripts", "patches"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Dockerfile", "scripts/servers/tree.py"):
        text = (folder / name).read_text()
        assert text.count(tree.GYM_COMMIT) == 1, name
        (folder / name).write_text(text.replace(tree.GYM_COMMIT, commit))
    return folder
