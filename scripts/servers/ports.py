"""Who listens where on this machine, and whether a port can be bound. Linux only: it reads /proc."""

import errno
import socket
from pathlib import Path

from common.failure import Failure
from common.net import is_loopback
from servers.processes import opened, processes


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
    return [(a, p) for a, p, inode in listening() if inode in inodes and not is_loopback(a) and p not in allowed]


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


def connects(port):
    """Whether something listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
