"""`make image` without an engine that builds: each failure by its cure, and no credential shown."""

import os
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

STAGE = SimpleNamespace(detail=lambda text: None)


def load(**overrides):
    return variables.load(overrides, environment={}, dotenv=Path(os.devnull))


@pytest.mark.parametrize(
    ("script", "otherwise"),
    [
        ("gym_up.py", "GYM_BACKEND=local"),
        ("build_image.py", "or set DOCKER_HOST\n"),
        ("ray_up.py", "RAY_ADDRESS"),
    ],
)
def test_without_an_engine_a_stage_ends_in_one_line(tmp_path, script, otherwise):
    environment = os.environ | {
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "GYM_BACKEND": "docker", "RUN_DIR": str(tmp_path),
        "RELAX_HOST": "10.0.0.5",
    }  # fmt: skip
    command = [sys.executable, str(variables.ROOT / "scripts" / script)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("error: no Docker engine answers") and otherwise in ended.stderr


@pytest.mark.parametrize(
    ("output", "error", "expected"),
    [
        ("Step 1/9", "write /x: no space left on device", "disk is full; run: docker system prune"),
        ("\x1b[91muv: No space left on device (os error 28)", None, "the Docker engine's disk is full"),
        (
            "\x1b[91mSSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]')",
            None,
            "add your network's certificates",
        ),
        ("\x1b[91mno such package", None, "check the proxy and package-index variables"),
    ],
)
def test_a_build_that_fails_tells_why_and_leaves_its_log(tmp_path, output, error, expected):
    error = error or "The command '/bin/bash -c uv pip install' returned a non-zero code: 2"
    client = SimpleNamespace(api=SimpleNamespace(build=lambda **_: iter([{"stream": output + "\n"}, {"error": error}])))
    with pytest.raises(Failure, match=expected):
        build_image.build(client, load(), {}, tmp_path / "image.log", STAGE)
    log = (tmp_path / "image.log").read_text()
    assert output.removeprefix("\x1b[91m") in log and "\x1b" not in log


def test_a_base_that_cannot_be_pulled_names_the_reason_and_the_cure():
    def missing(name):
        raise docker.errors.ImageNotFound("no such image")

    def pull(*_, **__):
        raise APIError("x", explanation="pull access denied for nowhere")

    client = SimpleNamespace(images=SimpleNamespace(get=missing), api=SimpleNamespace(pull=pull))
    cause = "^base image nowhere/base:1 cannot be pulled: pull access denied.*RELAX_IMAGE"
    with pytest.raises(Failure, match=cause):
        build_image.ensure_base(client, load(RELAX_IMAGE="nowhere/base:1"), STAGE)


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
