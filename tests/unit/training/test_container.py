"""The trainer's container: how it is made, how a command gets into it, and what `make ray-up` refuses."""

import socket
from pathlib import Path

import pytest

from common import settings as variables
from common.failure import Failure
from support.programs import only_error, stage
from training import container


def loaded(**environment):
    places = {"DATA_ROOT": "/d", "MODEL_DIR": "/d/models", "EXP_DIR": "/e", "RUN_DIR": "/e/run", "RELAX_ROOT": "/r"}
    return variables.load(environment=places | environment, dotenv=Path("/nonexistent/.env"))


def test_the_container_is_as_the_recipe_has_it():
    made = container.creation(loaded(), "all GPUs")
    assert made["name"] == "relax-train" and made["image"] == "ghcr.io/redai-studio/relaxrl:latest"
    assert made["network_mode"] == "host" and made["shm_size"] == "128g" and made["device_requests"] == ["all GPUs"]
    # Each folder at its own path, those within another not twice.
    root = str(variables.ROOT)
    assert made["volumes"] == {path: {"bind": path, "mode": "rw"} for path in ("/d", "/e", "/r", root)}


def test_ray_starts_with_eight_gpus_on_the_address_given():
    assert container.ray_start(loaded(RELAX_HOST="10.0.0.5")) == [
        "ray", "start", "--head", "--node-ip-address=10.0.0.5", "--port=6379", "--dashboard-host=10.0.0.5",
        "--dashboard-port=8265", "--num-gpus=8", "--disable-usage-stats",
    ]  # fmt: skip


def test_a_command_goes_into_the_container_without_values(monkeypatch):
    monkeypatch.setattr(container, "is_ours", lambda settings: True)
    settings = loaded(GATEWAY_TOKEN="never-show-me")
    command = container.inside(settings, ["bash", "x.sh"], {"GATEWAY_TOKEN": "never-show-me", "LIMIT": "3"})
    assert command[:3] == ["docker", "exec", "-i"] and command[-3:] == ["relax-train", "bash", "x.sh"]
    assert "LIMIT" in command and "GATEWAY_TOKEN" in command and "never-show-me" not in command


def test_without_our_container_a_command_stays_as_it_is():
    assert container.inside(loaded(RAY_ADDRESS="10.0.0.5:6379"), ["bash"], {}) == ["bash"]


def test_no_engine_is_one_line():
    error = only_error(stage("ray_up", DOCKER_HOST="unix:///nonexistent/docker.sock", RELAX_HOST="10.0.0.5"))
    assert error.startswith("error: no Docker engine answers at unix:///nonexistent/docker.sock; start it")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"RELAX_HOST": "10.0.0.5", "RAY_ADDRESS": "10.0.0.9:6379"}, "RAY_ADDRESS=10.0.0.9:6379 names a Ray that runs"),
        ({}, "RELAX_HOST is empty or loopback"),
        ({"RELAX_HOST": "127.0.0.1"}, "RELAX_HOST is empty or loopback"),
        ({"RELAX_HOST": "127.0.0.2"}, "is taken; is that a platform's Ray"),
    ],
)
def test_what_ray_up_refuses(monkeypatch, changes, words):
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        other.listen()
        monkeypatch.setattr(container, "RAY_PORT", other.getsockname()[1])
        with pytest.raises(Failure, match=words):
            container.check(loaded(**changes))
