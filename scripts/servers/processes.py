"""Our processes on this machine: started in sessions of their own, found by a mark, ended for certain.

Guarantees:
- Every process we start has MARK=<run folder> and ROLE in its environment, which its children inherit, and leads a
  session that is on record.
- A process is ours if it carries the mark, is in such a session, or descends from either. The mark alone would miss
  Ray's workers, which overwrite their environment; descent alone would miss those whose parent died.
- Nothing else is ever signalled.

Linux only: it reads /proc.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from common.failure import Failure, one_line
from common.settings import Settings

MARK = "WORKPLACE_RUN"
ROLE = "WORKPLACE_ROLE"
SESSIONS = "sessions"
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# With PYTHONDONTWRITEBYTECODE, common in images and CI, every process would compile all its imports at each start.
# That takes a minute of two cores, and Ray's node does not wait so long for its own agent.
DROPPED_VARIABLES = ("RAY_ADDRESS", "MAKEFLAGS", "PYTHONDONTWRITEBYTECODE")
# Without the first, Ray takes 127.0.0.1 for the machine's outward address, head and drivers alike.
RAY_VARIABLES = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
# `ray start --block` would take most of a minute to end by itself, and has nothing to save.
TERM_GRACE_S = 5
# More than running and waiting trials can need; a limit of a billion makes some programs slow.
FILES_WANTED = 65536
SUPERVISOR = "servers.supervise"


def environment(settings: Settings, role: str) -> dict[str, str]:
    """Environment for a process of ours: marked, and without proxies, since all its calls go to loopback."""
    dropped = {name for name in os.environ if name.lower() in PROXY_VARIABLES or name in DROPPED_VARIABLES}
    kept = {name: text for name, text in os.environ.items() if name not in dropped}
    return kept | RAY_VARIABLES | {MARK: mark(settings), ROLE: role}


def mark(settings: Settings) -> str:
    return str(settings.RUN_DIR.resolve())


def spawn(command: Sequence[str], log_path: Path, environment: Mapping[str, str], cwd: Path) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, stdout and stderr appended to `log_path`. Returns the Popen."""
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(log_path, "ab") as log, open(Path(environment[MARK]) / SESSIONS, "a") as record:
            process = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            record.write(f"{boot_id()} {process.pid} {Process(process.pid).start} {environment[ROLE]}\n")
    except OSError as error:
        raise Failure(f"RUN_DIR: {error.filename or log_path.parent}: {error.strerror}") from None
    return process


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _recorded_sessions(settings: Settings, role: str | None, everyone: list[Process]) -> dict[int, int]:
    """{session id: start of its leader} of the sessions we started (for one role) since this boot."""
    path = settings.RUN_DIR / SESSIONS
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    known = [line for line in lines if len(line) == 4 and line[0] == boot_id() and role in (None, line[3])]
    sessions = {int(pid): int(start) for _, pid, start, _ in known if pid.isdecimal() and start.isdecimal()}
    starts = {process.pid: process.start for process in everyone}
    # A session keeps its number when its leader is gone; a later leader with that number has another start.
    return {pid: start for pid, start in sessions.items() if starts.get(pid, start) == start}


def forget_sessions(settings: Settings) -> None:
    """Drop the record once nothing of ours is left: its numbers may go to anybody from then on."""
    if not ours(settings):
        (settings.RUN_DIR / SESSIONS).unlink(missing_ok=True)


