"""What earlier runs of this repository left behind: processes, records, temporary folders, containers.

Named is only what carries our mark and belongs to nobody who lives; everything else is left out.
"""

import os
import shlex
import stat
import time
from contextlib import suppress
from pathlib import Path

from checks.probe import ok, temporary_folder, warn
from common.failure import Failure
from common.net import ask
from servers import container as docker_backend
from servers import private_ray
from servers import processes as own_processes
from servers.processes import own_folder

# A folder is there before the process that it is for.
NEW_S = 60
SESSION_FOLDERS = "session-*"


def processes(case):
    """Processes of run folders that are gone, and servers of ours whose supervisor is."""
    orphans = {}
    for process in own_processes.processes():
        folder = own_folder(process) if process.state != "Z" else None
        if folder and not sees(process.pid, folder):
            orphans.setdefault(folder, []).append(process.pid)
    found = [
        warn(f"{len(pids)} processes of {folder}, which is gone", f"kill {' '.join(map(str, pids))}")
        for folder, pids in orphans.items()
    ]
    servers = own_processes.ours(case.settings, "gym")
    if servers and not any(map(own_processes.is_supervisor, servers)):
        found.append(warn(f"{len(servers)} processes of the graph run without their supervisor", "make stop"))
    return found or ok(f"{len(case.ours)} processes of this clone run, none is left over")


def sees(pid, folder, proc=Path("/proc")):
    """Whether the folder is there for the process: in a container it has a file tree of its own."""
    try:
        return (proc / str(pid) / "root" / folder.lstrip("/")).is_dir()
    except PermissionError:
        return True


def records(case):
    """Jobs and sessions on record whose processes are gone, and probes that were not taken back."""
    s, found = case.settings, []
    jobs = [path.parent for path in sorted((s.RUN_DIR / "jobs").glob("*/dashboard")) if not _lives(path.parent.name)]
    unheard = _unheard(s, set(map(_dashboard, jobs)))
    gone = [folder for folder in jobs if _dashboard(folder) in unheard]
    if open_still := [folder for folder in jobs if folder not in gone]:
        found.append(warn(f"{len(open_still)} jobs whose end nobody saw, {open_still[-1].name} last", "make stop"))
    if gone:
        what = f"{len(gone)} jobs on clusters that do not answer, {gone[-1].name} last"
        found.append(warn(what, f"where the cluster is gone for good: rm -r {_words_of(gone)}"))
    if (s.RUN_DIR / own_processes.SESSIONS).exists() and not case.ours:
        found.append(
            warn(f"{s.RUN_DIR / own_processes.SESSIONS} is the record of processes that are gone", "make stop")
        )
    probes = [path for folder in (s.RUN_DIR, s.EXP_DIR) if folder.is_dir() for path in folder.glob(".probe*")]
    if probes:
        found.append(warn(f"{len(probes)} probes of broken-off checks, as {probes[0]}", f"rm {_words_of(probes)}"))
    return found or ok("no record of what is gone")


def _words_of(paths):
    return shlex.join(map(str, paths))


def _dashboard(folder):
    """The address that the record of a job names."""
    return (folder / "dashboard").read_text(encoding="utf-8", errors="replace").partition("\n")[0]


def _unheard(settings, urls):
    """Those dashboards at which nobody answers: `make stop` cannot end their jobs, but for those on our own Ray."""
    others = urls - {private_ray.PrivateRay(settings, "rehearsal").dashboard_url}
    return {url for url in others if not ask(f"{url}/api/version").status}


def _lives(job_id):
    """Whether the process that submitted a job still runs: its number stands in the job's id."""
    pid = job_id.split("-")[-2:-1]
    return bool(pid) and pid[0].isdecimal() and Path(f"/proc/{pid[0]}").exists()


def temporary(case):
    """Folders of ended Rays and agents, and Ray's objects in shared memory that no process has open."""
    found = [
        warn(f"{len(paths)} {what}, as {paths[0]}", f"scripts/run.sh doctor --leftovers {kind} | xargs -0r rm -r")
        for kind, (what, look) in KINDS.items()
        if (paths := look())
    ]
    return found or ok("no folder of an ended program")


def folders(pattern):
    """Our folders among the temporary ones that no process uses."""
    mine = [path for path in temporary_folder().glob(pattern) if _is_own(path, stat.S_ISDIR, NEW_S)]
    return unused(filter(_is_ours, mine))


def objects(root=Path("/dev/shm")):
    """Our objects in shared memory that no process uses."""
    return unused(path for path in root.glob("plasma*") if _is_own(path, stat.S_ISREG))


def _is_own(path, is_kind, age_s=0):
    try:
        found = path.lstat()
    except FileNotFoundError:  # removed since it was listed
        return False
    return is_kind(found.st_mode) and found.st_uid == os.getuid() and time.time() - found.st_mtime >= age_s


def _is_ours(path):
    """The name `session-*` is anybody's: an agent's folder holds its input or its log."""
    return not path.match(SESSION_FOLDERS) or any((path / name).exists() for name in ("input.json", "agent.log"))


def unused(paths):
    """Those that no process names in its command line or variables, lives in or has open."""
    paths = sorted(paths)
    used = "\0".join(map(_uses, own_processes.processes())) if paths else ""
    # What is open is told by its real path.
    return [path for path in paths if str(path) not in used and str(path.resolve()) not in used]


def _uses(process):
    """All in which a process may name a path."""
    folder = f"/proc/{process.pid}"
    found = [process.command, own_processes.link(f"{folder}/cwd"), *own_processes.opened(process)]
    for look in (lambda: process.variables().values(), lambda: [Path(f"{folder}/maps").read_text(errors="replace")]):
        with suppress(OSError):  # ended, or somebody else's
            found += look()
    return "\0".join(found)


# What `doctor.py --leftovers KIND` lists: there may be more than a line can name.
KINDS = {
    "rays": ("folders of ended Rays", lambda: folders("gym-ray-*")),
    "sessions": ("folders of ended agents", lambda: folders(SESSION_FOLDERS)),
    "objects": ("objects of ended Rays in /dev/shm", objects),
}


def containers(case):
    """Containers of ours that ended, and those of run folders that are gone."""
    if case.settings.GYM_BACKEND == "local" and not docker_backend.note(case.settings).exists():
        return ok("GYM_BACKEND=local: no engine is asked")
    try:
        client = docker_backend.connect()
        with docker_backend.in_words("listing containers"):
            all_ours = client.containers.list(all=True, filters={"label": docker_backend.RUN_LABEL})
    except Failure as fault:
        return ok(f"not asked: {str(fault).partition(';')[0]}")
    left = [each for each in all_ours if _is_left(each, case.settings)]
    found = [warn(f"container {each.name} ({each.status}) is left over", f"docker rm -f {each.name}") for each in left]
    return found or ok(f"{len(all_ours)} containers of ours, none is left over")


def _is_left(container, settings):
    folder = container.labels[docker_backend.RUN_LABEL]
    # Behind HOST_REPO_DIR the label may name a folder of another machine.
    gone = settings.HOST_REPO_DIR is None and not Path(folder).is_dir()
    return gone or (folder == own_processes.mark(settings) and container.status in ("exited", "dead"))
