"""This machine: Python and the set-up, tools, disk, memory, open files, shared memory, ports.

Guarantees: nothing is bound or written. The bounds on memory and disk are what a smoke run was seen to take, with room
to spare; a machine just above them may still be slow.
"""

from __future__ import annotations

import errno
import os
import platform
import resource
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from shlex import quote

from checks.probe import Case, Finding, fail, failed, ok, temporary_folder, warn
from common.failure import Failure
from common.settings import ROOT, Settings
from servers import container, graph, private_ray, processes, tree
from servers import ports as server_ports

SETUP_LOOK_S = 60
MB = 1 << 20
DISK_LEAST_MB, DISK_AMPLE_MB, INODES_LEAST = 200, 2000, 1000
# Graph and rehearsal together; the graph alone takes about half.
MEMORY_LEAST_MB, MEMORY_AMPLE_MB = 1500, 3000
# A trial holds connections to client, agent and model; Ray and the servers hold files of their own.
FILES_OWN, FILES_A_TRIAL = 256, 4
OBJECT_STORE_MB = 100


def python(case: Case) -> Finding:
    """The Python and packages of this clone, as scripts/setup.sh itself judges them."""
    command = [str(ROOT / "scripts" / "setup.sh"), "--look"]
    setup = subprocess.run(command, capture_output=True, text=True, timeout=SETUP_LOOK_S)
    if setup.returncode:
        message = (setup.stderr.strip().splitlines() or ["error: set-up: said nothing"])[-1]
        return failed(message.removeprefix("error: set-up: ").replace("cure: ", ""))
    lines = [line.split(" ", 1) for line in setup.stdout.splitlines()]
    ready = [part for state, part in lines if state == "ready"]
    if "packages" not in ready:
        fitting = next(path for state, path in lines if state == "python")
        return ok(f"set-up not made yet, {fitting} fits; make setup, or any stage, makes it")
    if "patches" not in ready:
        return ok("packages as locked; patches are applied by the next stage")
    try:
        folder = tree.installed_tree()
    except Failure:
        return ok("packages as locked and patched in .venv; this is another Python")
    if tree.tree_state(folder, tree.read_sums()) != "patched":
        return fail(f"{folder} is not patched", tree.REINSTALL)
    return ok(f"Python {platform.python_version()}, packages as locked, NeMo Gym patched")


def tools(case: Case) -> Finding:
    """Programs on PATH: git, make and bash are needed; uv and docker are useful."""
    missing = [name for name in ("git", "make", "bash") if not shutil.which(name)]
    if missing:
        return fail(f"not on PATH: {', '.join(missing)}", f"apt-get install {' '.join(missing)}")
    optional = {"uv": "set-up takes three times as long without", "docker": "only make ray-up's container needs it"}
    absent = [f"no {name} ({meaning})" for name, meaning in optional.items() if not shutil.which(name)]
    return ok("; ".join(["git, make and bash are there", *absent]))


def disk(case: Case) -> Finding | list[Finding]:
    """Room and the right to write in every folder that is written to."""
    s, temporary = case.settings, temporary_folder()
    folders = {"RUN_DIR": s.RUN_DIR, "DATA_ROOT": s.DATA_ROOT, "TMPDIR": temporary}
    folders |= {"EXP_DIR": s.EXP_DIR} if case.trains or case.stage in ("", "smoke") else {}
    findings = [room(name, folder) for name, folder in folders.items()]
    if not temporary.is_dir():  # no stage makes it
        what = f"TMPDIR={temporary} is no folder: programs fail, or use another"
        findings.append(warn(what, f"mkdir -p {quote(str(temporary))}"))
    bad = [finding for finding in findings if finding.verdict != "ok"]
    return bad or ok(", ".join(finding.what for finding in findings))


