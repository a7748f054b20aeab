"""The real image: built, checked, started, verified from inside and outside, compared and stopped.

The first build takes minutes. The tests share one image and one container, which the last test stops. The
container's results are compared with the environment's code, as the local graph's are in chain/test_parity.py.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import build_image
from common import net
from common import settings as variables
from common.failure import Failure
from proofs.rig import environment
from servers import container, ports, processes, tree
from servers.graph import choose_backend, graph_code, readiness, replace_graph
from support import outcomes, standin_base

SECRET = "never-show-me-4711"
TOKEN = "only-its-owner-reads-me-0815"
# Of a block of 201 ports of its own, below those that the kernel hands out.
BASE_PORT = 12400
CONTRACT = "Workplace Assistant verifier contract passed: equivalent_reward=1.0 incorrect_reward=0.0"
TRIAL = "Workplace Assistant trial passed: reward=1.0 tool_calls=2 tool_outputs=2 callbacks=3"
# The clone under another path, which the engine does not have: $0 is seen at $1, by the Python $2.
ELSEWHERE = """
mount --bind "$0" "$1"
exec "$2" -c 'if True:
    from common import settings, terminal
    from servers import container
    def check():
        given, client = settings.load(), container.connect()
        container.check_paths(client, given, client.images.get(given.NEMO_GYM_IMAGE))
    terminal.run(check)'
"""
# The proxy leads nowhere, so the build reaches the network only if it is given no_proxy as well.
NETWORK = dict.fromkeys(("http_proxy", "HTTPS_PROXY"), f"http://{SECRET}:x@127.0.0.1:9")
NETWORK |= {"no_proxy": "*", "PIP_TRUSTED_HOST": f"{SECRET}.invalid"}
DYING = "relax-nemo-gym:dying"
SILENT = SimpleNamespace(detail=lambda text: None)


class Stage:
    """One installation under test: its clone, its variables, and its stages run as programs."""

    def __init__(self, clone, run_dir, **changes):
        own = {"DATA_ROOT": str(run_dir.parent / "data"), "EXP_DIR": str(run_dir.parent / "experiments")}
        own |= {"GYM_START_TIMEOUT_S": "400", "GYM_CONTAINER": "relax-nemo-gym-test", "GATEWAY_TOKEN": TOKEN}
        self.clone, self.texts = clone, environment(run_dir, BASE_PORT, **own | changes)
        self.settings = self.with_changes()

    def with_changes(self, **changes):
        return variables.load(environment=self.texts | changes, dotenv=Path(os.devnull))

    def run(self, script, **changes):
        """Run a stage to its end. Returns its output; fails the test if it fails."""
        command = [sys.executable, str(self.clone / "scripts" / script)]
        ended = subprocess.run(command, env=self.texts | changes, capture_output=True, text=True)
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
    return installation.run("build_image.py", **NETWORK)


def build_arguments(installation):
    """Those of `build_output`, so that its cached steps are found again."""
    own = {name: installation.texts[name] for name in ("RELAX_IMAGE", "NEMO_GYM_GIT")}
    return build_image.network_arguments(os.environ | NETWORK) | own


@pytest.fixture(scope="module")
def running(client, installation, build_output):
    """The graph's container."""
    assert "backend=docker" in installation.run("gym_up.py")
    assert not processes.ours(installation.settings)
    [gym] = container.ours(client, installation.settings)
    return gym


def test_the_build_ends_with_the_preflight(base, build_output, repository):
    folder, commit = repository
    assert f"Image preflight passed: commit={commit}" in build_output
    command = ["git", "-c", "safe.directory=*", "-C", str(folder), "show", f"{commit}:uv.lock"]
    locked = tomllib.loads(subprocess.check_output(command, text=True))["package"]
    versions = {package["name"]: package.get("version") for package in locked}
    for package in ("pandas", "ray", "openai", "fastapi", "aiohttp"):
        assert f" {package}={versions[package]}" in build_output
    assert "Image ready: relax-nemo-gym:test" in build_output
    # Only the stand-in is known to have Ray Serve.
    assert base != standin_base.NAME or "Note: the base image has no Ray Serve" not in build_output


def test_a_repository_without_the_pinned_commit_is_refused(client, installation, build_output, repository, tmp_path):
    if repository[1] == tree.GYM_COMMIT:
        pytest.skip("the repository has the pinned commit")
    with pytest.raises(Failure, match="NeMo Gym could not be fetched; check NEMO_GYM_GIT"):
        build_image.build(client, installation.settings, build_arguments(installation), tmp_path / "log", SILENT)


def test_network_variables_are_said_in_both_spellings_and_leave_no_trace(client, build_output):
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY"):
        assert f"build argument {name}=" in build_output
    assert SECRET not in build_output.replace(f"{SECRET}.invalid", "")
    image = client.images.get("relax-nemo-gym:test")
    kept = json.dumps([image.attrs, image.history()])
    assert not [word for word in (SECRET, "_proxy", "_PROXY", "TRUSTED_HOST") if word in kept]


