"""The real image: built, checked, started, verified from inside and outside, compared, and stopped.

Minutes, most of them the first build and the start of two graphs. The tests share one image; the
local graph comes first, the container replaces it and serves the rest, and the last test stops it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import apply_patches
import build_image
import docker_backend
import local
import model_api
import rows
import session_client
import settings as variables
import verify_trial
from apply_patches import WORKPLACE, installed_tree
from gateway_client import Gateway, Trial
from gym_up import readiness
from terminal import Failure

SECRET = "never-show-me-4711"
TOKEN = "only-its-owner-reads-me-0815"
# Rows that both backends play: the first so many of each file.
COMPARED = {
    "example": (installed_tree() / WORKPLACE / "data" / "example.jsonl", 5),
    "workbench": (variables.ROOT.parent / "shared" / "data" / "workbench_dev.jsonl", 50),
}
# A block of 200 ports of its own, and one more for Ray, below the kernel's range of chance ports.
BASE_PORT, RAY_PORT = 12400, 12600
CONTRACT = "Workplace Assistant verifier contract passed: equivalent_reward=1.0 incorrect_reward=0.0"
TRIAL = "Workplace Assistant trial passed: reward=1.0 tool_calls=2 tool_outputs=2 callbacks=3"
SILENT = SimpleNamespace(detail=lambda text: None)


class Stage:
    """One installation under test: its clone, its variables, and its stages run as programs."""

    def __init__(self, clone, run_dir, **changes):
        defaults = {name: variable.default for name, variable in variables.declared().items()}
        own = {"RUN_DIR": run_dir, "DATA_ROOT": run_dir.parent / "data", "GYM_START_TIMEOUT_S": 400}
        own |= {"GYM_BASE_PORT": BASE_PORT, "GYM_RAY_PORT": RAY_PORT, "GYM_CONTAINER": "relax-nemo-gym-test"}
        own |= {"GATEWAY_TOKEN": TOKEN}
        self.texts = {name: str(value) for name, value in (defaults | own | changes).items()}
        self.settings = variables.load(environment=self.texts, dotenv=Path(os.devnull))
        self.clone = clone

    def run(self, script, **changes):
        """Run a stage to its end. Returns its output; fails the test if it fails."""
        command = [sys.executable, str(self.clone / "scripts" / script)]
        ended = subprocess.run(command, env=os.environ | self.texts | changes, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout[-1000:] + ended.stderr[-3000:]
        return ended.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory, base, git_source, clone):
    stage = Stage(
        clone, tmp_path_factory.mktemp("docker") / "run",
        RELAX_IMAGE=base, NEMO_GYM_GIT=git_source, NEMO_GYM_IMAGE="relax-nemo-gym:test", GYM_BACKEND="docker",
    )  # fmt: skip
    yield stage
    stage.run("stop.py")


@pytest.fixture(scope="module")
def build_output(installation):
    # The proxy leads nowhere: what reaches the network does so because no_proxy was passed as well.
    return installation.run(
        "build_image.py",
        http_proxy=f"http://{SECRET}:x@127.0.0.1:9",
        HTTPS_PROXY=f"http://{SECRET}:x@127.0.0.1:9",
        no_proxy="*",
        PIP_TRUSTED_HOST=f"{SECRET}.invalid",
    )


@pytest.fixture(scope="module")
def bare(installation, build_output):
    """What the local graph makes of the compared rows, and its environment's fingerprint."""
    assert "backend=local" in installation.run("gym_up.py", GYM_BACKEND="local")
    environment = readiness(installation.settings)[1]["environment"]
    return {name: outcomes(installation.settings, name) for name in COMPARED}, environment


@pytest.fixture(scope="module")
def container(client, installation, bare):
    assert "backend=docker" in installation.run("gym_up.py")
    assert not local.ours(installation.settings)
    (found,) = docker_backend.ours(client, installation.settings)
    return found


def test_the_build_ends_with_the_preflight(build_output, repository):
    folder, commit = repository
    assert f"Image preflight passed: commit={commit}" in build_output
    for package in ("pandas", "ray", "openai", "fastapi", "aiohttp"):
        assert f" {package}={locked(folder, commit)[package]}" in build_output
    assert "Image ready: relax-nemo-gym:test" in build_output


def locked(folder, commit):
    """{package: version} of the commit's own lock."""
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), "show", f"{commit}:uv.lock"]
    packages = tomllib.loads(subprocess.check_output(command, text=True))["package"]
    return {package["name"]: package.get("version") for package in packages}


def test_the_preflight_ran_ray_serve_with_the_bases_own_python(build_output):
    if os.environ["IMAGE_TEST_BASE"] != "standin":
        pytest.skip("whether that base has Ray Serve is not known here")
    assert "Note: the base image has no Ray Serve" not in build_output


def test_a_repository_without_the_pinned_commit_is_refused(client, installation, build_output, repository, tmp_path):
    if repository[1] == apply_patches.GYM_COMMIT:
        pytest.skip("the repository has the pinned commit")
    arguments = {name: installation.texts[name] for name in ("RELAX_IMAGE", "NEMO_GYM_GIT")}
    with pytest.raises(Failure, match="NeMo Gym could not be fetched; check NEMO_GYM_GIT"):
        build_image.build(client, installation.settings, arguments, tmp_path / "log", SILENT)


def test_network_variables_are_said_in_both_spellings_and_leave_no_trace(client, build_output):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        assert f"build argument {name}=" in build_output
    assert SECRET not in build_output.replace(f"{SECRET}.invalid", "")
    image = client.images.get("relax-nemo-gym:test")
    kept = json.dumps([image.attrs, image.history()])
    assert SECRET not in kept
    assert "_proxy" not in kept.lower()
    assert "TRUSTED_HOST" not in kept