def room(name: str, folder: Path, needed_mb: int = DISK_LEAST_MB, ample_mb: int = DISK_AMPLE_MB) -> Finding:
    """A Finding about the folder of a variable, or the nearest folder above it that exists."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    elsewhere = f"set {name} to another disk"
    disk = os.statvfs(there)
    # Pseudo file systems such as /proc have no blocks, and their modes claim that root may write.
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK) or not disk.f_blocks:
        return fail(f"{there} cannot be written to", f"set {name} to a folder that can be written")
    free, text = disk.f_bavail * disk.f_frsize // MB, f"{name} {disk.f_bavail * disk.f_frsize / 1e9:.1f} GB free"
    if free < needed_mb:
        return fail(f"{text} at {there}, {needed_mb / 1000:g} GB needed", f"free some, or {elsewhere}")
    if disk.f_files and disk.f_favail < INODES_LEAST:
        return fail(f"{there} has {disk.f_favail} inodes left ({name})", f"remove small files, or {elsewhere}")
    if free < ample_mb:
        return warn(f"{text} at {there}: little for logs and results", f"free some, or {elsewhere}")
    return ok(text)


def memory(case: Case) -> Finding:
    """What is available here, by the machine and by the limit of the container that we may run in."""
    if case.ours:
        return ok(f"{available_mb() / 1000:.1f} GB available, servers of this clone run")
    return memory_finding(available_mb())


def memory_finding(available: int) -> Finding:
    text = f"{available / 1000:.1f} GB of memory available"
    cure = "end other programs, or take a larger machine"
    if available < MEMORY_LEAST_MB:
        return fail(f"{text}, {MEMORY_LEAST_MB / 1000:g} GB needed", cure)
    return warn(f"{text}; graph and rehearsal take most of that", cure) if available < MEMORY_AMPLE_MB else ok(text)


def available_mb(root: Path = Path("/")) -> int:
    fields = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    available = int(fields["MemAvailable"].split()[0]) // 1024
    group = root / "sys/fs/cgroup"
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            left = int((group / limit).read_text()) - int((group / used).read_text())
        except (OSError, ValueError):  # no such limit
            continue
        available = min(available, left // MB)
    return max(0, available)


def open_files(case: Case) -> Finding:
    """The limit on open files, as far as the servers can raise it, against the trials that may run and wait."""
    s = case.settings
    soft, hard = processes.open_files_to_be_had()
    if soft == resource.RLIM_INFINITY:
        return ok("no limit on open files")
    least = FILES_OWN + FILES_A_TRIAL * s.WORKPLACE_ASSISTANT_MAX_CONCURRENCY
    full = least + s.GATEWAY_QUEUE_LIMIT
    allowed = f"{soft} open files allowed (the hard limit is {hard})"
    cure = f"ulimit -n {full}" if os.geteuid() == 0 else f"sudo prlimit --pid $$ --nofile={full}:{full}"
    if soft < least:
        return fail(f"{allowed}, {least} needed", cure)
    if soft < full:
        return warn(f"{allowed}: too few for {full} with GATEWAY_QUEUE_LIMIT trials waiting", cure)
    return ok(f"{soft} open files allowed")


def shared_memory(case: Case, folder: Path = Path("/dev/shm")) -> Finding:
    """Room in /dev/shm for the objects of two Rays."""
    if not folder.is_dir():
        return warn(f"no {folder}: Ray keeps its objects on disk", f"mount a tmpfs at {folder}")
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize // MB
    if free < 2 * OBJECT_STORE_MB and not case.ours:
        what = f"{folder} has {free} MB free, two Rays take {OBJECT_STORE_MB} MB each: they use the disk instead"
        return warn(what, "give the container more (--shm-size), or remove what is in it")
    return ok(f"{folder} has {free / 1000:.1f} GB free")


# --- ports ---------------------------------------------------------------------------------


def ports(case: Case) -> Finding | list[Finding]:
    """Each port of the graph and of the rehearsal: outside the kernel's range, and free or held by ours."""
    s, wanted = case.settings, _wanted(case)
    faults = _unfit(s, wanted) + _taken(case, wanted)
    count = len({number for numbers, _, _ in wanted for number in numbers})
    state = "free or held by this clone's servers" if case.ours else "free"
    return faults or ok(f"{count} ports from {s.GYM_BASE_PORT} on and {s.GYM_RAY_PORT} are {state}")


