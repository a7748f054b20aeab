"""Who listens where on this machine, and whether a port can be bound. Linux only: it reads /proc."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Iterable
from pathlib import Path

from common.failure import Failure
from common.net import is_loopback
from servers.processes import Process, opened, processes


def listening() -> list[tuple[str, int, str]]:
    """All listening TCP sockets: [(address, port, inode)]."""
    sockets = []
    for table, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        if not Path(table).exists():  # a kernel without IPv6
            continue
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                host, port = fields[1].split(":")
                words = [bytes.fromhex(host[start : start + 8])[::-1] for start in range(0, len(host), 8)]
                sockets.append((socket.inet_ntop(family, b"".join(words)), int(port, 16), fields[9]))
    return sockets


def sockets_of(process: Process) -> set[str]:
    """Inodes of the sockets a process holds; empty if they may not be read."""
    return {target[8:-1] for target in opened(process) if target.startswith("socket:[")}


def holder(port: int) -> str:
    """Who listens on a port, as text for an error line."""
    process = listener({inode for _, number, inode in listening() if number == port})
    return str(process) if process else "a process that may not be looked at"


def listener(inodes: set[str]) -> Process | None:
    """The process that holds one of these sockets; None if it may not be looked at."""
    return next((process for process in processes() if inodes & sockets_of(process)), None)


def beyond_loopback(group: Iterable[Process], allowed: Collection[int] = ()) -> list[tuple[str, int]]:
    """Listening sockets of the processes in `group` that other machines could reach: [(address, port)]."""
    inodes = {inode for process in group for inode in sockets_of(process)}
    return [
        (address, port)
        for address, port, inode in listening()
        if inode in inodes and not is_loopback(address) and port not in allowed
    ]


def refuse_ephemeral(port: int, variable: str) -> None:
    """Raise Failure for a port that the kernel may give to any connection."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if low <= port <= high:
        raise Failure(
            f"port {port} (from {variable}) lies in the range {low}..{high} from which the kernel takes "
            f"ports by chance; choose another {variable}"
        )


def check_ports(ports: Iterable[int], variable: str, host: str = "127.0.0.1") -> None:
    """Raise Failure for a port that is taken, with its holder, or that the kernel may give to any connection."""
    for port in ports:
        refuse_ephemeral(port, variable)
        error = why_unbound(host, port)
        if error == errno.EADDRNOTAVAIL:
            raise Failure(f"{host} is no address of this machine; set GYM_BIND_HOST to one of its own")
        if error:
            raise Failure(f"port {port} (from {variable}) is taken by {holder(port)}; end it or set {variable}")


def why_unbound(host: str, port: int) -> int:
    """The errno a server would get that bound this port now; 0 if it can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def connects(port: int) -> bool:
    """Whether something listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
