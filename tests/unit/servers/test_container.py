"""The docker backend without an engine: the choice of a backend, and one line with the cure for each fault."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from docker.errors import APIError

import build_image
import docker
from common import settings as variables
from common.failure import Failure
from servers import container
from servers import graph as servers_graph


def load(**overrides):
    return variables.load(overrides, environment={}, dotenv=Path(os.devnull))


@pytest.fixture
def no_engine(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")


def failure_of(call, *arguments):
    with pytest.raises(Failure) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_docker_is_refused_in_one_line():
    said = failure_of(servers_graph.choose_backend, load(GYM_BACKEND="docker"))
    assert "no Docker engine answers at unix://" in said
    assert "systemctl start docker" in said


@pytest.mark.usefixtures("no_engine")
def test_without_an_engine_auto_takes_local_and_says_why():
    graph, why = servers_graph.choose_backend(load(GYM_BACKEND="auto"))
    assert graph.name == "local"
    assert why.startswith("GYM_BACKEND=auto: no Docker engine answers")


def test_local_does_not_ask_for_an_engine(monkeypatch):
    monkeypatch.setattr(container, "connect", lambda: pytest.fail("asked"))
    assert servers_graph.choose_backend(load(GYM_BACKEND="local"))[0].name == "local"


def test_a_socket_nobody_listens_on_is_no_engine(monkeypatch, tmp_path):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    assert "no Docker engine answers" in failure_of(container.connect)


def test_permission_denied_names_the_group(monkeypatch, tmp_path):
    def refuse(**_):
        raise docker.errors.DockerException(
            "Error while fetching server API version: PermissionError(13, 'Permission denied')"
        )

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}")
    monkeypatch.setattr(docker, "from_env", refuse)
    assert "usermod -aG docker" in failure_of(container.connect)


def test_the_stages_end_with_that_line_and_no_traceback(tmp_path):
    for script, otherwise in (
        ("gym_up.py", "GYM_BACKEND=local"),
        ("build_image.py", None),
        ("ray_up.py", "RAY_ADDRESS"),
    ):
        environment = os.environ | {
            "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "GYM_BACKEND": "docker", "RUN_DIR": str(tmp_path),
            "RELAX_HOST": "10.0.0.5",
        }  # fmt: skip
        command = [sys.executable, str(variables.ROOT / "scripts" / script)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 1
        assert ended.stderr.startswith("error: no Docker engine answers")
        assert otherwise in ended.stderr if otherwise else ended.stderr.endswith("or set DOCKER_HOST\n")
        assert ended.stderr.count("\n") == 1


@pytest.mark.usefixtures("no_engine")
def test_a_stop_without_engine_passes_unless_a_container_was_started(tmp_path):
    settings = load(RUN_DIR=str(tmp_path))
    assert container.end_containers(settings) == 0
    container.note(settings).write_text("id")
    assert "cannot be stopped: no Docker engine answers" in failure_of(container.end_containers, settings)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("write /var/lib/docker/x: no space left on device", "disk is full; run: docker system prune"),
        (
            "failed to copy file: Error processing tar file(exit status 1): write /x: no space left on device",
            "disk is full; run: docker system prune",
        ),
        (
            'invalid mount config for type "bind": bind source path does not exist: /a/b',
            "has no /a/b; set HOST_REPO_DIR",
        ),
        (
            'invalid mount config for type "bind": stat /a/b: not a directory',
            "has no /a/b; set HOST_REPO_DIR",
        ),
        ("something else\nmore", "something else"),
    ],
)
def test_the_engines_words_become_one_line_with_a_cure(said, expected):
    assert expected in container.explain(said)


def test_a_full_disk_ends_a_build_in_one_line_and_the_log(tmp_path):
    messages = [{"stream": "Step 1/9 : FROM base\n"}, {"error": "write /x: no space left on device"}]
    client = SimpleNamespace(api=SimpleNamespace(build=lambda **_: iter(messages)))
    with pytest.raises(Failure, match="the Docker engine's disk is full; run: docker system prune"):
        build_image.build(client, load(), {}, tmp_path / "image.log", SimpleNamespace(detail=lambda text: None))
    assert "Step 1/9" in (tmp_path / "image.log").read_text()


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("uv: No space left on device (os error 28)", "the Docker engine's disk is full"),
        ("SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] self-signed')", "add your network's certificates"),
        ("no such package", "check the proxy and package-index variables"),
    ],
)
def test_the_builds_own_output_tells_why_it_failed(tmp_path, output, expected):
    failed = {"error": "The command '/bin/bash -c uv pip install' returned a non-zero code: 2"}
    client = SimpleNamespace(api=SimpleNamespace(build=lambda **_: iter([{"stream": f"\x1b[91m{output}\n"}, failed])))
    with pytest.raises(Failure, match=expected):
        build_image.build(client, load(), {}, tmp_path / "image.log", SimpleNamespace(detail=lambda text: None))
    assert "\x1b" not in (tmp_path / "image.log").read_text()


def test_a_base_that_cannot_be_pulled_names_the_reason_and_the_cure():
    def missing(name):
        raise docker.errors.ImageNotFound("no such image")

    def pull(*_, **__):
        raise APIError("x", explanation="pull access denied for nowhere")

    client = SimpleNamespace(images=SimpleNamespace(get=missing), api=SimpleNamespace(pull=pull))
    stage = SimpleNamespace(detail=lambda text: None)
    said = failure_of(build_image.ensure_base, client, load(RELAX_IMAGE="nowhere/base:1"), stage)
    assert said.startswith("base image nowhere/base:1 cannot be pulled: pull access denied")
    assert "RELAX_IMAGE" in said


def test_names_split_at_the_tag_and_not_at_a_registrys_port():
    assert container.split_name("relax-nemo-gym:a85670e") == ("relax-nemo-gym", "a85670e")
    assert container.split_name("host:5000/base") == ("host:5000/base", "latest")
    assert container.split_name("host:5000/base:1") == ("host:5000/base", "1")


def test_host_paths_are_translated_below_the_clone_alone():
    root = variables.ROOT.resolve()
    inner = load(HOST_REPO_DIR="/srv/clone")
    assert container.host_path(load(), root / "data") == str(root / "data")
    assert container.host_path(inner, root / "data/run") == "/srv/clone/data/run"
    assert "HOST_REPO_DIR" in failure_of(container.host_path, inner, Path("/elsewhere"))


def test_the_token_reaches_a_container_as_a_file_alone(tmp_path):
    settings = load(RUN_DIR=str(tmp_path), GATEWAY_TOKEN="never-show-me")
    graph = container.DockerGraph(None, settings, None, servers_graph.graph_variables(settings), None)
    given = graph.environment("f")
    assert "never-show-me" not in given.values()
    assert given["GATEWAY_TOKEN_FILE"] == "/state/gateway-token"
    container.put_token(settings)
    path = tmp_path / container.TOKEN
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("never-show-me", 0o600)
    graph.settings = load(RUN_DIR=str(tmp_path))
    assert graph.environment("f")["GATEWAY_TOKEN_FILE"] == ""
    container.put_token(graph.settings)
    assert not path.exists()


def test_a_token_in_a_file_makes_the_same_graph_as_in_the_environment(tmp_path):
    (tmp_path / "token").write_text("one\n")
    from_file = load(GATEWAY_TOKEN_FILE=str(tmp_path / "token"))
    fingerprint = servers_graph.graph_fingerprint(from_file)
    assert fingerprint == servers_graph.graph_fingerprint(load(GATEWAY_TOKEN="one"))
    (tmp_path / "token").write_text("two\n")
    assert fingerprint != servers_graph.graph_fingerprint(from_file)
    (tmp_path / "token").unlink()
    assert "No such file" in failure_of(servers_graph.graph_fingerprint, from_file)


def test_network_variables_are_passed_in_both_spellings():
    found = build_image.network_arguments(
        {"HTTPS_PROXY": "http://p:1", "no_proxy": "127.0.0.1", "PIP_INDEX_URL": "http://i/simple", "OTHER": "x"}
    )
    assert found == {
        "https_proxy": "http://p:1", "HTTPS_PROXY": "http://p:1", "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1",
        "PIP_INDEX_URL": "http://i/simple", "UV_DEFAULT_INDEX": "http://i/simple",
    }  # fmt: skip


def test_credentials_in_network_variables_are_not_shown():
    assert build_image.shown("http://user:secret@proxy:3128") == "http://***@proxy:3128"
