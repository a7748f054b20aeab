"""Faults of a real engine, met on an empty image; takes seconds."""

import io
import os
import secrets
import socket
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import build_image
from common import settings as variables
from common.failure import Failure
from servers import container, graph

NAME = f"relax-nemo-gym-test-{secrets.token_hex(4)}"


@pytest.fixture(scope="module")
def empty_image(client):
    """An image with nothing in it but the label of this clone's code."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    change = f'LABEL {container.CODE_LABEL}="{graph.graph_code()}"'
    client.api.import_image_from_data(archive.getvalue(), repository=NAME, tag="1", changes=[change])
    yield f"{NAME}:1"
    client.images.remove(f"{NAME}:1", force=True)


@pytest.fixture
def load(tmp_path, empty_image):
    """Settings with changes."""
    ours = {"RUN_DIR": tmp_path / "run", "DATA_ROOT": tmp_path / "data", "NEMO_GYM_IMAGE": empty_image}
    ours |= {"GYM_BACKEND": "docker", "GYM_CONTAINER": NAME}

    def load(**changes):
        texts = {name: str(value) for name, value in (ours | changes).items()}
        return variables.load(texts, environment={}, dotenv=Path(os.devnull))

    return load


def chosen(settings):
    return graph.choose_backend(settings)[0]


def test_a_missing_image_is_one_line_and_auto_goes_local(load):
    with pytest.raises(Failure, match="is not there; run: make image"):
        graph.choose_backend(load(NEMO_GYM_IMAGE="relax-nemo-gym:none-such"))
    local, why = graph.choose_backend(load(NEMO_GYM_IMAGE="relax-nemo-gym:none-such", GYM_BACKEND="auto"))
    assert (local.name, why) == ("local", "GYM_BACKEND=auto: the image relax-nemo-gym:none-such is not there")


def test_the_image_of_this_code_is_taken_and_another_refused(client, load, monkeypatch):
    for backend in ("docker", "auto"):
        assert graph.choose_backend(load(GYM_BACKEND=backend))[0].name == "docker"
    monkeypatch.setattr(graph, "graph_code", lambda: "another")
    with pytest.raises(Failure, match="other scripts or patches than this clone's; run: make image"):
        graph.choose_backend(load())


@pytest.mark.parametrize(
    ("labels", "whose"), [({}, "is not ours"), ({container.RUN_LABEL: "/other/run"}, "belongs to the run folder")]
)
def test_a_name_taken_by_another_is_refused_and_left_alone(client, load, empty_image, labels, whose):
    foreign = client.containers.create(empty_image, ["/empty"], name=NAME, labels=labels)
    try:
        with pytest.raises(Failure, match=f"{NAME} is there already and {whose}"):
            chosen(load()).check()
        assert container.end_containers(load()) == 0
        foreign.reload()
    finally:
        foreign.remove(force=True)


def test_our_own_container_is_found_by_its_label_and_removed(client, load, empty_image):
    settings = load()
    labels = {container.RUN_LABEL: str(settings.RUN_DIR)}
    client.containers.create(empty_image, ["/empty"], name=NAME, labels=labels)
    assert (container.end_containers(settings), container.end_containers(settings)) == (1, 0)
    assert container.ours(client, settings) == []


def test_a_start_that_fails_leaves_no_container(client, load):
    settings = load()
    settings.RUN_DIR.mkdir()
    backend = chosen(settings)
    backend.check = lambda: None
    with pytest.raises(Failure, match=f"starting container {NAME}"):
        graph.replace_graph(backend, "f", None)
    assert container.ours(client, settings) == []


def test_a_path_the_engine_does_not_have_names_the_variable(load):
    data = variables.ROOT / "data"
    settings = load(HOST_REPO_DIR="/none/such", RUN_DIR=data / "run-test", DATA_ROOT=data)
    try:
        with pytest.raises(Failure, match="set HOST_REPO_DIR to where"):
            chosen(settings).check()
    finally:
        (settings.RUN_DIR / "logs").rmdir()
        settings.RUN_DIR.rmdir()


def test_a_taken_port_is_named_before_a_container_is_made(client, load):
    settings = load(GYM_BASE_PORT=12800, GYM_RAY_PORT=13000)
    taken = socket.create_server(("127.0.0.1", settings.port("head")))
    with taken, pytest.raises(Failure, match="port 12803 .* is taken by "):
        chosen(settings).check()
    assert container.ours(client, settings) == []


def test_a_name_the_engine_does_not_take_is_refused_before_the_build(client):
    build_image.check_name(client, "relax-nemo-gym:none-such")
    with pytest.raises(Failure, match="NEMO_GYM_IMAGE=Bad:Name: .*invalid reference format"):
        build_image.check_name(client, "Bad:Name")


def test_a_base_nobody_has_cannot_be_pulled(client, load):
    stage = SimpleNamespace(detail=lambda text: None)
    with pytest.raises(Failure, match="cannot be pulled: .*RELAX_IMAGE"):
        build_image.ensure_base(client, load(RELAX_IMAGE="127.0.0.1:9/none/such:1"), stage)