def test_after_an_edit_of_scripts_only_the_last_copy_is_made_anew(
    client, installation, build_output, tmp_path, monkeypatch
):
    edited, log = tmp_path / "clone", tmp_path / "log"
    shutil.copytree(installation.clone, edited, ignore=shutil.ignore_patterns(".git", ".venv", "data", "tests"))
    (edited / "scripts" / "rows.py").open("a").write(f"# {time.time()}\n")
    monkeypatch.setattr(build_image, "ROOT", edited)
    arguments = {name: installation.texts[name] for name in ("RELAX_IMAGE", "NEMO_GYM_GIT")}
    arguments |= {"PIP_TRUSTED_HOST": f"{SECRET}.invalid", "CODE": "edited"}
    image = build_image.build(client, installation.settings, arguments, log, SILENT)
    client.images.remove(image, force=True)
    steps = re.findall(r"^Step \S+ : (\w+ .*)\n([^\n]*)", log.read_text(), re.MULTILINE)
    anew = [step for step, said in steps if "Using cache" not in said and not step.startswith("FROM ")]
    assert [step.split()[0] for step in anew] == ["COPY", "ARG", "LABEL"]


def test_the_container_is_confined(container, installation):
    host = container.attrs["HostConfig"]
    assert host["ReadonlyRootfs"] and host["Init"] and host["NetworkMode"] == "host"
    assert host["CapDrop"] == ["ALL"] and not host["Privileged"]
    assert host["ShmSize"] == installation.settings.GYM_SHM_MB << 20
    assert host["RestartPolicy"] == docker_backend.RESTART
    assert container.attrs["Config"]["StopSignal"] == "SIGINT"
    assert not any("proxy" in line.lower() for line in container.attrs["Config"]["Env"])


def test_the_token_is_in_a_file_of_the_owners_and_not_in_what_inspect_shows(client, container, installation):
    assert TOKEN not in json.dumps([client.api.inspect_container(container.id), container.top()])
    path = installation.settings.RUN_DIR / docker_backend.TOKEN
    assert (path.read_text(), path.stat().st_mode & 0o777) == (TOKEN, 0o600)
    status, _ = local.get(f"{installation.settings.local_url('gateway')}/v1/trials/none", 5)
    assert status == 401


def test_only_the_gateway_may_be_reached_from_beyond_loopback(container, installation):
    pids = {int(row[1]) for row in container.top()["Processes"]}
    group = [process for process in local.processes() if process.pid in pids]
    assert len(group) > 5
    assert local.beyond_loopback(group, allowed={installation.settings.port("gateway")}) == []


def test_verify_passes_from_outside(container, installation):
    assert CONTRACT in installation.run("verify_verifier.py")
    assert TRIAL in installation.run("verify_trial.py")


def test_verify_passes_from_inside(container):
    for script, line in (("verify_verifier.py", CONTRACT), ("verify_trial.py", TRIAL)):
        command = [docker_backend.PYTHON, f"{docker_backend.HOME}/scripts/{script}"]
        status, output = container.exec_run(command)
        assert (status, line in output.decode()) == (0, True), output.decode()


def test_a_second_start_keeps_the_container(client, container, installation):
    assert "kept, its fingerprint matches" in installation.run("gym_up.py")
    assert [c.id for c in docker_backend.ours(client, installation.settings)] == [container.id]


@pytest.mark.parametrize("name", ["example", pytest.param("workbench", marks=pytest.mark.shared_data)])
def test_both_backends_give_the_same_bytes(container, installation, bare, name):
    played = bare[0][name]
    assert len(played) == COMPARED[name][1]
    for number, (one, other) in enumerate(zip(played, outcomes(installation.settings, name), strict=True), 1):
        assert one == other, f"row {number} of {name}"
    assert all(reward == 1.0 for _, reward in played)
    assert sum(len(outputs) for outputs, _ in played) > len(played)


def test_both_backends_have_the_same_environment(container, installation, bare):
    now = readiness(installation.settings)[1]["environment"]
    for name in ("gym_commit", "pandas", "workplace_tree", "patches"):
        assert bare[1][name] == now[name]


def outcomes(settings, name):
    """Play the ground truth of each compared row as a trial: [(its tool outputs, byte for byte, its reward)]."""
    path, count = COMPARED[name]
    tasks = rows.read_rows(path, count) if path.exists() else []
    seen = {}

    def policy(session, body):
        items = body["input"]
        seen[session.id] = [item["output"] for item in items if item.get("type") == "function_call_output"]
        return model_api.oracle(session, body)

    server = model_api.ModelAPI("127.0.0.1", policy)

    def play(row):
        relax = rows.to_relax(row)
        task = {"messages": relax["input"], "metadata": relax["metadata"]}
        session = verify_trial.session_of(server, task)
        payload = session_client.create_payload(settings, session, task)
        snapshot = Trial(Gateway(settings), payload).finish()
        return seen.get(session["SESSION_ID"]), snapshot["reward"]

    try:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(play, tasks))
    finally:
        server.stop()


def test_a_stop_ends_the_container_and_confirms(client, container, installation):
    assert "none left" in installation.run("stop.py")
    assert docker_backend.ours(client, installation.settings) == []
    assert not (installation.settings.RUN_DIR / docker_backend.TOKEN).exists()
    assert (installation.settings.RUN_DIR / "logs" / "supervisor.log").stat().st_size
    assert "nothing was running" in installation.run("stop.py")
