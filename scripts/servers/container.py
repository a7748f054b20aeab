"""The Docker engine as the docker backend uses it: reach it, know our container, run it, end it.

Guarantees:
- A container is touched only if it carries the label of this clone's run folder.
- The graph's container has no capabilities, a read-only root, and the run folder's owner as its user.
- The Gateway's token reaches it as a file that only this user can read.
- Every fault of the engine becomes one line with its cure.

The engine may see other paths than we do (Docker-in-Docker): HOST_REPO_DIR translates them, and a short-lived
container proves them before use.

The docker package is imported inside functions: loading it takes most of a second, and the doctor imports this
module on Pythons that do not have it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.failure import Failure, without_user
from common.settings import ROOT, Settings, read_token
from servers import processes

if TYPE_CHECKING:
    from docker.client import DockerClient
    from docker.models.containers import Container, _RestartPolicy
    from docker.models.images import Image

RUN_LABEL = "relax-nemo-gym.run"
FINGERPRINT_LABEL = "relax-nemo-gym.fingerprint"
CODE_LABEL = "relax-nemo-gym.code"
# In the image and its containers.
HOME = "/opt/relax-nemo-gym"
PYTHON = "/opt/nemo-gym/.venv/bin/python"
DATA, STATE = "/data", "/state"
TOKEN = "gateway-token"
STOP_GRACE_S = 40
FIRST_CONTACT_S, REQUEST_TIMEOUT_S = 5, 120
# Holds Ray's session folder and NeMo Gym's scratch files while the container runs.
TMPFS = {"/tmp": "size=2g,mode=1777"}
RESTART: _RestartPolicy = {"Name": "on-failure", "MaximumRetryCount": 5}
LOG_LINES = 15
FULL = "no space left on device"


def engine_address() -> str:
    """The engine's address, safe to print."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    return address if address.startswith("unix://") else without_user(address)


def connect(otherwise: str = "") -> DockerClient:
    """A client of the engine. Raises Failure if no engine answers or we may not use it.

    `otherwise` ends the message with what to do without an engine: ", or …".
    """
    address = engine_address()
    absent = Failure(
        f"no Docker engine answers at {address}; start it (systemctl start docker), or set DOCKER_HOST{otherwise}"
    )
    if address.startswith("unix://") and not os.path.exists(address.removeprefix("unix://")):
        raise absent
    import docker.errors

    try:
        # A hanging engine counts as absent; later requests may take longer.
        client = docker.from_env(timeout=FIRST_CONTACT_S)
        client.api.timeout = REQUEST_TIMEOUT_S
        return client
    except (docker.errors.DockerException, ValueError) as error:
        if "Permission denied" in str(error):
            raise Failure(
                f"permission to use the Docker engine at {address} is denied; run: sudo usermod -aG docker $USER, "
                f"and log in anew{otherwise}"
            ) from None
        raise absent from None


@contextmanager
def in_words(doing: str) -> Iterator[None]:
    """Turn the engine's errors while `doing` something into one line."""
    from docker.errors import APIError, ContainerError
    from requests.exceptions import RequestException

    try:
        yield
    except ContainerError as error:
        raise Failure(f"{doing}: {first_line(error.stderr)}") from None
    except APIError as error:
        raise Failure(f"{doing}: {explain(error.explanation or str(error))}") from None
    except RequestException as error:
        raise Failure(
            f"{doing}: the Docker engine at {engine_address()} fell silent ({type(error).__name__})"
        ) from None


def explain(text: str) -> str:
    """The engine's message, replaced by ours where we know the cure."""
    text = first_line(text)
    if FULL in text.lower():
        return "the Docker engine's disk is full; run: docker system prune, or give it more room"
    if missing := re.search(r'type "bind": (?:bind source path does not exist:|stat) ([^\s:]+)', text):
        return f"the engine's machine has no {missing[1]}; set HOST_REPO_DIR to where {ROOT} lies on that machine"
    return text


def first_line(text: str | bytes | None) -> str:
    text = text.decode(errors="replace") if isinstance(text, bytes) else text or ""
    return (text.strip().splitlines() or ["no reason given"])[0][:300]


def split_name(image: str) -> tuple[str, str]:
    """(repository, tag) of an image's name; the tag defaults to "latest"."""
    repository, colon, tag = image.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (image, "latest")


def host_path(settings: Settings, path: Path) -> str:
    """`path` as the engine's machine names it. Raises Failure if HOST_REPO_DIR does not cover it."""
    path, root = path.resolve(), ROOT.resolve()
    if settings.HOST_REPO_DIR is None:
        return str(path)
    if not path.is_relative_to(root):
        raise Failure(f"{path} lies outside {root}, of which HOST_REPO_DIR speaks; choose RUN_DIR and DATA_ROOT in it")
    return str(settings.HOST_REPO_DIR / path.relative_to(root))


