"""The doctor on this machine: each check says ok, and says what is wrong where something really is."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from checks import machine
from common import net
from common.failure import Failure
from common.settings import ROOT
from servers import container, graph, ports, processes
from support.doctor_case import case_of, found, free_base, is_ok

TOOLS = ("bash", "dirname", "sed", "awk", "df", "cat", "sha256sum", "readlink", "tail", "pwd", "env", "tr")


def tool_folder(folder, names):
    """A PATH with nothing but these tools."""
    folder.mkdir()
    for name in filter(shutil.which, names):
        (folder / name).symlink_to(shutil.which(name))
    return folder


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """What a set-up reads of the clone, without what was made in it."""
    clone = tmp_path / "clone"
    for name in ("scripts", "patches", "tests/requirements.txt"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, clone / name)
    monkeypatch.setattr(machine, "ROOT", clone)
    return clone


# --- Python and tools ----------------------------------------------------------------------


def test_a_clone_that_is_set_up_is_whole(tmp_path):
    assert "packages as locked, NeMo Gym patched" in found(machine.python, case_of(tmp_path), "ok").what


def test_a_bare_clone_names_the_python_it_would_take(tmp_path, bare):
    assert "set-up not made yet, " in found(machine.python, case_of(tmp_path), "ok").what
    assert not (bare / ".venv").exists() and not (bare / ".venv.lock").exists()


def test_a_machine_without_a_fitting_python_says_how_to_get_one(tmp_path, bare, monkeypatch):
    monkeypatch.setenv("PATH", str(tool_folder(tmp_path / "bin", TOOLS)))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    finding = found(machine.python, case_of(tmp_path), "fail")
    assert "no complete Python 3.12 or 3.13" in finding.what and "pyenv install" in finding.cure


def test_an_edited_nemo_gym_is_named(tmp_path, monkeypatch):
    tree = tmp_path / "site"
    for name in machine.tree.read_sums():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("edited")
    monkeypatch.setattr(machine.tree, "installed_tree", lambda: tree)
    finding = found(machine.python, case_of(tmp_path), "fail")
    assert "neither as released nor as patched" in finding.what and "make setup" in finding.cure


def test_missing_tools_are_named(tmp_path, monkeypatch):
    assert is_ok(machine.tools, case_of(tmp_path))
    monkeypatch.setenv("PATH", str(tool_folder(tmp_path / "bin", ["bash", "git"])))
    finding = found(machine.tools, case_of(tmp_path), "fail")
    assert finding.what == "not on PATH: make" and finding.cure == "apt-get install make"


# --- room ----------------------------------------------------------------------------------


def test_disks_with_room_are_ok_and_their_folders_not_made(tmp_path):
    assert machine.room("RUN_DIR", tmp_path / "a" / "b", 1, 1).verdict == "ok"
    assert {finding.verdict for finding in found(machine.disk, case_of(tmp_path))} <= {"ok", "warn"}
    assert not list(tmp_path.iterdir())


def test_a_full_or_unwritable_disk_names_the_variable(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for name, folder, there in (("RUN_DIR", file / "run", file), ("DATA_ROOT", "/proc/x", "/proc")):
        finding = found(machine.disk, case_of(tmp_path, **{name: folder}), "fail")
        assert finding.what == f"{there} cannot be written to" and name in finding.cure
    little, none = machine.room("EXP_DIR", tmp_path, 1, 1 << 40), machine.room("EXP_DIR", tmp_path, 1 << 40)
    assert little.verdict == "warn" and "EXP_DIR" in little.cure
    assert none.verdict == "fail" and "needed" in none.what


def test_a_tmpdir_that_is_not_there_is_named_and_made_by_its_cure(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/a b")
    finding = found(machine.disk, case_of(tmp_path), "warn")
    assert "is no folder" in finding.what
    subprocess.run(finding.cure, shell=True, check=True)
    assert is_ok(machine.disk, case_of(tmp_path))


def test_memory(tmp_path):
    for available, verdict in ((20_000, "ok"), (2000, "warn"), (900, "fail")):
        finding = machine.memory_finding(available)
        assert finding.verdict == verdict and f"{available / 1000:.1f} GB" in finding.what
    assert 0 < machine.available_mb() < 1 << 40
    assert "available" in found(machine.memory, case_of(tmp_path))[0].what


def test_a_containers_limit_counts_before_the_machines_memory(tmp_path):
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable: 8192000 kB\n")
    assert machine.available_mb(tmp_path) == 8000
    for limit, current, available in (("max", 1, 8000), (2 << 30, 1 << 30, 1024)):
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{current}\n")
        assert machine.available_mb(tmp_path) == available


ALLOWED = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from checks.machine import open_files
from checks.probe import Case
from common import settings
from servers import processes
print(json.dumps(open_files(Case(settings.load(environment={"GATEWAY_QUEUE_LIMIT": sys.argv[3]})))))
resource.setrlimit(resource.RLIMIT_NOFILE, processes.open_files_to_be_had())
"""


