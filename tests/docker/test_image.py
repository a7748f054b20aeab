"""The real image: built, checked, started, verified from inside and outside, compared, and stopped.

Minutes, most of them the first build. The tests share one image and one container, which the last of them
stops. What is compared is compared with the environment's code, as the local graph is in tests/chain
(test_parity.py): two backends that give the same as a third thing give the same.
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
from servers import container as docker_backend
from servers import ports, processes, tree
from servers.graph import choose_backend, graph_code, readiness, replace_graph
from servers.tree import installed_tree
from support import outcomes, standin_base

SECRET = "never-show-me-4711"
TOKEN = "only-its-owner-reads-me-0815"
# A block of 200 ports of its own, and one more for Ray, below the kernel's range of chance ports.
BASE_PORT, RAY_PORT = 12400, 12600
CONTRACT = "Workplace Assistant verifier contract passed: equivalent_reward=1.0 incorrect_reward=0.0"
TRIAL = "Workplace Assistant trial passed: reward=1.0 tool_calls=2 tool_outputs=2 callbacks=3"
# The clone under another path, which the engine does not have: $0 is seen at $1, by the Python $2.
ELSEWHERE = """
mount --bind "$0" "$1"
exec "$2" -c 'if True:
    import docker_backend, settings, terminal
    def check():
        given, client = settings.load(), docker_backend.connect()
        docker_backend.check_paths(client, given, client.images.get(given.NEMO_GYM_IMAGE))
    terminal.run(check)'