def confinement(client: DockerClient, settings: Settings) -> dict[str, Any]:
    """What all our containers are started with: user, mounts, label, and no privileges."""
    from docker.types import Mount

    for folder in (settings.RUN_DIR / "logs", settings.DATA_ROOT):
        folder.mkdir(parents=True, exist_ok=True)
    owner = settings.RUN_DIR.stat()
    # A rootless engine maps its root to the user who started it, and other users to nobody.
    rootless = any("rootless" in option for option in client.info().get("SecurityOptions") or [])
    return {
        "user": "0:0" if rootless else f"{owner.st_uid}:{owner.st_gid}",
        "mounts": [
            Mount(STATE, host_path(settings, settings.RUN_DIR), type="bind"),
            Mount(DATA, host_path(settings, settings.DATA_ROOT), type="bind", read_only=True),
        ],
        "labels": {RUN_LABEL: processes.mark(settings)},
        "read_only": True,
        "tmpfs": TMPFS,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
    }


def find_image(client: DockerClient, settings: Settings, code: str) -> Image:
    """The image the graph is to run. Raises Failure if it is missing or was built from other code than this clone's."""
    from docker.errors import ImageNotFound

    name = settings.NEMO_GYM_IMAGE
    with in_words(f"image {name}"):
        try:
            image = client.images.get(name)
        except ImageNotFound:
            raise Failure(f"the image {name} is not there; run: make image") from None
    if image.labels.get(CODE_LABEL) != code:
        raise Failure(f"the image {name} was built from other scripts or patches than this clone's; run: make image")
    return image


def check_paths(client: DockerClient, settings: Settings, image: Image) -> None:
    """Prove with a short-lived container that the engine mounts our run folder and may write to it."""
    token = secrets.token_hex(8)
    probe, copy = settings.RUN_DIR / ".probe", settings.RUN_DIR / ".probe-seen"
    shared = confinement(client, settings)
    # The container's own exit status does not matter: the copy must appear on this side.
    command = ["/bin/sh", "-c", f"cp {STATE}/{probe.name} {STATE}/{copy.name} 2>&1 || true"]
    probe.write_text(token)
    try:
        with in_words("mounting RUN_DIR into a container"):
            output = client.containers.run(image, command, remove=True, network_mode="none", **shared)
        if not copy.exists() or copy.read_text() != token:
            where = host_path(settings, settings.RUN_DIR)
            raise Failure(
                f"{where} on the Docker engine's machine is not {settings.RUN_DIR} here, or may not be written to "
                f"({first_line(output)}); set HOST_REPO_DIR to where {ROOT} lies on that machine"
            )
    finally:
        for path in (probe, copy):
            path.unlink(missing_ok=True)


def ours(client: DockerClient, settings: Settings) -> list[Container]:
    """Containers of this clone's run folder, ended ones included."""
    with in_words("listing containers"):
        return client.containers.list(all=True, filters={"label": f"{RUN_LABEL}={processes.mark(settings)}"})


def refuse_foreign(client: DockerClient, settings: Settings) -> None:
    """Raise Failure if GYM_CONTAINER's name belongs to a container that is not this clone's."""
    from docker.errors import NotFound

    name = settings.GYM_CONTAINER
    with in_words(f"container {name}"):
        try:
            container = client.containers.get(name)
        except NotFound:
            return
    owner = container.labels.get(RUN_LABEL)
    if owner == processes.mark(settings):
        return
    whose = f"belongs to the run folder {owner}" if owner else "is not ours"
    raise Failure(f"a container named {name} is there already and {whose}; set another GYM_CONTAINER, or remove it")