class Process:
    """One process as /proc shows it: pid, parent, session, start (clock ticks since boot), command.

    Messages show its program alone: a command line may hold a secret.
    """

    def __init__(self, pid: int) -> None:
        before, _, after = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        fields = after.split()
        self.program = one_line(before.partition("(")[2])
        self.pid, self.state, self.parent, self.start = pid, fields[0], int(fields[1]), int(fields[19])
        self.session = int(fields[3])
        self.command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()

    def __str__(self) -> str:
        return f"process {self.pid} ({self.program})"

    def variables(self) -> dict[str, str]:
        """Its environment. Raises OSError if it has ended or is somebody else's."""
        pairs = Path(f"/proc/{self.pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return {name: text for name, separator, text in (pair.partition("=") for pair in pairs) if separator}

    def alive(self) -> bool:
        """Whether this very process (not another with its pid) still runs."""
        try:
            now = Process(self.pid)
        except OSError:
            return False
        return now.start == self.start and now.state != "Z"


def opened(process: Process) -> list[str]:
    """What a process has open, as /proc names it; empty if that may not be read."""
    folder = f"/proc/{process.pid}/fd"
    try:
        return [target for name in os.listdir(folder) if (target := link(f"{folder}/{name}"))]
    except OSError:
        return []


def link(path: str) -> str:
    """Where a link leads; empty if it may not be read, or is gone since it was listed."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def processes() -> list[Process]:
    """All processes of this machine."""
    running = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # ended since it was listed
            running.append(Process(int(name)))
    return running


def ours(settings: Settings, role: str | None = None) -> list[Process]:
    """Our live processes (of one role), all their descendants included."""
    everyone = [process for process in processes() if process.state != "Z" and process.pid != os.getpid()]
    sessions, value = _recorded_sessions(settings, role, everyone), mark(settings)
    roots = {
        process.pid
        for process in everyone
        # A member is never older than the recorded leader.
        if process.start >= sessions.get(process.session, process.start + 1) or _is_marked(process, value, role)
    }
    pids = with_descendants(roots, everyone)
    return [process for process in everyone if process.pid in pids]


def is_supervisor(process: Process) -> bool:
    """Whether a process is the graph's supervisor, however it was started."""
    return SUPERVISOR in process.command


def with_descendants(pids: Iterable[int], everyone: Iterable[Process]) -> set[int]:
    """Ids of processes, and of all that descend from them."""
    children: dict[int, list[int]] = {}
    for process in everyone:
        children.setdefault(process.parent, []).append(process.pid)
    family, queue = set(pids), list(pids)
    while queue:
        new = set(children.get(queue.pop(), [])) - family
        family |= new
        queue += new
    return family


def _is_marked(process: Process, value: str, role: str | None) -> bool:
    try:
        variables = process.variables()
    except OSError:
        return False
    return variables.get(MARK) == value and role in (None, variables.get(ROLE))


def end(targets: Iterable[Process], grace_s: float = TERM_GRACE_S) -> None:
    """SIGTERM, then SIGKILL what is left after `grace_s`. Raises Failure if a process survives that."""
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10)):
        targets = [process for process in targets if process.alive()]
        for process in targets:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        deadline = time.monotonic() + patience
        while any(process.alive() for process in targets) and time.monotonic() < deadline:
            time.sleep(0.05)
    if stuck := [process for process in targets if process.alive()]:
        raise Failure(f"{stuck[0]} does not end")


def open_files_to_be_had() -> tuple[int, int]:
    """(soft, hard) limit of open files once a process of ours has raised it as far as it may and needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited:
        return soft, hard
    return max(soft, FILES_WANTED if hard == unlimited else min(hard, FILES_WANTED)), hard


def allow_many_files() -> None:
    """Raise this process's limit of open files: a trial holds several connections, and the usual limit is 1024."""
    resource.setrlimit(resource.RLIMIT_NOFILE, open_files_to_be_had())


def run_folder(process: Process | None) -> str | None:
    """The run folder a process of this repository, or one it descends from, belongs to; None for others."""
    everyone = {other.pid: other for other in processes()}
    while process:
        if folder := own_folder(process):
            return folder
        process = everyone.get(process.parent)
    return None


def own_folder(process: Process) -> str | None:
    """The run folder that a process carries as its mark, or None."""
    try:
        return process.variables().get(MARK)
    except OSError:
        return None
