"""Ports of the graph: refused before a start (field case E5), and nothing open beyond loopback (field case E16)."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from common import settings
from proofs.rig import environment, free_block, own_address, run_script
from servers import ports, processes


def refused(env):
    """The error line of a start that is refused, without anything started."""
    try:
        result = run_script("gym_up.py", env, timeout=60)
    except subprocess.TimeoutExpired:
        run_script("stop.py", env)
        raise
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    errors = [line for line in result.stderr.splitlines() if line]
    assert len(errors) == 1 and errors[0].startswith("error: "), result.stderr
    assert not processes.ours(settings.load(environment=env, dotenv=Path(os.devnull)))
    return errors[0]


def test_e5_a_taken_port_names_its_holder_and_nothing_is_started(tmp_path):
    base = free_block()
    with socket.create_server(("127.0.0.1", base + 6)):
        error = refused(environment(tmp_path / "run", base, GYM_REPLICAS="2"))
        assert f"port {base + 6}" in error and "GYM_BASE_PORT" in error
        assert str(os.getpid()) in error and Path(sys.executable).name in error
        # The holder of the port is left alone.
        socket.create_connection(("127.0.0.1", base + 6)).close()


def test_e5_the_ports_of_a_running_graph_name_it(graph, tmp_path):
    error = refused(environment(tmp_path / "run", graph.settings.GYM_BASE_PORT))
    assert str(graph.settings.GYM_BASE_PORT) in error
    assert graph.health()[0] == 200


def test_e16_only_the_gateway_listens_beyond_loopback(graph):
    ours = processes.ours(graph.settings)
    inodes = set().union(*(ports.sockets_of(process) for process in ours))
    listening = [(address, port) for address, port, inode in ports.listening() if inode in inodes]
    assert len(listening) > 8
    exposed = {port for address, port in listening if not address.startswith(("127.", "::1", "::ffff:127."))}
    assert exposed == ({graph.settings.port("gateway")} if own_address() else set())


def test_a_second_start_keeps_the_graph(graph):
    pids = {server: graph.pid(server) for server in graph.settings.servers()}
    result = graph.up()
    assert "kept" in result.stdout
    assert {server: graph.pid(server) for server in pids} == pids