class DockerGraph:
    """The graph in its container; the same interface as graph.LocalGraph.

    `variables` are those of env.example that its servers read. `check_ports(settings)` raises Failure for a port of
    the graph that is taken.
    """

    name = "docker"
    container: Container  # set by `start`

    def __init__(
        self, client: DockerClient, settings: Settings, image: Image,
        variables: Mapping[str, str], check_ports: Callable[[Settings], None],
    ) -> None:  # fmt: skip
        self.client, self.settings, self.image = client, settings, image
        self.variables, self.check_ports = variables, check_ports

    def runs(self, fingerprint: str) -> bool:
        """Whether our container of this fingerprint, image and shared memory runs."""
        return any(
            container.status == "running"
            and container.name == self.settings.GYM_CONTAINER
            and container.labels.get(FINGERPRINT_LABEL) == fingerprint
            and container.attrs["Image"] == self.image.id
            and container.attrs["HostConfig"]["ShmSize"] == self.settings.GYM_SHM_MB << 20
            for container in ours(self.client, self.settings)
        )

    def check(self) -> None:
        """Raise Failure if it cannot be started."""
        refuse_foreign(self.client, self.settings)
        if not self.settings.HOST_REPO_DIR:
            self.check_ports(self.settings)
        check_paths(self.client, self.settings, self.image)

    def start(self, fingerprint: str) -> None:
        shared = confinement(self.client, self.settings)
        shared["labels"] |= {FINGERPRINT_LABEL: fingerprint}
        with in_words(f"starting container {self.settings.GYM_CONTAINER}"):
            self.container = self.client.containers.create(
                self.image,
                name=self.settings.GYM_CONTAINER,
                environment=self.environment(fingerprint),
                network_mode="host",
                init=True,
                stop_signal="SIGINT",
                shm_size=f"{self.settings.GYM_SHM_MB}m",
                **shared,
            )
            note(self.settings).write_text(str(self.container.id))
            put_token(self.settings)
            self.container.start()

    def environment(self, fingerprint: str) -> dict[str, str]:
        # `docker inspect` shows these to everybody who may use the engine: the token goes into a file.
        chosen = {name: text for name, text in self.variables.items() if name != "GATEWAY_TOKEN"}
        chosen["GATEWAY_TOKEN_FILE"] = f"{STATE}/{TOKEN}" if read_token(self.settings) else ""
        places = {"RUN_DIR": STATE, "DATA_ROOT": DATA, "HOME": "/tmp", "USER": "gym", "PYTHONPATH": ""}
        return chosen | {"GYM_HOST": self.settings.GYM_HOST, "WORKPLACE_FINGERPRINT": fingerprint} | places

    def died(self) -> bool:
        with in_words("looking at the container"):
            self.container.reload()
        return self.container.status != "running"

    def last_words(self) -> str:
        """The container's last lines, for the user of a failed start."""
        with in_words("reading the container's log"):
            lines = self.container.logs(tail=LOG_LINES).decode(errors="replace").splitlines()
        shown = "\n".join(f"    {line[:300]}" for line in lines)
        return f"the last lines of container {self.container.name}:\n{shown}"

    def check_loopback(self) -> None:
        """Have the container check that only its Gateway listens beyond loopback."""
        code = (
            "from common import settings, terminal; from servers import graph; "
            "terminal.run(lambda: graph.check_loopback(settings.load()))"
        )
        with in_words("looking at the container's ports"):
            status, output = self.container.exec_run([PYTHON, "-c", code], workdir=f"{HOME}/scripts")
        if status:
            assert isinstance(output, bytes)  # an iterator only if streamed
            raise Failure(first_line(output).removeprefix("error: "))

    def settle(self) -> None:
        """Have the engine restart the container if it fails from now on, a bounded number of times."""
        with in_words("setting the restart policy"):
            self.container.update(restart_policy=RESTART)


def put_token(settings: Settings) -> None:
    """Write the Gateway's token into RUN_DIR for the container's user alone; it lives as long as the container."""
    path, owner = settings.RUN_DIR / TOKEN, settings.RUN_DIR.stat()
    path.unlink(missing_ok=True)
    if token := read_token(settings):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token)
        if os.geteuid() == 0:
            os.chown(path, owner.st_uid, owner.st_gid)


def note(settings: Settings) -> Path:
    """The file that records that a container was started, for a stop that reaches no engine."""
    return settings.RUN_DIR / "container"


def end_containers(settings: Settings) -> int:
    """Stop and remove this clone's containers, their log kept in logs/supervisor.log. Returns their number.

    Raises Failure if a container was started and the engine does not answer.
    """
    try:
        client = connect()
    except Failure as failure:
        if not note(settings).exists():
            return 0
        raise Failure(f"the graph's container cannot be stopped: {failure} (or rm {note(settings)})") from None
    containers = ours(client, settings)
    for container in containers:
        with in_words(f"stopping container {container.name}"):
            container.stop(timeout=STOP_GRACE_S)
            keep_log(settings, container)
            container.remove(force=True)
    if left := ours(client, settings):
        raise Failure(f"container {left[0].name} does not end; run: docker rm -f {left[0].name}")
    for path in (note(settings), settings.RUN_DIR / TOKEN):
        path.unlink(missing_ok=True)
    return len(containers)


def keep_log(settings: Settings, container: Container) -> None:
    # A log that cannot be written must not keep the container from being removed.
    with suppress(OSError):
        (settings.RUN_DIR / "logs").mkdir(parents=True, exist_ok=True)
        (settings.RUN_DIR / "logs" / "supervisor.log").write_bytes(container.logs(tail=10000))
