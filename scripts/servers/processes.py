"""Our processes on this machine: started in sessions of their own, found by a mark, ended for certain.

Every process we start carries MARK=<run folder> (and ROLE) in its environment, which its
children inherit, and leads a session that is on record. What carries the mark, is in such a
session or descends from either is ours, and nothing else is ever signalled: the mark alone would
miss Ray's workers, which overwrite their environment, and descent alone those whose parent died.
Ports are bound-tested before a start, and a holder is named. Linux only: it reads /proc.
"""

import os
import resource
import signal
import subprocess
import time
from pathlib import Path

from common.failure import Failure, one_line

MARK = "WORKPLACE_RUN"
ROLE = "WORKPLACE_ROLE"
SESSIONS = "sessions"
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# The last, common in images and CI, would have every process compile all it imports at each start: a
# minute of two cores, in which Ray's node gives up waiting for its own agent.
DROPPED_VARIABLES = ("RAY_ADDRESS", "MAKEFLAGS", "PYTHONDONTWRITEBYTECODE")
# Without the first, Ray takes 127.0.0.1 for the machine's outward address, head and drivers alike.
RAY_VARIABLES = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
# `ray start --block` takes most of a minute to end by itself, and has nothing to save.
TERM_GRACE_S = 5
# More than trials that run and wait can need; a limit of a billion makes some programs slow.
FILES_WANTED = 65536
SUPERVISOR = "servers.supervise"


def environment(settings, role):
    """Environment for a process of ours: marked, and without proxies, which loopback must not go through."""
    kept = {k: v for k, v in os.environ.items() if k.lower() not in PROXY_VARIABLES and k not in DROPPED_VARIABLES}
    return kept | RAY_VARIABLES | {MARK: mark(settings), ROLE: role}


def mark(settings):
    return str(settings.RUN_DIR.resolve())


def spawn(command, log_path, environment, cwd):
    """Start `command` in a session of its own, stdout and stderr appended to `log_path`. Returns the Popen."""
    try:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with open(log_path, "ab") as log, open(Path(environment[MARK]) / SESSIONS, "a") as record:
            started = subprocess.Popen(
                command, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
            record.write(f"{boot_id()} {started.pid} {Process(started.pid).start} {environment[ROLE]}\n")
    except OSError as error:
        raise Failure(f"RUN_DIR: {error.filename or log_path.parent}: {error.strerror}") from None
    return started


def boot_id():
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def recorded_sessions(settings, role, everyone):
    """{session id: start of its leader} of the sessions we started (for one role) since this boot."""
    path = settings.RUN_DIR / SESSIONS
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    known = [line for line in lines if len(line) == 4 and line[0] == boot_id() and role in (None, line[3])]
    sessions = {int(pid): int(start) for _, pid, start, _ in known if pid.isdecimal() and start.isdecimal()}
    starts = {process.pid: process.start for process in everyone}
    # A leader that is gone leaves its number to its session; another leader has another start.
    return {pid: start for pid, start in sessions.items() if starts.get(pid, start) == start}


def forget_sessions(settings):
    """Drop the record once nothing of ours is left: its numbers are anybody's from then on."""
    if not ours(settings):
        (settings.RUN_DIR / SESSIONS).unlink(missing_ok=True)


class Process:
    """One process as /proc shows it: pid, parent, session, start (clock ticks since boot), command.

    To be shown it is named by its program: a command line may hold a secret.
    """

    def __init__(self, pid):
        before, _, after = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
        fields = after.split()
        self.program = one_line(before.partition("(")[2])
        self.pid, self.state, self.parent, self.start = pid, fields[0], int(fields[1]), int(fields[19])
        self.session = int(fields[3])
        self.command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()

    def __str__(self):
        return f"process {self.pid} ({self.program})"

    def variables(self):
        pairs = Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0")
        return dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs if b"=" in pair)

    def alive(self):
        """Whether this very process (not another with its pid) still runs."""
        try:
            now = Process(self.pid)
        except OSError:
            return False
        return now.start == self.start and now.state != "Z"


def opened(process):
    """What a process has open, as /proc names it; empty where that may not be read."""
    folder = f"/proc/{process.pid}/fd"
    try:
        return [target for name in os.listdir(folder) if (target := link(f"{folder}/{name}"))]
    except OSError:
        return []


def link(path):
    """Where a link leads; empty where it may not be read, or is gone since it was listed."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def processes():
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                found.append(Process(int(name)))
            except OSError:  # ended between the listing and the look
                continue
    return found


def ours(settings, role=None):
    """Our live processes (of one role), whatever they descend to included."""
    everyone = [p for p in processes() if p.state != "Z" and p.pid != os.getpid()]
    sessions = recorded_sessions(settings, role, everyone)
    in_session = {p.pid for p in everyone if p.start >= sessions.get(p.session, p.start + 1)}
    marked = in_session | {p.pid for p in everyone if _is_marked(p, mark(settings), role)}
    found = with_descendants(marked, everyone)
    return [p for p in everyone if p.pid in found]


def is_supervisor(process):
    """Whether a process is the graph's supervisor, in whichever way it was started."""
    return SUPERVISOR in process.command


def with_descendants(pids, everyone):
    """Ids of processes, and of all that descend from them."""
    children, found, queue = {}, set(pids), list(pids)
    for process in everyone:
        children.setdefault(process.parent, []).append(process.pid)
    while queue:
        new = set(children.get(queue.pop(), [])) - found
        found |= new
        queue += new
    return found


def _is_marked(process, value, role):
    try:
        variables = process.variables()
    except OSError:  # ended, or somebody else's
        return False
    return variables.get(MARK) == value and role in (None, variables.get(ROLE))


def end(targets, grace_s=TERM_GRACE_S):
    """SIGTERM, then SIGKILL what is left after `grace_s`. Raises Failure if one survives that."""
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10)):
        targets = [p for p in targets if p.alive()]
        for process in targets:
            try:
                os.kill(process.pid, number)
            except ProcessLookupError:
                continue
        deadline = time.monotonic() + patience
        while any(p.alive() for p in targets) and time.monotonic() < deadline:
            time.sleep(0.05)
    if stuck := [p for p in targets if p.alive()]:
        raise Failure(f"{stuck[0]} does not end")


def open_files_to_be_had():
    """Files a process of ours may have open once it has raised its limit as far as it may and needs: (soft, hard)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited:
        return soft, hard
    return max(soft, FILES_WANTED if hard == unlimited else min(hard, FILES_WANTED)), hard


def allow_many_files():
    """Raise this process's limit of open files: a trial holds several connections, and 1024 is a common limit."""
    resource.setrlimit(resource.RLIMIT_NOFILE, open_files_to_be_had())


# --- ports ---------------------------------------------------------------------------------


# --- Ray -----------------------------------------------------------------------------------


def run_folder(process):
    """The run folder a process of this repository, or the one it descends from, belongs to; or None."""
    everyone = {each.pid: each for each in processes()}
    while process:
        if folder := own_folder(process):
            return folder
        process = everyone.get(process.parent)
    return None


def own_folder(process):
    """The run folder that a process carries as its mark, or None."""
    try:
        return process.variables().get(MARK)
    except OSError:
        return None
