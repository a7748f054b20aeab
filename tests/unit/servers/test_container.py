"""The docker backend without an engine: one line with the cure for each fault, and what a container is given."""

import os
import socket
from pathlib import Path

import pytest

import docker
from common import settings as variables
from common.failure import Failure
from servers import container, graph


def load(**overrides):
    return variables.load(overrides, environment={}, dotenv=Path(os.devnull))


def test_a_socket_nobody_listens_on_is_no_engine(monkeypatch, tmp_path):
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with pytest.raises(Failure, match="no Docker engine answers"):
        container.connect()


def test_permission_denied_names_the_group(monkeypatch, tmp_path):
    def refuse(**_):
        raise docker.errors.DockerException(
            "Error while fetching server API version: PermissionError(13, 'Permission denied')"
        )

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}")
    monkeypatch.setattr(docker, "from_env", refuse)
    with pytest.raises(Failure, match="^permission to use .* usermod -aG docker .*$"):
        container.connect()


def test_a_stop_without_engine_passes_unless_a_container_was_started(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    settings = load(RUN_DIR=str(tmp_path))
    assert container.end_containers(settings) == 0
    container.note(settings).write_text("id")
    with pytest.raises(Failure, match="cannot be stopped: no Docker engine answers"):
        container.end_containers(settings)


BIND = 'invalid mount config for type "bind": '


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("write /var/lib/docker/x: no space left on device", "disk is full; run: docker system prune"),
        (BIND + "bind source path does not exist: /a/b", "has no /a/b; set HOST_REPO_DIR"),
        (BIND + "stat /a/b: not a directory", "has no /a/b; set HOST_REPO_DIR"),
        ("something else\nmore", "something else"),
    ],
)
def test_the_engines_words_become_one_line_with_a_cure(text, expected):
    assert expected in container.explain(text) and "\n" not in container.explain(text)


def test_names_split_at_the_tag_and_not_at_a_registrys_port():
    assert container.split_name("relax-nemo-gym:a85670e") == ("relax-nemo-gym", "a85670e")
    assert container.split_name("host:5000/base") == ("host:5000/base", "latest")
    assert container.split_name("host:5000/base:1") == ("host:5000/base", "1")


def test_host_paths_are_translated_below_the_clone_alone():
    root = variables.ROOT.resolve()
    inner = load(HOST_REPO_DIR="/srv/clone")
    assert container.host_path(load(), root / "data") == str(root / "data")
    assert container.host_path(inner, root / "data/run") == "/srv/clone/data/run"
    with pytest.raises(Failure, match="HOST_REPO_DIR"):
        container.host_path(inner, Path("/elsewhere"))


def test_the_token_reaches_a_container_as_a_file_alone(tmp_path):
    settings = load(RUN_DIR=str(tmp_path), GATEWAY_TOKEN="never-show-me")
    backend = container.DockerGraph(None, settings, None, graph.graph_variables(settings), None)
    given = backend.environment("f")
    assert "never-show-me" not in given.values()
    assert given["GATEWAY_TOKEN_FILE"] == "/state/gateway-token"
    container.put_token(settings)
    path = tmp_path / container.TOKEN
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("never-show-me", 0o600)
    backend.settings = load(RUN_DIR=str(tmp_path))
    assert backend.environment("f")["GATEWAY_TOKEN_FILE"] == ""
    container.put_token(backend.settings)
    assert not path.exists()
