"""This machine: Python and the set-up, tools, disk, memory, open files, shared memory, ports.

The bounds on memory and disk are what a smoke run was seen to take, with room to spare; a machine
just above them may still be slow.
"""

import errno
import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path
from shlex import quote

from checks.probe import fail, failed, ok, temporary_folder, warn
from common.failure import Failure
from common.settings import ROOT
from servers import graph as servers_graph
from servers import ports as server_ports
from servers import private_ray, processes
from servers import tree as gym_tree
from servers.processes import run_folder

SETUP_LOOK_S = 60
MB = 1 << 20
DISK_LEAST_MB, DISK_AMPLE_MB, INODES_LEAST = 200, 2000, 1000
# Graph and rehearsal together; the graph alone takes about half.
MEMORY_LEAST_MB, MEMORY_AMPLE_MB = 1500, 3000
# A trial holds connections to client, agent and model; Ray and the servers hold files of their own.
FILES_OWN, FILES_A_TRIAL = 256, 4
OBJECT_STORE_MB = 100


def python(case):
    """The Python and packages of this clone, as scripts/setup.sh itself judges them."""
    looked = subprocess.run(
        [str(ROOT / "scripts" / "setup.sh"), "--look"], capture_output=True, text=True, timeout=SETUP_LOOK_S
    )
    if looked.returncode:
        message = (looked.stderr.strip().splitlines() or ["error: set-up: said nothing"])[-1]
        return failed(message.removeprefix("error: set-up: ").replace("cure: ", ""))
    said = dict(reversed(line.split(" ", 1)) for line in looked.stdout.splitlines())
    if said.get("packages") != "ready":
        found = next(name for name, kind in said.items() if kind == "python")
        return ok(f"set-up not made yet, {found} fits; make setup, or any stage, makes it")
    if said.get("patches") != "ready":
        return ok("packages as locked; patches are applied by the next stage")
    return _patched()


def _patched():
    try:
        tree = gym_tree.installed_tree()
    except Failure:
        return ok("packages as locked and patched in .venv; this is another Python")
    if gym_tree.tree_state(tree, gym_tree.read_sums()) != "patched":
        return fail(f"{tree} is not patched", gym_tree.REINSTALL)
    return ok(f"Python {platform.python_version()}, packages as locked, NeMo Gym patched")


def tools(case):
    """Programs on PATH: git, make and bash; uv and docker are good to have."""
    missing = [name for name in ("git", "make", "bash") if not shutil.which(name)]
    if missing:
        return fail(f"not on PATH: {', '.join(missing)}", f"apt-get install {' '.join(missing)}")
    optional = {"uv": "set-up takes three times as long without", "docker": "only make ray-up's container needs it"}
    absent = [f"no {name} ({meaning})" for name, meaning in optional.items() if not shutil.which(name)]
    return ok("; ".join(["git, make and bash are there", *absent]))


def disk(case):
    """Room and the right to write in every folder that is written to."""
    s = case.settings
    folders = {"RUN_DIR": s.RUN_DIR, "DATA_ROOT": s.DATA_ROOT, "TMPDIR": temporary_folder()}
    folders |= {"EXP_DIR": s.EXP_DIR} if case.trains or case.stage in ("", "smoke") else {}
    found = [room(name, folder) for name, folder in folders.items()]
    if not folders["TMPDIR"].is_dir():  # which nobody makes
        found.append(_no_temporary(folders["TMPDIR"]))
    return [each for each in found if each.verdict != "ok"] or ok(", ".join(each.what for each in found))


def _no_temporary(folder):
    return warn(f"TMPDIR={folder} is no folder: programs fail, or use another", f"mkdir -p {quote(str(folder))}")


