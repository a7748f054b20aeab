"""Our processes on this machine: started in sessions of their own, found by a mark, ended for certain.

Every process we start carries MARK=<run folder> (and ROLE) in its environment, which its
children inherit, and leads a session that is on record. What carries the mark, is in such a
session or descends from either is ours, and nothing else is ever signalled: the mark alone would
miss Ray's workers, which overwrite their environment, and descent alone those whose parent died.
Ports are bound-tested before a start, and a holder is named. Linux only: it reads /proc.
"""

import errno
import fcntl
import ipaddress
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from common.terminal import Failure, one_line

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
# Ports of one Ray, as offsets from its block's first port.
RAY_OFFSETS = {
    "node-manager-port": 2,
    "object-manager-port": 3,
    "runtime-env-agent-port": 4,
    "dashboard-agent-listen-port": 5,
    "dashboard-agent-grpc-port": 6,
    "metrics-export-port": 7,
    "ray-client-server-port": 8,
}
RAY_WORKER_PORTS = (20, 59)
RAY_TRIES = 3
# More than trials that run and wait can need; a limit of a billion makes some programs slow.
FILES_WANTED = 65536


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


def listening():
    """All listening TCP sockets: [(address, port, inode)], addresses as text."""
    found = []
    for table, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        if not Path(table).exists():  # a kernel without IPv6
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                host, port = fields[1].split(":")
                words = [bytes.fromhex(host[i : i + 8])[::-1] for i in range(0, len(host), 8)]
                found.append((socket.inet_ntop(family, b"".join(words)), int(port, 16), fields[9]))
    return found


def sockets_of(process):
    """Inodes of the sockets a process holds; empty where they may not be read."""
    return {target[8:-1] for target in opened(process) if target.startswith("socket:[")}


def holder(port):
    """Who listens on a port, as text for an error line."""
    process = listener({inode for _, p, inode in listening() if p == port})
    return str(process) if process else "a process that may not be looked at"


def listener(inodes):
    """The process that holds one of these sockets, or None where it may not be looked at."""
    return next((process for process in processes() if inodes & sockets_of(process)), None)


def beyond_loopback(group, allowed=()):
    """Listening sockets of the processes in `group` that other machines could reach: [(address, port)]."""
    inodes = set().union(*(sockets_of(process) for process in group)) if group else set()
    return [(a, p) for a, p, inode in listening() if inode in inodes and not _is_loopback(a) and p not in allowed]


def _is_loopback(text):
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def refuse_ephemeral(port, variable):
    """Raise Failure for a port that the kernel hands out by chance."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if low <= port <= high:
        raise Failure(
            f"port {port} (from {variable}) lies in the range {low}..{high} from which the kernel takes "
            f"ports by chance; choose another {variable}"
        )


def check_ports(ports, variable, host="127.0.0.1"):
    """Refuse ports that are taken, or that the kernel hands out by chance; names the holder."""
    for port in ports:
        refuse_ephemeral(port, variable)
        error = why_unbound(host, port)
        if error == errno.EADDRNOTAVAIL:
            raise Failure(f"{host} is no address of this machine; set GYM_BIND_HOST to one of its own")
        if error:
            raise Failure(f"port {port} (from {variable}) is taken by {holder(port)}; end it or set {variable}")


def why_unbound(host, port):
    """The number of the error with which a server that bound this port now would end; 0 where it would not."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            return error.errno
    return 0


def addresses(host):
    """The addresses of a host name or address, as text; empty where it has none."""
    try:
        return sorted({str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)})
    except (OSError, UnicodeError):
        return []


def is_here(host):
    """Whether a host is this machine, by an address of its own."""
    for address in addresses(host):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return True
    return False


def tail(path, lines=15):
    """The last lines of a log, indented, for the user of a failed stage."""
    if not path.exists():
        return f"    (no {path})"
    with open(path, "rb") as log:
        log.seek(max(0, path.stat().st_size - 20000))
        text = log.read().decode(errors="replace")
    return "\n".join(f"    {line[:300]}" for line in text.splitlines()[-lines:])


def connects(port):
    """Whether something listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def get(url, timeout):
    """Status and body of a GET that no proxy sees; status 0 with the reason where nobody answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, HTTPException) as error:  # the latter where what answers speaks no HTTP
        return 0, f"{type(error).__name__}: {error}".encode()


# --- Ray -----------------------------------------------------------------------------------


