"""Faults that a real engine answers with, on an empty image; seconds."""

import io
import os
import secrets
import socket
import tarfile
from pathlib import Path

import pytest

import build_image
from common import settings as variables
from common.failure import Failure
from servers import container as docker_backend
from servers import graph as servers_graph

NAME = f"relax-nemo-gym-test-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def empty_image(client):
    """An image with nothing in it but the label of this clone's code."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    change = f'LABEL {docker_backend.CODE_LABEL}="{servers_graph.graph_code()}"'
    client.api.import_image_from_data(archive.getvalue(), repository=NAME, tag="1", changes=[change])
    yield f"{NAME}:1"
    client.images.remove(f"{NAME}:1", force=True)


@pytest.fixture
def load(tmp_path, empty_image):
    def load(**overrides):
        given = {"RUN_DIR": tmp_path / "run", "DATA_ROOT": tmp_path / "data", "NEMO_GYM_IMAGE": empty_image}
        given |= {"GYM_BACKEND": "docker", "GYM_CONTAINER": NAME}
        texts = {name: str(value) for name, value in (given | overrides).items()}
        return variables.load(texts, environment={}, dotenv=Path(os.devnull))

    return load


def container(client, image, **labels):
    return client.containers.create(image, ["/empty"], name=NAME, labels=labels)


def test_a_missing_image_is_one_line_and_auto_goes_local(load):
    with pytest.raises(Failure, match="is not there; run: make image"):
        servers_graph.choose_backend(load(NEMO_GYM_IMAGE="relax-nemo-gym:none-such"))
    graph, why = servers_graph.choose_backend(load(NEMO_GYM_IMAGE="relax-nemo-gym:none-such", GYM_BACKEND="auto"))
    assert (graph.name, why) == ("local", "GYM_BACKEND=auto: the image relax-nemo-gym:none-such is not there")


def test_the_image_of_this_code_is_taken_and_another_refused(client, load, monkeypatch):
    graph, _ = servers_graph.choose_backend(load())
    assert graph.name == "docker"
    assert servers_graph.choose_backend(load(GYM_BACKEND="auto"))[0].name == "docker"
    monkeypatch.setattr(servers_graph, "graph_code", lambda: "another")
    with pytest.raises(Failure, match="other scripts or patches than this clone's; run: make image"):
        servers_graph.choose_backend(load())


@pytest.mark.parametrize(
    ("labels", "whose"), [({}, "is not ours"), ({docker_backend.RUN_LABEL: "/other/run"}, "belongs to the run folder")]
)
def test_a_name_taken_by_another_is_refused_and_left_alone(client, load, empty_image, labels, whose):
    foreign = container(client, empty_image, **labels)
    try:
        graph, _ = servers_graph.choose_backend(load())
        with pytest.raises(Failure, match=f"{NAME} is there already and {whose}"):
            graph.check()
        assert docker_backend.end_containers(load()) == 0
        foreign.reload()
    finally:
        foreign.remove(force=True)


def test_our_own_container_is_found_by_its_label_and_removed(client, load, empty_image):
    settings = load()
    container(client, empty_image, **{docker_backend.RUN_LABEL: str(settings.RUN_DIR)})
    assert docker_backend.end_containers(settings) == 1
    assert docker_backend.ours(client, settings) == []
    assert docker_backend.end_containers(settings) == 0


def test_a_start_that_fails_leaves_no_container(client, load):
    settings = load()
    settings.RUN_DIR.mkdir()
    graph, _ = servers_graph.choose_backend(settings)
    graph.check = lambda: None
    with pytest.raises(Failure, match=f"starting container {NAME}"):
        servers_graph.replace_graph(graph, "f", None)
    assert docker_backend.ours(client, settings) == []


def test_a_path_the_engine_does_not_have_names_the_variable(load):
    settings = load(
        HOST_REPO_DIR="/none/such", RUN_DIR=variables.ROOT / "data/run-test", DATA_ROOT=variables.ROOT / "data"
    )
    graph, _ = servers_graph.choose_backend(settings)
    try:
        with pytest.raises(Failure, match="set HOST_REPO_DIR to where"):
            graph.check()
    finally:
        (settings.RUN_DIR / "logs").rmdir()
        settings.RUN_DIR.rmdir()


def test_a_taken_port_is_named_before_a_container_is_made(client, load):
    settings = load(GYM_BASE_PORT=12800, GYM_RAY_PORT=13000)
    graph, _ = servers_graph.choose_backend(settings)
    taken = socket.create_server(("127.0.0.1", settings.port("head")))
    with taken, pytest.raises(Failure, match="port 12803 .* is taken by "):
        graph.check()
    assert docker_backend.ours(client, settings) == []


def test_a_name_the_engine_does_not_take_is_refused_before_the_build(client):
    build_image.check_name(client, "relax-nemo-gym:none-such")
    with pytest.raises(Failure, match="NEMO_GYM_IMAGE=Bad:Name: .*invalid reference format"):
        build_image.check_name(client, "Bad:Name")


def test_a_base_nobody_has_cannot_be_pulled(client, load):
    class Stage:
        def detail(self, text):
            pass

    with pytest.raises(Failure, match="cannot be pulled: .*RELAX_IMAGE"):
        build_image.ensure_base(client, load(RELAX_IMAGE="127.0.0.1:9/none/such:1"), Stage())
