#!/usr/bin/env python3
"""Build the image of the docker backend on RELAX_IMAGE and check it from within: `make image`.

Needs a Docker engine that answers; takes three to five minutes on two cores the first time, most
of it download, and seconds after a change of scripts/. Proxy and package-index variables of the
environment reach the build, in both spellings, and stay out of the image's environment and
history. Guarantees: only an image that passed the preflight is named NEMO_GYM_IMAGE. The build's
whole output goes to RUN_DIR/logs/image.log.

    make image
    scripts/run.sh build_image --relax-image registry.local/relaxrl:2026-07
"""

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from docker.errors import APIError, ContainerError, ImageNotFound

from checks import registry
from common import files
from common.failure import Failure
from common.settings import ROOT, Settings, from_command_line
from common.terminal import Stage, run, say, stage
from docker import DockerClient
from servers import container
from servers.container import in_words
from servers.graph import graph_code

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
INDEXES = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST",
    "UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL",
)  # fmt: skip
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "invalid peer certificate", "certificate verification failed")
PREFLIGHT = ["env", f"PYTHONPATH={container.HOME}/scripts", container.PYTHON, "-m", "servers.image_preflight"]


def network_arguments(environment: Mapping[str, str]) -> dict[str, str]:
    """Build arguments for proxies, in both spellings, and for package indexes; uv takes pip's if it has none."""
    arguments = {}
    for name in PROXIES:
        if value := environment.get(name) or environment.get(name.upper()):
            arguments |= {name: value, name.upper(): value}
    arguments |= {name: environment[name] for name in INDEXES if environment.get(name)}
    if "PIP_INDEX_URL" in arguments and not {"UV_DEFAULT_INDEX", "UV_INDEX_URL"} & arguments.keys():
        arguments["UV_DEFAULT_INDEX"] = arguments["PIP_INDEX_URL"]
    return arguments


def shown(value: str) -> str:
    """A variable's value without the credentials a URL in it may carry."""
    return re.sub(r"//[^/@\s]*@", "//***@", value)


def check_name(client: DockerClient, name: str) -> None:
    """Raise Failure now, and not after minutes, for a name the engine would not take."""
    with in_words(f"NEMO_GYM_IMAGE={name}"), suppress(ImageNotFound):
        client.images.get(name)


def ensure_base(client: DockerClient, settings: Settings, current: Stage):
    """Pull RELAX_IMAGE unless it is here. Returns it. Raises Failure with the reason it cannot be had."""
    name = settings.RELAX_IMAGE
    with in_words(f"base image {name}"):
        try:
            return client.images.get(name)
        except ImageNotFound:
            current.detail(f"pulling {name}")
    cure = "docker login to its registry, set a proxy for the engine, or set RELAX_IMAGE to an image that is here"
    try:
        repository, tag = container.split_name(name)
        for message in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in message:
                raise Failure(f"base image {name} cannot be pulled: {container.explain(message['error'])}; {cure}")
            current.detail(f"pulling {name}: {message.get('status', '')} {message.get('progress', '')}")
        return client.images.get(name)
    except APIError as error:
        reason = container.explain(error.explanation or str(error))
        raise Failure(f"base image {name} cannot be pulled: {reason}; {cure}") from None


def build(client: DockerClient, settings: Settings, arguments: dict[str, str], log: Path, current: Stage) -> str:
    """Build the Dockerfile. Returns the new image's id. Raises Failure with the end of the build's output."""
    last = image = ""
    with in_words("building the image"), open(log, "w", encoding="utf-8") as output:
        for message in client.api.build(
            path=str(ROOT), buildargs=arguments, network_mode="host", rm=True, forcerm=True, decode=True
        ):
            text = COLOURS.sub("", message.get("stream") or message.get("error") or "")
            output.write(text)
            output.flush()
            if "error" in message:
                end = files.tail(log)
                raise Failure(f"the build failed: {cause(message['error'], last, end)}; the end of {log}:\n{end}")
            if text.startswith("Step "):
                last = text.strip()
            if text.strip():
                current.detail(f"{last[:40]} | {text.strip().splitlines()[-1][:60]}")
            image = message.get("aux", {}).get("ID") or image
    return image


def cause(error: str, step: str, output: str) -> str:
    """What most likely went wrong, in one line; `output`: the last lines of the build."""
    explained = container.explain(error)
    if explained != container.first_line(error):
        return explained
    if container.FULL in output.lower():
        return container.explain(container.FULL)
    if any(words in output for words in UNTRUSTED):
        return "RELAX_IMAGE does not trust the certificate it was shown; add your network's certificates to that image"
    if "git fetch" in error or "git init" in error:
        return "NeMo Gym could not be fetched; check NEMO_GYM_GIT and the proxy variables"
    if "uv pip" in error or "pip install" in error:
        return "packages could not be installed; check the proxy and package-index variables"
    return f"{step}: {explained}"


def preflight(client: DockerClient, image: str) -> str:
    """Run the preflight in the new image, confined and without network. Returns its output."""
    with in_words("image preflight"):
        try:
            output = client.containers.run(
                image,
                PREFLIGHT,
                remove=True,
                network_mode="none",
                read_only=True,
                tmpfs=container.TMPFS,
                cap_drop=["ALL"],
                user="65534:65534",
                environment={"HOME": "/tmp", "USER": "gym"},
            )
        except ContainerError as error:
            reason = container.first_line(error.stderr).removeprefix("error: ")
            raise Failure(f"the image was built and does not pass its preflight: {reason}") from None
    return output.decode(errors="replace").strip()


def main() -> None:
    settings, _ = from_command_line(__doc__, "RUN_DIR", "RELAX_IMAGE", "NEMO_GYM_IMAGE", "NEMO_GYM_GIT")
    registry.at_start("image", settings)
    client = container.connect()
    check_name(client, settings.NEMO_GYM_IMAGE)
    started = time.monotonic()
    log = settings.RUN_DIR / "logs" / "image.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = network_arguments(os.environ)
    for name, value in arguments.items():
        say(f"build argument {name}={shown(value)}")
    arguments |= {"RELAX_IMAGE": settings.RELAX_IMAGE, "NEMO_GYM_GIT": settings.NEMO_GYM_GIT, "CODE": graph_code()}
    with stage("base image") as current:
        base = ensure_base(client, settings, current)
    with stage("build") as current:
        image = build(client, settings, arguments, log, current)
    with stage("preflight"):
        passed = preflight(client, image)
    repository, tag = container.split_name(settings.NEMO_GYM_IMAGE)
    with in_words(f"naming the image {settings.NEMO_GYM_IMAGE}"):
        client.images.get(image).tag(repository, tag=tag)
        size = client.images.get(image).attrs["Size"]
    added = size - base.attrs["Size"]
    say(passed)
    say(
        f"Image ready: {settings.NEMO_GYM_IMAGE} size={size / 1e6:.0f} MB added={added / 1e6:.0f} MB "
        f"seconds={time.monotonic() - started:.0f}"
    )


if __name__ == "__main__":
    run(main)