def room(name, folder, needed_mb=DISK_LEAST_MB, ample_mb=DISK_AMPLE_MB):
    """A Finding about the folder of a variable, or the nearest one above it that exists."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    elsewhere = f"set {name} to another disk"
    disk = os.statvfs(there)
    # A file system of the kernel's own has no blocks; root may write in it as far as modes tell.
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


def memory(case):
    """What is available here, by the machine and by the limit of the container we may run in."""
    if case.ours:
        return ok(f"{available_mb() / 1000:.1f} GB available, servers of this clone run")
    return memory_finding(available_mb())


def memory_finding(available):
    text = f"{available / 1000:.1f} GB of memory available"
    if available < MEMORY_LEAST_MB:
        return fail(f"{text}, {MEMORY_LEAST_MB / 1000:g} GB needed", "end other programs, or take a larger machine")
    if available < MEMORY_AMPLE_MB:
        return warn(f"{text}; graph and rehearsal take most of that", "end other programs, or take a larger machine")
    return ok(text)


def available_mb(root=Path("/")):
    fields = dict(line.split(":") for line in (root / "proc/meminfo").read_text().splitlines())
    found = [int(fields["MemAvailable"].split()[0]) // 1024]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            group = root / "sys/fs/cgroup"
            found.append((int((group / limit).read_text()) - int((group / used).read_text())) // MB)
        except (OSError, ValueError):  # no such limit
            continue
    return max(0, min(found))


def open_files(case):
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


def shared_memory(case, folder=Path("/dev/shm")):
    """Room in /dev/shm for the objects of two Rays."""
    if not folder.is_dir():
        return warn(f"no {folder}: Ray keeps its objects on disk", f"mount a tmpfs at {folder}")
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize // MB
    if free < 2 * OBJECT_STORE_MB and not case.ours:
        return warn(
            f"{folder} has {free} MB free, two Rays take {OBJECT_STORE_MB} MB each: they use the disk instead",
            "give the container more (--shm-size), or remove what is in it",
        )
    return ok(f"{folder} has {free / 1000:.1f} GB free")


# --- ports ---------------------------------------------------------------------------------


def ports(case):
    """Each port of the graph and of the rehearsal: outside the kernel's range, and free or held by ours."""
    s, wanted = case.settings, _wanted(case)
    faults = _unfit(s, wanted) + _taken(case, wanted)
    count = len({number for numbers, _, _ in wanted for number in numbers})
    running = "free or held by this clone's servers" if case.ours else "free"
    return faults or ok(f"{count} ports from {s.GYM_BASE_PORT} on and {s.GYM_RAY_PORT} are {running}")


def _wanted(case):
    """What would be bound on this machine, as `gym_up.graph_ports` has it."""
    s = case.settings
    in_engine = s.HOST_REPO_DIR and s.GYM_BACKEND != "local"  # whose ports are another machine's
    elsewhere = case.stage == "smoke" and s.RAY_ADDRESS and not case.gym_is_here
    graph = [] if in_engine or elsewhere else servers_graph.graph_ports(s)
    if s.RAY_ADDRESS or case.stage == "gym-up":
        return graph
    return [*graph, (private_ray.PrivateRay(s, "rehearsal").ports(), "GYM_BASE_PORT", "127.0.0.1")]


def _unfit(settings, wanted):
    """A Finding for each variable whose ports no process should have."""
    faults = {}
    for numbers, variable, _ in wanted:
        try:
            servers_graph.refuse_overlap(settings)
            for number in numbers:
                server_ports.refuse_ephemeral(number, variable)
        except Failure as fault:
            faults.setdefault(variable, failed(fault))
    return list(dict.fromkeys(faults.values()))


def _taken(case, wanted):
    """A Finding for each process of others on a port that ours would bind."""
    held = _held(case.settings, wanted)
    if not held or _in_container(case):
        return []
    return _named(held, {number: variable for numbers, variable, _ in wanted for number in numbers})


def _held(settings, wanted):
    """{inode: ports} of others' sockets that are in the way of a bind."""
    hosts = {}
    for numbers, _, host in wanted:
        for number in numbers:
            hosts.setdefault(number, set()).add(host)
    # Looked at before our processes, and again at the end: servers of ours may start and end meanwhile.
    listening = [(port, inode) for _, port, inode in server_ports.listening() if port in hosts]
    own = set().union(*map(server_ports.sockets_of, processes.ours(settings)))
    ours = {port for port, inode in listening if inode in own}
    held = {}
    for port, inode in listening:
        # Which addresses are in each other's way, the kernel knows best.
        if port not in ours and any(server_ports.why_unbound(host, port) == errno.EADDRINUSE for host in hosts[port]):
            held.setdefault(inode, []).append(port)
    still = {inode for _, _, inode in server_ports.listening()}
    return {inode: ports for inode, ports in held.items() if inode in still}


def _in_container(case):
    """Whether the ports are those of this clone's own container, whose processes are not to be looked at."""
    from servers import container

    if not container.note(case.settings).exists():
        return False
    try:
        return any(each.status == "running" for each in container.ours(container.connect(), case.settings))
    except Failure:
        return False


def _named(held, variables):
    """One Finding a holder; all processes of one graph are one holder."""
    holders = {}
    for inode, numbers in held.items():
        process = server_ports.listener({inode})
        folder = process and run_folder(process)
        holders.setdefault(folder or (process and process.pid), (process, folder, []))[2].extend(numbers)
    return [_holder(process, folder, sorted(set(numbers)), variables) for process, folder, numbers in holders.values()]


def _holder(process, folder, numbers, variables):
    shown = f"port{'s' if numbers[1:] else ''} {', '.join(map(str, numbers[:5]))}{' ...' if numbers[5:] else ''}"
    names = " or ".join(sorted({variables[number] for number in numbers}))
    if process is None:
        return fail(f"{shown} taken by a process that may not be looked at", f"end it, or set {names}")
    text = f"{shown} taken by {process}"
    if folder:
        return fail(f"{text} (the graph of {folder})", f"end it there (make stop), or set {names}")
    return fail(text, f"end it, or set {names}")
