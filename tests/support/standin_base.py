"""A base image for these tests, made of this machine in seconds: no registry, no package index.

It holds what the Dockerfile and the graph ask of the trainer's image: a shell and the few programs
in PROGRAMS, git, Python with pip, loguru and Ray Serve as `python3`, certificates. All of it is
copied from this machine and the clone's environment, with the shared libraries it is linked to and,
as an image built by an installer has it, the byte code of what Ray imports. It stands in for the
trainer's image in nothing else.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from importlib import metadata
from importlib.util import cache_from_source
from pathlib import Path

PROGRAMS = ["bash", "cat", "cp", "env", "git", "ln", "ls", "mkdir", "mv", "ps", "rm", "sed", "sh", "sleep", "tar"]
# What wheels may take from the system (manylinux), besides what the programs are linked to.
LIBRARIES = [
    "libdl.so.2", "libgcc_s.so.1", "libpthread.so.0", "libresolv.so.2", "librt.so.1", "libstdc++.so.6",
    "libutil.so.1", "libz.so.1",
]  # fmt: skip
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
FILES = (CERTIFICATES, "/etc/passwd", "/etc/group", "/etc/nsswitch.conf")
PACKAGES = ("pip", "loguru", "ray[default,serve]")
NAME = "relax-nemo-gym-standin:test"
PYTHON = "/opt/python"
LABEL = "relax-nemo-gym.standin"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"{PYTHON}/lib/{VERSION}/site-packages"
LEFT_OUT = ("site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo", "__pycache__")
RAY = f"#!{PYTHON}/bin/python3\nimport sys\nfrom ray.scripts.scripts import main\nsys.exit(main())\n"
# What leaves the byte code.
WARM_UP = "import loguru, ray, ray.scripts.scripts, ray.serve.scripts"
ENVIRONMENT = {
    "PATH": f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "SSL_CERT_FILE": CERTIFICATES,
    "PIP_CERT": CERTIFICATES,
    "GIT_SSL_CAINFO": CERTIFICATES,
    "PIP_ROOT_USER_ACTION": "ignore",
}


def distributions(requirements):
    """The installed distributions that `requirements` (extras in brackets) name and need, where installed."""
    found, queue = {}, list(requirements)
    while queue:
        name, extras = re.match(r"([\w.-]+)(?:\[([\w,.-]*)\])?", queue.pop()).groups()
        key = (re.sub(r"[-_.]+", "-", name).lower(), extras)
        try:
            if key not in found:
                found[key] = metadata.distribution(key[0])
                queue += needs(found[key], (extras or "").split(","))
        except metadata.PackageNotFoundError:
            continue
    return {distribution.name: distribution for distribution in found.values()}.values()


def needs(distribution, extras):
    """What a distribution requires by itself and for `extras`."""
    for line in distribution.requires or []:
        extra = re.search(r"""extra\s*==\s*["']([\w.-]+)""", line)
        if extra is None or extra[1] in extras:
            yield line


def programs():
    return {f"/usr/bin/{name}": shutil.which(name) for name in PROGRAMS}


def python():
    """This interpreter's installation without the packages somebody put there."""
    library = Path(sysconfig.get_path("stdlib"))
    found = {f"{PYTHON}/bin/{VERSION}": os.path.realpath(sys.executable)}
    for folder, names, files in os.walk(library):
        names[:] = [name for name in names if name not in LEFT_OUT and not name.startswith("config-")]
        below = Path(folder).relative_to(library)
        found |= {f"{PYTHON}/lib/{VERSION}/{below / name}": f"{folder}/{name}" for name in files}
    return found


def packages():
    site = Path(sysconfig.get_path("purelib"))
    files = [file.locate() for distribution in distributions(PACKAGES) for file in distribution.files]
    inside = {path for path in files if ".." not in path.parts and path.suffix != ".pyc" and path.exists()}
    return {f"{SITE}/{path.relative_to(site)}": str(path) for path in inside}


def libraries(binaries):
    """The shared libraries that the binaries are linked to, by the linker's account, and LIBRARIES."""
    said = subprocess.run(["ldd", *binaries], capture_output=True, text=True).stdout
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    paths = set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, re.MULTILINE))
    lines = re.findall(r"^\s+(\S+) .*(?:x86-64|AArch64).* => (\S+)", known, re.MULTILINE)
    paths |= {path for name, path in lines if name in LIBRARIES}
    return {path: path for path in paths}


def byte_code(files):
    """{path in the image: file of this machine} of the byte code that this Python keeps for `files`."""
    subprocess.run([sys.executable, "-c", WARM_UP], check=True, capture_output=True)
    code = {cache_from_source(to): cache_from_source(at) for to, at in files.items() if at.endswith(".py")}
    return {to: at for to, at in code.items() if Path(at).exists()}


def sources():
    """{path in the image: file of this machine}, without byte code."""
    binary = programs() | python()
    linked = libraries([source for target, source in binary.items() if "/bin/" in target or target.endswith(".so")])
    return binary | linked | packages() | {path: path for path in FILES if Path(path).exists()}


def readable(entry):
    """Whatever this machine has it as: root's, and readable and runnable by all; byte code knows its source's time."""
    entry.uid = entry.gid = 0
    entry.mtime = int(entry.mtime)
    entry.uname = entry.gname = "root"
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry


def special(name, kind, mode=0o755, to="", text=""):
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.linkname, entry.size = kind, mode, to, len(text)
    return entry, io.BytesIO(text.encode())


def write(files, archive):
    with tarfile.open(fileobj=archive, mode="w", dereference=True) as tar:
        for target, source in sorted(files.items()):
            tar.add(source, target, recursive=False, filter=readable)
        tar.addfile(*special(f"{PYTHON}/bin/python3", tarfile.SYMTYPE, to=VERSION))
        tar.addfile(*special(f"{PYTHON}/bin/ray", tarfile.REGTYPE, text=RAY))
        tar.addfile(*special("bin", tarfile.SYMTYPE, to="usr/bin"))
        tar.addfile(*special("tmp", tarfile.DIRTYPE, 0o1777))


def stamp(files):
    """Hash of what the image is made of: this file, and each file's place, size and time."""
    stats = {target: os.stat(source) for target, source in sorted(files.items())}
    lines = [f"{target} {stat.st_size} {stat.st_mtime_ns}\n" for target, stat in stats.items()]
    return hashlib.sha256(Path(__file__).read_bytes() + "".join(lines).encode()).hexdigest()


def make(client):
    """Import the base image as NAME, unless that is there and the same."""
    files = sources()
    wanted = {LABEL: stamp(files)}
    if any(image.labels == wanted for image in client.images.list(NAME)):
        return
    changes = [f"ENV {key}={value}" for key, value in ENVIRONMENT.items()] + [f"LABEL {LABEL}={wanted[LABEL]}"]
    repository, tag = NAME.split(":")
    with tempfile.NamedTemporaryFile() as archive:
        write(files | byte_code(files), archive)
        archive.flush()
        client.api.import_image_from_file(archive.name, repository=repository, tag=tag, changes=changes)