"""
# The proxy leads nowhere: what reaches the network does so because no_proxy was passed as well.
NETWORK = {
    "http_proxy": f"http://{SECRET}:x@127.0.0.1:9",
    "HTTPS_PROXY": f"http://{SECRET}:x@127.0.0.1:9",
    "no_proxy": "*",
    "PIP_TRUSTED_HOST": f"{SECRET}.invalid",
}
DYING = "relax-nemo-gym:dying"
SILENT = SimpleNamespace(detail=lambda text: None)


class Stage:
    """One installation under test: its clone, its variables, and its stages run as programs."""

    def __init__(self, clone, run_dir, **changes):
        defaults = {name: variable.default for name, variable in variables.declared().items()}
        own = {"RUN_DIR": run_dir, "DATA_ROOT": run_dir.parent / "data", "GYM_START_TIMEOUT_S": 400}
        own |= {"GYM_BASE_PORT": BASE_PORT, "GYM_RAY_PORT": RAY_PORT, "GYM_CONTAINER": "relax-nemo-gym-test"}
        own |= {"GATEWAY_TOKEN": TOKEN, "EXP_DIR": run_dir.parent / "experiments"}
        self.texts = {name: str(value) for name, value in (defaults | own | changes).items()}
        self.settings = self.with_changes()
        self.clone = clone

    def with_changes(self, **changes):
        return variables.load(environment=self.texts | changes, dotenv=Path(os.devnull))

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
    return installation.run("build_image.py", **NETWORK)


def build_arguments(installation):
    """The same as in that build, which remembers its steps by them."""
    own = {name: installation.texts[name] for name in ("RELAX_IMAGE", "NEMO_GYM_GIT")}
    return build_image.network_arguments(os.environ | NETWORK) | own


@pytest.fixture(scope="module")
def container(client, installation, build_output):
    assert "backend=docker" in installation.run("gym_up.py")
    assert not processes.ours(installation.settings)
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


def test_the_preflight_ran_ray_serve_with_the_bases_own_python(base, build_output):
    if base != standin_base.NAME:
        pytest.skip("whether that base has Ray Serve is not known here")
    assert "Note: the base image has no Ray Serve" not in build_output


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
    arguments = build_arguments(installation) | {"CODE": "edited"}
    image = build_image.build(client, installation.settings, arguments, log, SILENT)
    client.images.remove(image, force=True)
    _, _, stages = log.read_text().partition(" : FROM ")
    steps = re.findall(r"^Step \S+ : (\w+ .*)\n([^\n]*)", stages, re.MULTILINE)
    anew = [step for step, said in steps if "Using cache" not in said and not step.startswith("FROM ")]
    assert [step.split()[0] for step in anew] == ["COPY", "ARG", "LABEL"]


@pytest.mark.parametrize("right", [True, False])
def test_an_engine_that_sees_other_paths_is_told_and_tried(installation, build_output, tmp_path, right):
    view, other = tmp_path / "view", tmp_path / "other"
    for folder in (view, other / "data" / "run-view"):
        folder.mkdir(parents=True)
    alone = ["unshare", "--mount"]
    if subprocess.run([*alone, "mount", "--bind", other, view], capture_output=True).returncode:
        pytest.skip("no mount namespace to be had here: it takes root")
    done = subprocess.run(
        [*alone, "bash", "-c", ELSEWHERE, installation.clone, view, sys.executable],
        env=os.environ
        | installation.texts
        | {"PYTHONPATH": str(view / "scripts"), "HOST_REPO_DIR": str(installation.clone if right else other)}
        | {"RUN_DIR": str(view / "data" / "run-view"), "DATA_ROOT": str(view / "data")},
        capture_output=True,
        text=True,
    )
    shutil.rmtree(installation.clone / "data" / "run-view", ignore_errors=True)
    assert right == (done.returncode == 0), done.stderr
    assert right or f"is not {view / 'data' / 'run-view'} here" in done.stderr
    assert done.stderr.count("\n") == (0 if right else 1)


def test_a_container_that_ends_at_its_start_is_shown_by_its_last_lines(client, installation, base):
    label = f'LABEL {docker_backend.CODE_LABEL}="{graph_code()}"'
    recipe = f"FROM {base}\n{label}\nCMD echo alas; exit 3\n"
    client.images.build(fileobj=io.BytesIO(recipe.encode()), tag=DYING, rm=True)
    try:
        graph, _ = choose_backend(installation.with_changes(NEMO_GYM_IMAGE=DYING))
        with pytest.raises(Failure, match="did not get ready; the last lines of container .*:\n    alas"):
            replace_graph(graph, "f", SILENT)
        assert docker_backend.ours(client, installation.settings) == []
    finally:
        client.images.remove(DYING, force=True)


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
    answer = net.ask(f"{installation.settings.local_url('gateway')}/v1/trials/none", timeout=5)
    assert answer.status == 401


def test_only_the_gateway_may_be_reached_from_beyond_loopback(container, installation):
    pids = {int(row[1]) for row in container.top()["Processes"]}
    group = [process for process in processes.processes() if process.pid in pids]
    assert len(group) > 5
    assert ports.beyond_loopback(group, allowed={installation.settings.port("gateway")}) == []


def test_the_whole_chain_passes_from_outside_and_keeps_the_container(client, container, installation):
    said = installation.run("smoke.py")
    for line in ("backend=docker", "kept, its fingerprint matches", CONTRACT, TRIAL, "make smoke: passed"):
        assert line in said, said
    assert [each.id for each in docker_backend.ours(client, installation.settings)] == [container.id]


def test_verify_passes_from_inside(container):
    for script, line in (("verify_verifier.py", CONTRACT), ("verify_trial.py", TRIAL)):
        command = [docker_backend.PYTHON, f"{docker_backend.HOME}/scripts/{script}"]
        status, output = container.exec_run(command)
        assert (status, line in output.decode()) == (0, True), output.decode()


@pytest.mark.parametrize("name", ["example", pytest.param("workbench", marks=pytest.mark.shared_data)])
def test_the_container_gives_the_bytes_and_rewards_of_the_environment(container, installation, name):
    outcomes.assert_same_on_graph(installation.settings, name)


def test_the_container_has_the_clones_environment(container, installation, repository):
    expected = tree.fingerprint(installed_tree()) | {"gym_commit": repository[1]}
    found = readiness(installation.settings)[1]["environment"]
    for name in ("gym_commit", "pandas", "workplace_tree", "patches"):
        assert found[name] == expected[name], name


def test_a_stop_ends_the_container_and_confirms(client, container, installation):
    assert "none left" in installation.run("stop.py")
    assert docker_backend.ours(client, installation.settings) == []
    assert not (installation.settings.RUN_DIR / docker_backend.TOKEN).exists()
    assert (installation.settings.RUN_DIR / "logs" / "supervisor.log").stat().st_size
    assert "nothing was running" in installation.run("stop.py")
