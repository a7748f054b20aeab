"""Ports of this machine: taken, handed out by chance, or open to others; and who holds them."""

import os
import socket
from pathlib import Path

import pytest

from common.failure import Failure
from servers import ports, processes

EPHEMERAL = tuple(map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))


@pytest.fixture
def port():
    """A port outside the kernel's range that nobody listens on."""
    taken = {number for _, number, _ in ports.listening()}
    return next(number for number in range(min(EPHEMERAL[0], 27_999) - 1, 1024, -1) if number not in taken)


def listen(number):
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", number))
    listener.listen()
    return listener


def test_free_ports_pass_and_are_free_afterwards(port):
    for _ in range(2):
        ports.check_ports([port], "GYM_BASE_PORT")
    listen(port).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_is_refused_with_its_holder(start, port, host):
    code = f"""
        import socket, time
        s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(({host!r}, {port})); s.listen()
        print("up", flush=True); time.sleep(120)
    """
    process, _ = start(code)
    with pytest.raises(Failure) as refused:
        ports.check_ports([port], "GYM_BASE_PORT")
    message = str(refused.value)
    assert f"port {port} (from GYM_BASE_PORT) is taken by process {process.pid} (" in message
    assert message.endswith("or set GYM_BASE_PORT") and ports.holder(port).startswith(f"process {process.pid}")


def test_a_file_that_is_closed_meanwhile_hides_no_socket(port, monkeypatch):
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: ["99999", *real(folder)])
    with listen(port) as server:
        assert str(os.fstat(server.fileno()).st_ino) in ports.sockets_of(processes.Process(os.getpid()))


@pytest.mark.parametrize("number", EPHEMERAL)
def test_a_port_that_the_kernel_hands_out_is_refused(number):
    low, high = EPHEMERAL
    with pytest.raises(Failure, match=rf"port {number} \(from GYM_RAY_PORT\) lies in the range {low}..{high}"):
        ports.check_ports([number], "GYM_RAY_PORT")


def test_an_address_of_another_machine_is_refused(port):
    with pytest.raises(Failure, match="192.0.2.1 is no address of this machine; set GYM_BIND_HOST"):
        ports.check_ports([port], "GYM_BASE_PORT", "192.0.2.1")


def test_a_port_that_was_just_left_is_free(port):
    """Connections of an ended server linger for a minute; they take nobody's port."""
    with listen(port) as server, socket.create_connection(("127.0.0.1", port)):
        server.accept()[0].close()
    ports.check_ports([port], "GYM_BASE_PORT")


def test_what_listens_beyond_loopback_is_told_from_what_does_not(start):
    hosts = ["127.0.0.1", "0.0.0.0"] + ["::1", "::"] * (ports.why_unbound("::1", 0) == 0)
    code = f"""
        import socket, time
        kept = []
        for host in {hosts!r}:
            s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            if ":" in host:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.bind((host, 0)); s.listen()
            kept.append(s); print(s.getsockname()[1])
        print("up", flush=True); time.sleep(120)
    """
    process, words = start(code)
    bound = dict(zip(hosts, map(int, words), strict=False))
    group = [processes.Process(process.pid)]
    assert set(ports.beyond_loopback(group)) == {(host, bound[host]) for host in hosts if host in ("0.0.0.0", "::")}
    assert ports.beyond_loopback(group, allowed=set(bound.values())) == ports.beyond_loopback([]) == []
    assert {(address, number) for address, number, _ in ports.listening()} >= set(bound.items())


@pytest.mark.parametrize(
    ("address", "reachable"),
    [
        ("::1", False), ("127.0.0.1", False), ("127.8.0.1", False), ("::ffff:127.0.0.1", False), ("::", True),
        ("::1234", True), ("::1:2:3", True), ("::ffff:10.0.0.1", True), ("1270::1", True), ("10.0.0.1", True),
    ],
)  # fmt: skip
def test_an_address_that_only_begins_like_loopback_is_not(monkeypatch, address, reachable):
    monkeypatch.setattr(ports, "listening", lambda: [(address, 80, "7")])
    monkeypatch.setattr(ports, "sockets_of", lambda process: {"7"})
    assert ports.beyond_loopback([None]) == ([(address, 80)] if reachable else [])
