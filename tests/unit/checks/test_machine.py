"""The doctor on this machine: each check says ok, and says what is wrong where something really is."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from checks import machine
from common import net
from common.failure import Failure
from servers import container, graph, ports, processes
from support.doctor_case import case_of, found, free_base, is_ok

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ("bash", "dirname", "sed", "awk", "df", "cat", "sha256sum", "readlink", "tail", "pwd", "env", "tr")


def tool_folder(folder, names):
    """A PATH with nothing but these tools."""
    folder.mkdir()
    for name in names:
        if found_at := shutil.which(name):
            (folder / name).symlink_to(found_at)
    return folder


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """The clone as git has it, without what was made in it."""
    clone = tmp_path / "clone"
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in ("env.example", *(name for name in names if name.startswith(("scripts/", "tests/req", "patches/")))):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, clone / name)
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
    case = case_of(tmp_path)
    assert {each.verdict for each in found(machine.disk, case)} <= {"ok", "warn"}
    assert not list(tmp_path.iterdir())


def test_a_full_or_unwritable_disk_names_the_variable(tmp_path):
    (tmp_path / "file").write_text("")
    finding = found(machine.disk, case_of(tmp_path, RUN_DIR=tmp_path / "file" / "run"), "fail")
    assert "cannot be written to" in finding.what and "RUN_DIR" in finding.cure
    kernels = found(machine.disk, case_of(tmp_path, DATA_ROOT="/proc/x"), "fail")
    assert kernels.what == "/proc cannot be written to" and "DATA_ROOT" in kernels.cure
    little = machine.room("EXP_DIR", tmp_path, 1, 1 << 40)
    assert little.verdict == "warn" and "EXP_DIR" in little.cure
    none = machine.room("EXP_DIR", tmp_path, 1 << 40)
    assert none.verdict == "fail" and "needed" in none.what


def test_a_tmpdir_that_is_not_there_is_named_and_made_by_its_cure(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/a b")
    finding = found(machine.disk, case_of(tmp_path), "warn")
    assert "is no folder" in finding.what
    subprocess.run(finding.cure, shell=True, check=True)
    assert is_ok(machine.disk, case_of(tmp_path))


@pytest.mark.parametrize(("available", "verdict"), [(20_000, "ok"), (2000, "warn"), (900, "fail")])
def test_memory(available, verdict):
    finding = machine.memory_finding(available)
    assert finding.verdict == verdict and f"{available / 1000:.1f} GB" in finding.what


def test_memory_of_this_machine_is_read(tmp_path):
    assert 0 < machine.available_mb() < 1 << 40
    assert "available" in found(machine.memory, case_of(tmp_path))[0].what


def test_a_containers_limit_counts_before_the_machines_memory(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable: 8192000 kB\n")
    assert machine.available_mb(tmp_path) == 8000
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("1\n")
    assert machine.available_mb(tmp_path) == 8000
    (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{2 << 30}\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text(f"{1 << 30}\n")
    assert machine.available_mb(tmp_path) == 1024


ALLOWED = """
import json, resource, sys
sys.path.insert(0, sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
from common import settings
from checks.probe import Case
from servers import processes
from checks.machine import open_files
print(json.dumps(open_files(Case(settings.load(environment={"GATEWAY_QUEUE_LIMIT": sys.argv[4]})))))
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
    words = [str(ROOT / "scripts"), *map(str, (soft, hard, queue))]
    done = subprocess.run([sys.executable, "-c", ALLOWED, *words], capture_output=True, text=True, check=True)
    found_verdict, what, cure = json.loads(done.stdout)
    assert found_verdict == verdict and said in what
    assert verdict == "ok" or f"the hard limit is {hard}" in what
    assert subprocess.run(["bash", "-nc", cure], stderr=subprocess.DEVNULL).returncode == 0 and "(" not in cure


def test_shared_memory(tmp_path):
    case = case_of(tmp_path)
    assert machine.shared_memory(case, tmp_path).verdict == "ok"
    absent = machine.shared_memory(case, tmp_path / "shm")
    assert absent.verdict == "warn" and "mount" in absent.cure
    full = machine.shared_memory(case, Path("/proc"))
    assert full.verdict == "warn" and "--shm-size" in full.cure


# --- ports ---------------------------------------------------------------------------------


@pytest.fixture
def base():
    return free_base()


@pytest.fixture
def listen():
    """Start a process that listens on a port until the end of the test."""
    started = []

    def begin(port, host="127.0.0.1", code=None, **environment):
        code = (
            code
            or f"""
            import socket, time
            s = socket.create_server(({host!r}, {port}), family=socket.AF_INET)
            print("up", flush=True); time.sleep(120)
        """
        )
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, env={**os.environ, **environment}
        )
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in started:
        for child in [each for each in processes.processes() if each.parent == process.pid]:
            os.kill(child.pid, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


def at(tmp_path, base, **texts):
    return case_of(tmp_path, GYM_BASE_PORT=base, **{"GYM_RAY_PORT": base + 200, **texts})


def test_free_ports_are_ok_and_nothing_is_bound(tmp_path, base):
    assert is_ok(machine.ports, at(tmp_path, base))
    with socket.create_server(("127.0.0.1", base)):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_e5_a_taken_port_names_its_holder(tmp_path, base, listen, host):
    process = listen(base + 2, host)
    finding = found(machine.ports, at(tmp_path, base), "fail")
    assert f"port {base + 2} taken by process {process.pid} (python" in finding.what
    assert "GYM_BASE_PORT" in finding.cure


def test_of_a_holder_the_program_is_shown_and_no_argument(tmp_path, base, listen):
    """Its own name may be anything: bytes that are no text, and a line end."""
    code = f"""
        import socket, time
        secret = "sk-4711"
        open("/proc/self/comm", "wb").write(b"a\\n\\xffb)")
        s = socket.create_server(("127.0.0.1", {base}))
        print("up", flush=True); time.sleep(120)
    """
    process = listen(base, code=code)
    finding = found(machine.ports, at(tmp_path, base), "fail")
    assert f"port {base} taken by process {process.pid} (a\ufffd\ufffdb))" in finding.what
    with pytest.raises(Failure) as refused:
        ports.check_ports([base], "GYM_BASE_PORT")
    assert f"process {process.pid} (a" in str(refused.value)
    assert "sk-4711" not in str(finding) + str(refused.value) and "\n" not in str(refused.value)


def test_e5_ports_that_our_own_servers_hold_are_fine(tmp_path, base, listen):
    listen(base, **{processes.MARK: str(tmp_path / "run_dir"), processes.ROLE: "gym"})
    assert "held by this clone's servers" in found(machine.ports, at(tmp_path, base), "ok").what


def test_e5_the_graph_of_another_clone_is_named_by_its_folder(tmp_path, base, listen):
    listen(base, **{processes.MARK: "/elsewhere/data/run"})
    finding = found(machine.ports, at(tmp_path, base), "fail")
    assert "the graph of /elsewhere/data/run" in finding.what and "make stop" in finding.cure


def test_e5_processes_of_one_graph_are_one_holder_though_one_lost_its_mark(tmp_path, base, listen):
    code = f"""
        import socket, subprocess, sys, time
        s = socket.create_server(("127.0.0.1", {base}))
        t = "import socket, time; s = socket.create_server(('127.0.0.1', {base + 3})); time.sleep(120)"
        child = subprocess.Popen([sys.executable, "-c", t], env={{}})
        while socket.socket().connect_ex(("127.0.0.1", {base + 3})): time.sleep(0.05)
        print("up", flush=True); child.wait()
    """
    listen(base, code=code, **{processes.MARK: "/elsewhere/data/run"})
    assert f"ports {base}, {base + 3} taken" in found(machine.ports, at(tmp_path, base), "fail").what


def test_e5_a_second_ray_on_the_gyms_port_is_named(tmp_path, base, listen):
    process = listen(base + 200)
    finding = found(machine.ports, at(tmp_path, base), "fail")
    assert str(process.pid) in finding.what and "GYM_RAY_PORT" in finding.cure


def test_e5_ports_that_the_kernel_hands_out_and_ports_twice_are_refused(tmp_path, base):
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    finding = found(machine.ports, at(tmp_path, base, GYM_RAY_PORT=low + 1), "fail")
    assert f"port {low + 1} (from GYM_RAY_PORT)" in finding.what and "choose another GYM_RAY_PORT" in finding.cure
    assert "the graph's own" in found(machine.ports, at(tmp_path, base, GYM_RAY_PORT=base + 7), "fail").what


def six(host, port, only=1):
    made = socket.socket(socket.AF_INET6)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
    made.bind((host, port))
    made.listen()
    return made


needs_ipv6 = pytest.mark.skipif(not net.is_here("::1"), reason="no IPv6 here")


@needs_ipv6
@pytest.mark.parametrize(
    ("holds", "offset", "binds"), [("::1", 0, "0.0.0.0"), ("::", 0, "127.0.0.1"), ("::", 1, "0.0.0.0")]
)
def test_e5_a_listener_that_is_in_no_binds_way_is_fine(tmp_path, base, holds, offset, binds):
    case = at(tmp_path, base, GYM_BIND_HOST=binds)
    with six(holds, base + offset):
        graph.check_ports(case.settings)
        assert is_ok(machine.ports, case)


@pytest.mark.parametrize(("holds", "binds"), [("127.0.0.1", "127.0.0.2"), ("127.0.0.2", "127.0.0.2")])
def test_e5_each_address_of_the_gateway_must_be_free(tmp_path, base, holds, binds):
    with socket.create_server((holds, base)):
        assert f"port {base} taken by" in found(machine.ports, at(tmp_path, base, GYM_BIND_HOST=binds), "fail").what


@needs_ipv6
def test_e5_a_listener_of_both_families_is_in_the_way(tmp_path, base):
    with six("::", base + 1, only=0):
        assert f"port {base + 1} taken by" in found(machine.ports, at(tmp_path, base), "fail").what


def test_e5_a_stranger_beside_our_own_server_is_not_in_its_way(tmp_path, base, listen):
    listen(base, **{processes.MARK: str(tmp_path / "run_dir"), processes.ROLE: "gym"})
    with socket.create_server(("127.0.0.2", base)):
        assert is_ok(machine.ports, at(tmp_path, base))


def test_e5_a_server_of_ours_that_starts_after_another_check_looked_is_ours(tmp_path, base, listen):
    case = at(tmp_path, base)
    assert case.ours == []
    listen(base, **{processes.MARK: str(tmp_path / "run_dir"), processes.ROLE: "gym"})
    assert is_ok(machine.ports, case)


@pytest.mark.parametrize("successor", [False, True])
def test_e5_a_server_of_ours_that_ends_meanwhile_is_no_strangers(tmp_path, base, listen, monkeypatch, successor):
    mark = {processes.MARK: str(tmp_path / "run_dir"), processes.ROLE: "gym"}
    process, real = listen(base, **mark), processes.ours

    def ours_once_it_ended(*arguments):
        if process.poll() is not None:
            return real(*arguments)
        process.kill()
        process.wait()
        found_then = real(*arguments)
        if successor:
            listen(base, **mark)
        return found_then

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