def _wanted(case: Case) -> list[tuple[list[int], str, str]]:
    """What would be bound on this machine, as `graph.graph_ports` has it."""
    s = case.settings
    in_engine = s.HOST_REPO_DIR and s.GYM_BACKEND != "local"  # whose ports are another machine's
    elsewhere = case.stage == "smoke" and s.RAY_ADDRESS and not case.gym_is_here
    wanted = [] if in_engine or elsewhere else graph.graph_ports(s)
    if s.RAY_ADDRESS or case.stage == "gym-up":
        return wanted
    return [*wanted, (private_ray.PrivateRay(s, "rehearsal").ports(), "GYM_BASE_PORT", "127.0.0.1")]


def _unfit(settings: Settings, wanted: list[tuple[list[int], str, str]]) -> list[Finding]:
    """A Finding for each variable whose ports no process should have."""
    faults: dict[str, Finding] = {}
    for numbers, variable, _ in wanted:
        try:
            graph.refuse_overlap(settings)
            for number in numbers:
                server_ports.refuse_ephemeral(number, variable)
        except Failure as fault:
            faults.setdefault(variable, failed(fault))
    return list(dict.fromkeys(faults.values()))


def _taken(case: Case, wanted: list[tuple[list[int], str, str]]) -> list[Finding]:
    """A Finding for each process of others on a port that ours would bind; processes of one graph count as one."""
    held = _held(case.settings, wanted)
    if not held or _in_container(case):
        return []
    variables = {number: variable for numbers, variable, _ in wanted for number in numbers}
    holders = {}
    for inode, numbers in held.items():
        process = server_ports.listener({inode})
        folder = process and processes.run_folder(process)
        holders.setdefault(folder or (process and process.pid), (process, folder, []))[2].extend(numbers)
    return [_holder(process, folder, sorted(set(numbers)), variables) for process, folder, numbers in holders.values()]


def _held(settings: Settings, wanted: list[tuple[list[int], str, str]]) -> dict[str, list[int]]:
    """{inode: ports} of others' sockets that prevent a bind."""
    hosts: dict[int, set[str]] = {}
    for numbers, _, host in wanted:
        for number in numbers:
            hosts.setdefault(number, set()).add(host)
    # Sockets are listed before our processes and again at the end: servers of ours may start and end meanwhile.
    listening = [(port, inode) for _, port, inode in server_ports.listening() if port in hosts]
    own = set().union(*map(server_ports.sockets_of, processes.ours(settings)))
    ours = {port for port, inode in listening if inode in own}
    held = {}
    for port, inode in listening:
        # Only the kernel knows which addresses exclude each other.
        if port not in ours and any(server_ports.why_unbound(host, port) == errno.EADDRINUSE for host in hosts[port]):
            held.setdefault(inode, []).append(port)
    still = {inode for _, _, inode in server_ports.listening()}
    return {inode: numbers for inode, numbers in held.items() if inode in still}


def _in_container(case: Case) -> bool:
    """Whether this clone's own container has the ports; its processes cannot be looked at."""
    with suppress(Failure):
        if container.note(case.settings).exists():
            return any(box.status == "running" for box in container.ours(container.connect(), case.settings))
    return False


def _holder(
    process: processes.Process | None, folder: str | None, numbers: list[int], variables: dict[int, str]
) -> Finding:
    shown = f"port{'s' if numbers[1:] else ''} {', '.join(map(str, numbers[:5]))}{' ...' if numbers[5:] else ''}"
    names = " or ".join(sorted({variables[number] for number in numbers}))
    if process is None:
        return fail(f"{shown} taken by a process that may not be looked at", f"end it, or set {names}")
    if folder:
        return fail(f"{shown} taken by {process} (the graph of {folder})", f"end it there (make stop), or set {names}")
    return fail(f"{shown} taken by {process}", f"end it, or set {names}")