@contextmanager
def turn_to_start_ray():
    """One Ray of this user starts at a time: several at once miss Ray's own limit of 30 s on few cores."""
    path = Path(tempfile.gettempdir()) / f"gym-ray-start-{os.getuid()}.lock"
    with open(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class PrivateRay:
    """A one-node Ray of our own on loopback: role "gym" (NeMo Gym's servers) or "rehearsal" (the job).

    The trainer's entrypoint stops jobs and Serve on the cluster it is given, so the Gym's Ray and
    the trainer's are never one.
    """

    def __init__(self, settings, role):
        self.settings, self.role = settings, role
        self.base = settings.GYM_BASE_PORT + (40 if role == "gym" else 100)
        self.port = settings.GYM_RAY_PORT if role == "gym" else self.base
        self.dashboard_port = self.base + 1
        self.address = f"127.0.0.1:{self.port}"
        self.dashboard_url = f"http://127.0.0.1:{self.dashboard_port}"
        self.log = settings.RUN_DIR / "logs" / f"ray-{role}.log"
        self.process = None

    def ports(self):
        low, high = RAY_WORKER_PORTS
        named = [self.base + offset for offset in RAY_OFFSETS.values()]
        return [self.port, self.dashboard_port, *named, *range(self.base + low, self.base + high + 1)]

    def command(self):
        low, high = RAY_WORKER_PORTS
        options = {"port": self.port, "dashboard-port": self.dashboard_port, "dashboard-host": "127.0.0.1"}
        options |= {name: self.base + offset for name, offset in RAY_OFFSETS.items()}
        options |= {"min-worker-port": self.base + low, "max-worker-port": self.base + high}
        options |= {"node-ip-address": "127.0.0.1", "num-gpus": 0, "object-store-memory": 100_000_000}
        options |= {"include-dashboard": str(self.role == "rehearsal").lower(), "temp-dir": self._temp_dir()}
        ray = str(Path(sys.executable).with_name("ray"))
        return [ray, "start", "--head", "--block", "--disable-usage-stats", *(f"--{k}={v}" for k, v in options.items())]

    def _temp_dir(self):
        # Ray puts sockets below it, whose paths may have 107 bytes: a clone's path can be longer.
        note = self._temp_note()
        if not note.exists():
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(tempfile.mkdtemp(prefix="gym-ray-"))
        return note.read_text()

    def _temp_note(self):
        return self.settings.RUN_DIR / f"ray-{self.role}.tmpdir"

    def spawn(self):
        """Start Ray without waiting for it."""
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self.process = spawn(self.command(), self.log, environment(self.settings, self.role), self.settings.RUN_DIR)

    def answers(self):
        """Whether its node is up; for the rehearsal, whether it takes jobs too."""
        needed = ["node-manager-port"] + (["dashboard-agent-listen-port"] if self.role == "rehearsal" else [])
        if not all(map(connects, [self.port, *(self.base + RAY_OFFSETS[name] for name in needed)])):
            return False
        return self.role == "gym" or b'"ALIVE"' in get(f"{self.dashboard_url}/nodes?view=summary", 5)[1]

    def start(self, detail=lambda text: None):
        """Start it, or find it running, and wait until it answers. Raises Failure with the log's end."""
        running = ours(self.settings, self.role)
        if running and self.answers():
            return
        end(running)
        self.clear()
        check_ports(self.ports(), "GYM_RAY_PORT" if self.role == "gym" else "GYM_BASE_PORT")
        self.launch(detail)

    def launch(self, detail=lambda text: None):
        """Spawn it and wait; again when it gave up, as it does where a busy machine starts its agent late."""
        began = time.monotonic()
        with turn_to_start_ray():
            for tries_left in reversed(range(RAY_TRIES)):
                self.spawn()
                try:
                    return self.wait(detail)
                except Failure:
                    if not tries_left or time.monotonic() - began > self.settings.GYM_START_TIMEOUT_S:
                        raise

    def _says_started(self):
        """Whether the Ray spawned here said so; its ports listen before, and also when it gives up later."""
        return b"Ray runtime started" in self.log.read_bytes()[self._log_start :]

    def wait(self, detail=lambda text: None):
        """Wait until it answers, then check that it listens on loopback alone."""
        deadline = time.monotonic() + self.settings.GYM_START_TIMEOUT_S
        while not (self._says_started() and self.answers()):
            if (self.process and self.process.poll() is not None) or time.monotonic() > deadline:
                self._end_spawned()
                raise Failure(f"the {self.role} Ray did not start; the end of {self.log}:\n{tail(self.log)}")
            detail(f"waiting for Ray on {self.address}")
            time.sleep(0.2)
        everyone, gateway = ours(self.settings, self.role), self.settings.port("gateway")
        if exposed := beyond_loopback(everyone, allowed={gateway}):
            self._end_spawned()
            raise Failure(f"the {self.role} Ray listens on {exposed[0][0]}:{exposed[0][1]}, not on loopback alone")

    def _spawned(self):
        """What belongs to the Ray spawned here; the graph's servers have its role too."""
        return [p for p in ours(self.settings, self.role) if p.session == self.process.pid]

    def _end_spawned(self):
        end(self._spawned())

    def clear(self):
        """Remove the temporary folder of an ended Ray."""
        if self._temp_note().exists():
            shutil.rmtree(self._temp_note().read_text(), ignore_errors=True)
            self._temp_note().unlink()

    def stop(self):
        """End it and what runs on it. Returns the number of processes ended."""
        running = ours(self.settings, self.role)
        end(running)
        self.clear()
        forget_sessions(self.settings)
        return len(running)
