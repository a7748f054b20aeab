"""What earlier runs of this repository left behind: processes, records, temporary folders, containers.

Guarantees: only what carries our mark and belongs to no live process is named. A cure removes what is named and nothing
else, whatever the names hold.
"""

from __future__ import annotations

import os
import shlex
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from checks.probe import Case, Finding, ok, temporary_folder, warn
from common.failure import Failure
from common.net import ask
from common.settings import Settings
from servers import container, private_ray
from servers import processes as own_processes

# A folder is made before the process that uses it.
NEW_S = 60
SESSION_FOLDERS = "session-*"


def processes(case: Case) -> Finding | list[Finding]:
    """Processes whose run folder is gone, and servers of ours whose supervisor is gone."""
    orphans: dict[str, list[int]] = {}
    for process in own_processes.processes():
        folder = own_processes.own_folder(process) if process.state != "Z" else None
        if folder and not sees(process.pid, folder):
            orphans.setdefault(folder, []).append(process.pid)
    findings = [
        warn(f"{len(pids)} processes of {folder}, which is gone", f"kill {' '.join(map(str, pids))}")
        for folder, pids in orphans.items()
    ]
    servers = own_processes.ours(case.settings, "gym")
    if servers and not any(map(own_processes.is_supervisor, servers)):
        findings.append(warn(f"{len(servers)} processes of the graph run without their supervisor", "make stop"))
    return findings or ok(f"{len(case.ours)} processes of this clone run, none is left over")


def sees(pid: int, folder: str, proc: Path = Path("/proc")) -> bool:
    """Whether the folder exists for the process, which has its own file tree in a container."""
    try:
        return (proc / str(pid) / "root" / folder.lstrip("/")).is_dir()
    except PermissionError:
        return True


def records(case: Case) -> Finding | list[Finding]:
    """Jobs and sessions on record whose processes are gone, and probes that were not removed."""
    s, findings = case.settings, []
    jobs = [path.parent for path in sorted((s.RUN_DIR / "jobs").glob("*/dashboard")) if not _lives(path.parent.name)]
    # On our own Ray `make stop` can end a job, even where its dashboard does not answer.
    others = {_dashboard(folder) for folder in jobs} - {private_ray.PrivateRay(s, "rehearsal").dashboard_url}
    unheard = {url for url in others if not ask(f"{url}/api/version").status}
    lost = [folder for folder in jobs if _dashboard(folder) in unheard]
    if open_still := [folder for folder in jobs if folder not in lost]:
        findings.append(warn(f"{len(open_still)} jobs whose end nobody saw, {open_still[-1].name} last", "make stop"))
    if lost:
        what = f"{len(lost)} jobs on clusters that do not answer, {lost[-1].name} last"
        findings.append(warn(what, f"where the cluster is gone for good: rm -r {shlex.join(map(str, lost))}"))
    sessions = s.RUN_DIR / own_processes.SESSIONS
    if sessions.exists() and not case.ours:
        findings.append(warn(f"{sessions} is the record of processes that are gone", "make stop"))
    probes = [path for folder in (s.RUN_DIR, s.EXP_DIR) if folder.is_dir() for path in folder.glob(".probe*")]
    if probes:
        what = f"{len(probes)} probes of broken-off checks, as {probes[0]}"
        findings.append(warn(what, f"rm {shlex.join(map(str, probes))}"))
    return findings or ok("no record of what is gone")


def _dashboard(folder: Path) -> str:
    """The address in the record of a job."""
    return (folder / "dashboard").read_text(encoding="utf-8", errors="replace").partition("\n")[0]


def _lives(job_id: str) -> bool:
    """Whether the process that submitted a job still runs; the job's id holds its number."""
    pid = job_id.split("-")[-2:-1]
    return bool(pid) and pid[0].isdecimal() and Path(f"/proc/{pid[0]}").exists()


def temporary(case: Case) -> Finding | list[Finding]:
    """Folders of ended Rays and agents, and Ray's objects in shared memory that no process has open."""
    findings = [
        warn(f"{len(paths)} {what}, as {paths[0]}", f"scripts/run.sh doctor --leftovers {kind} | xargs -0r rm -r")
        for kind, (what, look) in KINDS.items()
        if (paths := look())
    ]
    return findings or ok("no folder of an ended program")


def folders(pattern: str) -> list[Path]:
    """Our temporary folders that no process uses."""
    paths = [path for path in temporary_folder().glob(pattern) if _is_own(path, stat.S_ISDIR, NEW_S)]
    if pattern == SESSION_FOLDERS:  # others may use the name; an agent's folder holds its input or its log
        paths = [path for path in paths if (path / "input.json").exists() or (path / "agent.log").exists()]
    return unused(paths)


def objects(root: Path = Path("/dev/shm")) -> list[Path]:
    """Our objects in shared memory that no process uses."""
    return unused(path for path in root.glob("plasma*") if _is_own(path, stat.S_ISREG))


def _is_own(path: Path, is_kind: Callable[[int], bool], age_s: float = 0) -> bool:
    try:
        status = path.lstat()
    except FileNotFoundError:  # removed since it was listed
        return False
    return is_kind(status.st_mode) and status.st_uid == os.getuid() and time.time() - status.st_mtime >= age_s


def unused(paths: Iterable[Path]) -> list[Path]:
    """The paths that no process names in its command line or variables, has as its folder, or has open."""
    paths = sorted(paths)
    used = "\0".join(map(_uses, own_processes.processes())) if paths else ""
    # An open file shows by its real path.
    return [path for path in paths if str(path) not in used and str(path.resolve()) not in used]


def _uses(process: own_processes.Process) -> str:
    """All texts in which a process may name a path."""
    folder = f"/proc/{process.pid}"
    texts = [process.command, own_processes.link(f"{folder}/cwd"), *own_processes.opened(process)]
    with suppress(OSError):  # ended, or somebody else's
        texts += process.variables().values()
    with suppress(OSError):
        texts.append(Path(f"{folder}/maps").read_text(errors="replace"))
    return "\0".join(texts)


# What `doctor.py --leftovers KIND` lists: there may be more than a line can name.
KINDS = {
    "rays": ("folders of ended Rays", lambda: folders("gym-ray-*")),
    "sessions": ("folders of ended agents", lambda: folders(SESSION_FOLDERS)),
    "objects": ("objects of ended Rays in /dev/shm", objects),
}


def containers(case: Case) -> Finding | list[Finding]:
    """Containers of ours that ended, and those whose run folder is gone."""
    if case.settings.GYM_BACKEND == "local" and not container.note(case.settings).exists():
        return ok("GYM_BACKEND=local: no engine is asked")
    try:
        client = container.connect()
        with container.in_words("listing containers"):
            ours = client.containers.list(all=True, filters={"label": container.RUN_LABEL})
    except Failure as fault:
        return ok(f"not asked: {str(fault).partition(';')[0]}")
    left = [box for box in ours if _is_left(box, case.settings)]
    findings = [warn(f"container {box.name} ({box.status}) is left over", f"docker rm -f {box.name}") for box in left]
    return findings or ok(f"{len(ours)} containers of ours, none is left over")


def _is_left(box: Any, settings: Settings) -> bool:
    folder = box.labels[container.RUN_LABEL]
    # With HOST_REPO_DIR the label may name a folder of another machine.
    gone = settings.HOST_REPO_DIR is None and not Path(folder).is_dir()
    return gone or (folder == own_processes.mark(settings) and box.status in ("exited", "dead"))