@pytest.mark.parametrize(
    ("soft", "hard", "queue", "verdict", "said"),
    [
        (100, 2000, 1024, "ok", "2000 open files"),
        (400, 400, 50, "ok", "400 open files"),
        (400, 400, 1024, "warn", ": too few for 1312 with GATEWAY_QUEUE_LIMIT"),
        (200, 200, 50, "fail", ", 288 needed"),
    ],
)
def test_open_files(soft, hard, queue, verdict, said):
    command = [sys.executable, "-c", ALLOWED, *map(str, (soft, hard, queue))]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    given, what, cure = json.loads(done.stdout)
    assert given == verdict and said in what
    assert verdict == "ok" or f"the hard limit is {hard}" in what
    assert subprocess.run(["bash", "-nc", cure], stderr=subprocess.DEVNULL).returncode == 0 and "(" not in cure


@pytest.mark.parametrize(
    ("folder", "verdict", "cure"), [("", "ok", ""), ("shm", "warn", "mount"), ("/proc", "warn", "--shm-size")]
)
def test_shared_memory(tmp_path, folder, verdict, cure):
    finding = machine.shared_memory(case_of(tmp_path), tmp_path / folder)
    assert finding.verdict == verdict and cure in finding.cure


# --- ports ---------------------------------------------------------------------------------


@pytest.fixture
def base():
    return free_base()


@pytest.fixture
def listen(start):
    """Start a process that listens on a port until the end of the test."""
    return lambda port, host="127.0.0.1", **environment: start(
        f"s = socket.create_server(({host!r}, {port}), family=socket.AF_INET)", **environment
    )


def ours(tmp_path):
    """The variables of a server of this clone."""
    return {processes.MARK: str(tmp_path / "run_dir"), processes.ROLE: "gym"}


def at(tmp_path, base, **texts):
    return case_of(tmp_path, GYM_BASE_PORT=base, **{"GYM_RAY_PORT": base + 200, **texts})


def test_free_ports_are_ok_and_nothing_is_bound(tmp_path, base):
    assert is_ok(machine.ports, at(tmp_path, base))
    with socket.create_server(("127.0.0.1", base)):
        pass


@pytest.mark.parametrize(
    ("host", "offset", "variable"),
    [
        *(("127.0.0.1", offset, "GYM_BASE_PORT") for offset in (2, 4, 45)),
        ("0.0.0.0", 0, "GYM_BASE_PORT"),
        ("127.0.0.1", 200, "GYM_RAY_PORT"),
    ],
)
def test_e5_a_taken_port_names_its_holder(tmp_path, base, listen, host, offset, variable):
    process = listen(base + offset, host)
    finding = found(machine.ports, at(tmp_path, base), "fail")
    assert f"port {base + offset} taken by process {process.pid} (python" in finding.what and variable in finding.cure


def test_of_a_holder_the_program_is_shown_and_no_argument(tmp_path, base, start):
    """Its own name may be anything: bytes that are no text, and a line end."""
    process = start(f"""
        secret = "sk-4711"
        open("/proc/self/comm", "wb").write(b"a\\n\\xffb)")
        s = socket.create_server(("127.0.0.1", {base}))
    """)
    finding = found(machine.ports, at(tmp_path, base), "fail")
    assert f"port {base} taken by process {process.pid} (a\ufffd\ufffdb))" in finding.what
    with pytest.raises(Failure) as refused:
        ports.check_ports([base], "GYM_BASE_PORT")
    assert f"process {process.pid} (a" in str(refused.value)
    assert "sk-4711" not in str(finding) + str(refused.value) and "\n" not in str(refused.value)


