"""The trainer's container for real, on a stand-in for the trainer's image, and without the GPUs no test machine has."""

import json
import os
import secrets
import subprocess
import sys

import pytest

import ray_up
from cluster import nodes
from cluster.jobs import Dashboard
from common import settings as variables
from proofs.rig import own_address
from servers import ports
from training import container


@pytest.fixture
def place(client, base, tmp_path, monkeypatch):
    """Settings of a container with a name and ports of its own; it is removed at the end."""
    host = own_address()
    if not host:
        pytest.skip("no address beyond loopback")
    monkeypatch.setattr(container, "NAME", f"relax-train-{secrets.token_hex(4)}")
    monkeypatch.setattr(container, "RAY_PORT", 26379)
    monkeypatch.setattr(nodes, "DASHBOARD_PORT", 26380)
    texts = {"RELAX_HOST": host, "RELAX_IMAGE": base, "RAY_ADDRESS": f"{host}:26379"}
    folders = ("DATA_ROOT", "MODEL_DIR", "EXP_DIR", "RUN_DIR", "RELAX_ROOT")
    for name, text in (texts | {name: str(tmp_path / name.lower()) for name in folders}).items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys, "argv", ["ray_up.py"])
    yield variables.load()
    for left in client.containers.list(all=True, filters={"name": container.NAME}):
        left.remove(force=True)


def test_an_engine_without_gpus_is_said_and_leaves_no_container(place, client):
    with pytest.raises(ray_up.Failure) as failure:
        ray_up.main()
    if container.NO_GPUS not in str(failure.value):
        pytest.skip("this engine has GPUs, or another reason not to start")
    assert str(failure.value).endswith("has this machine GPUs, and the NVIDIA container toolkit?")
    assert not client.containers.list(all=True, filters={"name": container.NAME})


def test_the_container_starts_with_a_ray_that_commands_reach(place, client, monkeypatch, capsys):
    creation = container.creation(place, None) | {"device_requests": [], "shm_size": "1g"}
    monkeypatch.setattr(container, "creation", lambda settings, request: creation)
    ray_up.main()
    assert f"Trainer's Ray ready: make train RAY_ADDRESS={place.RELAX_HOST}:26379" in capsys.readouterr().out
    dashboard = Dashboard(nodes.dashboard_url(place))
    [head] = nodes.nodes(dashboard)
    assert (head.is_head, head.gpus, head.address) == (True, 8.0, place.RELAX_HOST)
    # Nobody but who knows the address reaches it.
    assert not ports.connects(26380)

    identity = client.containers.get(container.NAME).id
    ray_up.main()
    assert client.containers.get(container.NAME).id == identity, "one that runs is kept"

    code = "import json, os, ray; print(json.dumps([os.environ['LIMIT'], os.environ['SUBMIT_PYTHON'], os.getcwd()]))"
    command = container.inside(place, ["python3", "-c", code], {"LIMIT": "32"})
    done = subprocess.run(command, env=os.environ | {"LIMIT": "32"}, capture_output=True, text=True)
    assert json.loads(done.stdout) == ["32", "python3", str(variables.ROOT)], done.stderr