@pytest.mark.usefixtures("build_output")
def test_after_an_edit_of_scripts_only_the_last_copy_is_made_anew(client, installation, tmp_path, monkeypatch):
    edited, log = tmp_path / "clone", tmp_path / "log"
    shutil.copytree(installation.clone, edited, ignore=shutil.ignore_patterns(".git", ".venv", "data", "tests"))
    (edited / "scripts" / "inputs" / "rows.py").open("a").write(f"# {time.time()}\n")
    monkeypatch.setattr(build_image, "ROOT", edited)
    arguments = build_arguments(installation) | {"CODE": "edited"}
    image = build_image.build(client, installation.settings, arguments, log, SILENT)
    client.images.remove(image, force=True)
    _, _, stages = log.read_text().partition(" : FROM ")
    steps = re.findall(r"^Step \S+ : (\w+ .*)\n([^\n]*)", stages, re.MULTILINE)
    anew = [step for step, result in steps if "Using cache" not in result and not step.startswith("FROM ")]
    assert [step.split()[0] for step in anew] == ["COPY", "ARG", "LABEL"]


@pytest.mark.parametrize("right", [True, False])
def test_an_engine_that_sees_other_paths_is_told_and_tried(installation, build_output, tmp_path, right):
    view, other = tmp_path / "view", tmp_path / "other"
    for folder in (view, other / "data" / "run-view"):
        folder.mkdir(parents=True)
    alone = ["unshare", "--mount"]
    if subprocess.run([*alone, "mount", "--bind", other, view], capture_output=True).returncode:
        pytest.skip("no mount namespace to be had here: it takes root")
    command = [*alone, "bash", "-c", ELSEWHERE, installation.clone, view, sys.executable]
    places = {"PYTHONPATH": view / "scripts", "HOST_REPO_DIR": installation.clone if right else other}
    places |= {"RUN_DIR": view / "data" / "run-view", "DATA_ROOT": view / "data"}
    env = installation.texts | {name: str(place) for name, place in places.items()}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    shutil.rmtree(installation.clone / "data" / "run-view", ignore_errors=True)
    assert right == (done.returncode == 0), done.stderr
    assert right or f"is not {view / 'data' / 'run-view'} here" in done.stderr
    assert done.stderr.count("\n") == (0 if right else 1)


def test_a_container_that_ends_at_its_start_is_shown_by_its_last_lines(client, installation, base):
    label = f'LABEL {container.CODE_LABEL}="{graph_code()}"'
    recipe = f"FROM {base}\n{label}\nCMD echo alas; exit 3\n"
    client.images.build(fileobj=io.BytesIO(recipe.encode()), tag=DYING, rm=True)
    try:
        graph, _ = choose_backend(installation.with_changes(NEMO_GYM_IMAGE=DYING))
        with pytest.raises(Failure, match="did not get ready; the last lines of container .*:\n    alas"):
            replace_graph(graph, "f", SILENT)
        assert container.ours(client, installation.settings) == []
    finally:
        client.images.remove(DYING, force=True)


def test_the_container_is_confined(running, installation):
    host = running.attrs["HostConfig"]
    assert host["ReadonlyRootfs"] and host["Init"] and host["NetworkMode"] == "host"
    assert host["CapDrop"] == ["ALL"] and not host["Privileged"]
    assert host["ShmSize"] == installation.settings.GYM_SHM_MB << 20
    assert host["RestartPolicy"] == container.RESTART
    assert running.attrs["Config"]["StopSignal"] == "SIGINT"
    assert not any("proxy" in line.lower() for line in running.attrs["Config"]["Env"])


def test_the_token_is_in_a_file_of_the_owners_and_not_in_what_inspect_shows(client, running, installation):
    assert TOKEN not in json.dumps([client.api.inspect_container(running.id), running.top()])
    path = installation.settings.RUN_DIR / container.TOKEN
    assert (path.read_text(), path.stat().st_mode & 0o777) == (TOKEN, 0o600)
    answer = net.ask(f"{installation.settings.local_url('gateway')}/v1/trials/none", timeout=5)
    assert answer.status == 401


def test_only_the_gateway_may_be_reached_from_beyond_loopback(running, installation):
    pids = {int(row[1]) for row in running.top()["Processes"]}
    group = [process for process in processes.processes() if process.pid in pids]
    assert len(group) > 5
    assert ports.beyond_loopback(group, allowed={installation.settings.port("gateway")}) == []


def test_the_whole_chain_passes_from_outside_and_keeps_the_container(client, running, installation):
    output = installation.run("smoke.py")
    for line in ("backend=docker", "kept, its fingerprint matches", CONTRACT, TRIAL, "make smoke: passed"):
        assert line in output, output
    assert container.ours(client, installation.settings) == [running]


def test_verify_passes_from_inside(running):
    for script, line in (("verify_verifier.py", CONTRACT), ("verify_trial.py", TRIAL)):
        command = [container.PYTHON, f"{container.HOME}/scripts/{script}"]
        status, output = running.exec_run(command)
        assert (status, line in output.decode()) == (0, True), output.decode()


@pytest.mark.parametrize("name", ["example", pytest.param("workbench", marks=pytest.mark.shared_data)])
def test_the_container_gives_the_bytes_and_rewards_of_the_environment(running, installation, name):
    outcomes.assert_same_on_graph(installation.settings, name)


def test_the_container_has_the_clones_environment(running, installation, repository):
    expected = tree.fingerprint(tree.installed_tree()) | {"gym_commit": repository[1]}
    found = readiness(installation.settings)[1]["environment"]
    for name in ("gym_commit", "pandas", "workplace_tree", "patches"):
        assert found[name] == expected[name], name


def test_a_stop_ends_the_container_and_confirms(client, running, installation):
    assert "none left" in installation.run("stop.py")
    assert container.ours(client, installation.settings) == []
    assert not (installation.settings.RUN_DIR / container.TOKEN).exists()
    assert (installation.settings.RUN_DIR / "logs" / "supervisor.log").stat().st_size
    assert "nothing was running" in installation.run("stop.py")
