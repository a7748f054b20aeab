"""The real image: built, checked, started, verified from inside and outside, compared, and stopped.

Minutes, most of them the first build and the start of two graphs. The tests share one image; the
local graph comes first, the container replaces it and serves the rest, and the last test stops it.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

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

SECRET = "never-show-me-4711"
CLONE = variables.ROOT
SHARED_DATA = CLONE.parent / "shared" / "data"
# A block of 200 ports of its own, and one more for Ray, below the kernel's range of chance ports.
BASE_PORT, RAY_PORT = 12400, 12600
CONTRACT = "Workplace Assistant verifier contract passed: equivalent_reward=1.0 incorrect_reward=0.0"
TRIAL = "Workplace Assistant trial passed: reward=1.0 tool_calls=2 tool_outputs=2 callbacks=3"
REBUILD_S = 20


class Stage:
    """One installation under test: its variables, and its stages run as programs."""

    def __init__(self, run_dir, **changes):
        defaults = {name: variable.default for name, variable in variables.declared().items()}
        own = {"RUN_DIR": run_dir, "DATA_ROOT": run_dir.parent / "data", "GYM_START_TIMEOUT_S": 400}
        own |= {"GYM_BASE_PORT": BASE_PORT, "GYM_RAY_PORT": RAY_PORT, "GYM_CONTAINER": "relax-nemo-gym-test"}
        self.texts = {name: str(value) for name, value in (defaults | own | changes).items()}
        self.settings = variables.load(environment=self.texts, dotenv=Path(os.devnull))

    def run(self, script, **changes):
        """Run a stage to its end. Returns its output; fails the test if it fails."""
        command = [sys.executable, str(CLONE / "scripts" / script)]
        ended = subprocess.run(command, env=os.environ | self.texts | changes, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout[-1000:] + ended.stderr[-3000:]
        return ended.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory, base, git_source):
    stage = Stage(
        tmp_path_factory.mktemp("docker") / "run",
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
    return outcomes(installation.settings), readiness(installation.settings)[1]["environment"]


@pytest.fixture(scope="module")
def container(client, installation, bare):
    assert "backend=docker" in installation.run("gym_up.py")
    assert not local.ours(installation.settings)
    (found,) = docker_backend.ours(client, installation.settings)
    return found


def test_the_build_ends_with_the_preflight(build_output):
    assert "Image preflight passed: commit=a85670eb167ba9b48cc53a36a070eed815e6c40d" in build_output
    assert " pandas=2.3.2 ray=2.55.1 openai=2.7.2 " in build_output
    assert "Image ready: relax-nemo-gym:test" in build_output


def test_network_variables_are_said_in_both_spellings_and_leave_no_trace(client, build_output):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        assert f"build argument {name}=" in build_output
    assert SECRET not in build_output.replace(f"{SECRET}.invalid", "")
    image = client.images.get("relax-nemo-gym:test")
    kept = json.dumps([image.attrs, image.history()])
    assert SECRET not in kept
    assert "_proxy" not in kept.lower()
    assert "TRUSTED_HOST" not in kept


def test_an_edited_script_rebuilds_in_seconds(client, installation, build_output, tmp_path, monkeypatch):
    for name in ("Dockerfile", ".dockerignore", "env.example"):
        shutil.copy(CLONE / name, tmp_path)
    for name in ("scripts", "patches"):
        shutil.copytree(CLONE / name, tmp_path / name)
    (tmp_path / "scripts" / "rows.py").open("a").write(f"# {time.time()}\n")
    monkeypatch.setattr(build_image, "ROOT", tmp_path)
    arguments = {name: installation.texts[name] for name in ("RELAX_IMAGE", "NEMO_GYM_GIT")}
    arguments |= {"PIP_TRUSTED_HOST": f"{SECRET}.invalid", "CODE": "edited"}
    began = time.monotonic()
    silent = SimpleNamespace(detail=lambda text: None)
    image = build_image.build(client, installation.settings, arguments, tmp_path / "log", silent)
    took = time.monotonic() - began
    client.images.remove(image, force=True)
    assert took < REBUILD_S


def test_the_container_is_confined(container, installation):
    host = container.attrs["HostConfig"]
    assert host["ReadonlyRootfs"] and host["Init"] and host["NetworkMode"] == "host"
    assert host["CapDrop"] == ["ALL"] and not host["Privileged"]
    assert host["ShmSize"] == installation.settings.GYM_SHM_MB << 20
    assert host["RestartPolicy"] == docker_backend.RESTART
    assert container.attrs["Config"]["StopSignal"] == "SIGINT"
    assert not any("proxy" in line.lower() for line in container.attrs["Config"]["Env"])


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


def test_both_backends_give_the_same_bytes(container, installation, bare):
    played, environment = bare
    for task, one, other in zip(compared_rows(), played, outcomes(installation.settings), strict=True):
        assert one == other, f"row {task['id']} of {task['category']}"
    assert all(reward == 1.0 for _, reward in played)
    assert sum(len(outputs) for outputs, _ in played) > len(played)
    now = readiness(installation.settings)[1]["environment"]
    for name in ("gym_commit", "pandas", "workplace_tree", "patches"):
        assert environment[name] == now[name]


def compared_rows():
    """The five example rows, and the first 50 of the task rows beside the clone where they are."""
    found = rows.read_rows(installed_tree() / WORKPLACE / "data" / "example.jsonl")
    more = SHARED_DATA / "workbench_dev.jsonl"
    return found + (rows.read_rows(more, 50) if more.exists() else [])


def outcomes(settings):
    """Play each row's ground truth as a trial: [(its tool outputs, byte for byte, its reward)]."""
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
            return list(pool.map(play, compared_rows()))
    finally:
        server.stop()


def test_a_stop_ends_the_container_and_confirms(client, container, installation):
    assert "none left" in installation.run("stop.py")
    assert docker_backend.ours(client, installation.settings) == []
    assert (installation.settings.RUN_DIR / "logs" / "supervisor.log").stat().st_size
    assert "nothing was running" in installation.run("stop.py")