def test_e5_ports_that_our_own_servers_hold_are_fine(tmp_path, base, listen):
    case = at(tmp_path, base)
    assert case.ours == []  # another check looks before the server starts
    listen(base, **ours(tmp_path))
    assert is_ok(machine.ports, case)
    assert "held by this clone's servers" in found(machine.ports, at(tmp_path, base), "ok").what
    with socket.create_server(("127.0.0.2", base)):
        assert is_ok(machine.ports, at(tmp_path, base)), "a stranger beside our own server is not in its way"


def test_e5_the_graph_of_another_clone_is_named_by_its_folder_once_though_one_server_lost_its_mark(
    tmp_path, base, start
):
    start(
        f"""
        import subprocess, sys
        s = socket.create_server(("127.0.0.1", {base}))
        t = "import socket, time; s = socket.create_server(('127.0.0.1', {base + 3})); time.sleep(120)"
        child = subprocess.Popen([sys.executable, "-c", t], env={{}})
        while socket.socket().connect_ex(("127.0.0.1", {base + 3})): time.sleep(0.05)
        """,
        **{processes.MARK: "/elsewhere/data/run"},
    )
    finding = found(machine.ports, at(tmp_path, base), "fail")
    assert f"ports {base}, {base + 3} taken" in finding.what and "the graph of /elsewhere/data/run" in finding.what
    assert "make stop" in finding.cure


def test_e5_ports_that_the_kernel_hands_out_and_ports_twice_are_refused(tmp_path, base):
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    finding = found(machine.ports, at(tmp_path, base, GYM_RAY_PORT=low + 1), "fail")
    assert f"port {low + 1} (from GYM_RAY_PORT)" in finding.what and "choose another GYM_RAY_PORT" in finding.cure
    assert "the graph's own" in found(machine.ports, at(tmp_path, base, GYM_RAY_PORT=base + 7), "fail").what


def held(host, port, both=False):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=both)


needs_ipv6 = pytest.mark.skipif(not net.is_here("::1"), reason="no IPv6 here")


@needs_ipv6
@pytest.mark.parametrize(
    ("holds", "offset", "binds"), [("::1", 0, "0.0.0.0"), ("::", 0, "127.0.0.1"), ("::", 1, "0.0.0.0")]
)
def test_e5_a_listener_that_is_in_no_binds_way_is_fine(tmp_path, base, holds, offset, binds):
    case = at(tmp_path, base, GYM_BIND_HOST=binds)
    with held(holds, base + offset):
        graph.check_ports(case.settings)
        assert is_ok(machine.ports, case)


@pytest.mark.parametrize("holds", ["127.0.0.1", "127.0.0.2", pytest.param("::", marks=needs_ipv6)])
def test_e5_each_address_of_the_gateway_must_be_free_in_both_families(tmp_path, base, holds):
    with held(holds, base, both=":" in holds):
        finding = found(machine.ports, at(tmp_path, base, GYM_BIND_HOST="127.0.0.2"), "fail")
    assert f"port {base} taken by" in finding.what


@pytest.mark.parametrize("successor", [False, True])
def test_e5_a_server_of_ours_that_ends_meanwhile_is_no_strangers(tmp_path, base, listen, monkeypatch, successor):
    process, real = listen(base, **ours(tmp_path)), processes.ours

    def ours_once_it_ended(*arguments):
        if process.poll() is not None:
            return real(*arguments)
        process.kill()
        process.wait()
        left = real(*arguments)
        if successor:
            listen(base, **ours(tmp_path))
        return left

    monkeypatch.setattr(processes, "ours", ours_once_it_ended)
    assert is_ok(machine.ports, at(tmp_path, base))
    assert process.poll() is not None


def test_e5_ports_of_a_container_are_not_judged_without_the_package_that_asks_for_it(tmp_path, base, monkeypatch):
    case = at(tmp_path, base, GYM_BACKEND="docker")
    case.settings.RUN_DIR.mkdir()
    container.note(case.settings).touch()
    (tmp_path / "engine").touch()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
    monkeypatch.setitem(sys.modules, "docker", None)
    with socket.create_server(("127.0.0.1", base)):
        assert "needs the package docker" in found(machine.ports, case, "warn").what
