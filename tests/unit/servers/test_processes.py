"""Our own processes and ports on this machine: found by their mark, ended for certain, nobody else's touched."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from common import files
from common.failure import Failure
from common.settings import ROOT
from servers import ports as server_ports
from servers import private_ray, processes

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(120)"]


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def run(tmp_path):
    return SimpleNamespace(RUN_DIR=tmp_path / "run")


@pytest.fixture
def start(tmp_path):
    """Start processes that the end of the test kills; each has printed a line before it is handed out."""
    started = []
    (tmp_path / "run").mkdir()
    (tmp_path / "another").mkdir()

    def begin(command, environment=None):
        log = tmp_path / f"{len(started)}.log"
        if environment:
            started.append(processes.spawn(command, log, environment, tmp_path))
        else:  # somebody else's
            with log.open("wb") as output:
                started.append(subprocess.Popen(command, stdout=output, start_new_session=True))
        until(lambda: log.read_bytes().endswith(b"\n"))
        return started[-1], log.read_text().split()

    yield begin
    for process in started:
        process.kill()
        process.wait()


def pids(found):
    return {process.pid for process in found}


def python(code):
    return [sys.executable, "-c", textwrap.dedent(code)]


# --- what is ours --------------------------------------------------------------------------


def test_a_marked_process_is_ours_by_its_run_folder_and_role(run, start, tmp_path):
    gym, _ = start(SLEEP, processes.environment(run, "gym"))
    rehearsal, _ = start(SLEEP, processes.environment(run, "rehearsal"))
    other, _ = start(SLEEP, processes.environment(SimpleNamespace(RUN_DIR=tmp_path / "another"), "gym"))
    nobodys, _ = start(SLEEP)
    assert pids(processes.ours(run)) == {gym.pid, rehearsal.pid}
    assert pids(processes.ours(run, "gym")) == {gym.pid}
    assert not {other.pid, nobodys.pid} & pids(processes.ours(run))


def test_the_mark_is_the_folder_whatever_way_it_is_written(run, start, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    process, _ = start(SLEEP, processes.environment(run, "gym"))
    assert pids(processes.ours(SimpleNamespace(RUN_DIR=tmp_path / "link" / "run"))) == {process.pid}


def test_a_session_we_started_is_ours_though_its_leader_is_gone(run, start, tmp_path):
    left = "import time; time.sleep(120)"
    code = f"""
        import os, subprocess, sys
        process = subprocess.Popen([sys.executable, "-c", {left!r}], env={{}})
        print(process.pid, flush=True)
        os._exit(0)
    """
    leader, [orphan] = start(python(code), processes.environment(run, "gym"))
    leader.wait()
    assert pids(processes.ours(run, "gym")) == {int(orphan)} and not processes.ours(run, "rehearsal")
    processes.end(processes.ours(run), grace_s=2)
    assert not processes.ours(run)


def test_a_session_with_the_number_of_an_ended_one_of_ours_is_not_ours(run, start):
    nobodys, _ = start(SLEEP)
    (run.RUN_DIR / processes.SESSIONS).write_text(f"{nobodys.pid} {processes.Process(nobodys.pid).start - 1} gym\n")
    assert not processes.ours(run)


def test_descendants_are_ours_though_they_lost_the_mark(run, start):
    code = """
        import os, subprocess, sys, time
        grandchild = "import time; time.sleep(120)"
        child = f"import subprocess, sys, os; p = subprocess.Popen([sys.executable, '-c', {grandchild!r}], env={{}}); "
        child += "print(os.getpid(), p.pid, flush=True); p.wait()"
        subprocess.Popen([sys.executable, "-c", child], env={}, start_new_session=True).wait()
    """
    process, said = start(python(code), processes.environment(run, "gym"))
    family = {process.pid, *map(int, said)}
    assert pids(processes.ours(run, "gym")) == family
    processes.end(processes.ours(run), grace_s=2)
    assert not processes.ours(run)


def test_who_asks_is_not_among_those_found(run, start):
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT / "scripts")!r})
        import pathlib, types
        from servers import processes
        print(len(processes.ours(types.SimpleNamespace(RUN_DIR=pathlib.Path({str(run.RUN_DIR)!r})))), flush=True)
    """
    _, said = start(python(code), processes.environment(run, "gym"))
    assert said == ["0"]


def test_processes_of_ours_see_no_proxy_and_no_other_cluster(run, monkeypatch):
    for name in ("http_proxy", "HTTPS_PROXY", "All_Proxy", "no_proxy", "RAY_ADDRESS", "MAKEFLAGS"):
        monkeypatch.setenv(name, "set-by-this-test")
    monkeypatch.setenv("KEPT", "yes")
    made = processes.environment(run, "gym")
    assert not [name for name, value in made.items() if value == "set-by-this-test"]
    assert made["KEPT"] == "yes" and made[processes.MARK] == str(run.RUN_DIR) and made[processes.ROLE] == "gym"


def test_a_process_of_ours_has_a_session_of_its_own_and_a_log(run, start):
    process, said = start(SLEEP, processes.environment(run, "gym"))
    assert os.getsid(process.pid) == process.pid != os.getsid(0)
    assert said == ["up"]


# --- ending --------------------------------------------------------------------------------


def test_end_asks_first_and_waits(run, start, tmp_path):
    code = f"""
        import pathlib, signal, sys, time
        def end(*_):
            time.sleep(0.3)
            pathlib.Path({str(tmp_path / "cleaned")!r}).touch()
            sys.exit(0)
        signal.signal(signal.SIGTERM, end)
        print("up", flush=True)
        time.sleep(120)
    """
    process, _ = start(python(code), processes.environment(run, "gym"))
    processes.end(processes.ours(run))
    assert (tmp_path / "cleaned").exists() and process.wait() == 0


def test_end_kills_who_does_not_listen(run, start):
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
    )
    process, _ = start(python(code), processes.environment(run, "gym"))
    processes.end(processes.ours(run), grace_s=0.2)
    assert process.wait() == -signal.SIGKILL and not processes.ours(run)


def test_end_leaves_a_process_alone_that_only_has_the_pid(run, start):
    process, _ = start(SLEEP, processes.environment(run, "gym"))
    [found] = processes.ours(run)
    found.start -= 1  # as if an earlier process had had this pid
    processes.end([found], grace_s=0.1)
    assert process.poll() is None


def test_end_of_what_is_gone_or_a_zombie_is_no_fault(run, start):
    processes.end([])
    process, _ = start(SLEEP, processes.environment(run, "gym"))
    found = processes.ours(run)
    process.kill()
    until(lambda: not found[0].alive())
    processes.end(found)
    assert not processes.ours(run), "a zombie is not among ours"
    process.wait()
    processes.end(found)


def test_one_that_survives_is_named(monkeypatch):
    class Stuck(processes.Process):
        pid, program, command = 4_000_000, "stuck", "stuck --in=disk"

        def __init__(self):
            """Of no process that there is."""

        def alive(self):
            return True

    stuck = Stuck()
    moments = iter(range(0, 10_000, 5))
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(moments))
    with pytest.raises(Failure, match=r"process 4000000 \(stuck\) does not end$"):
        processes.end([stuck])


# --- ports ---------------------------------------------------------------------------------


@pytest.fixture
def port():
    """A port outside the kernel's range that nobody listens on."""
    low, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    taken = {number for _, number, _ in server_ports.listening()}
    return next(number for number in range(min(low, 27_999) - 1, 1024, -1) if number not in taken)


def listen(host, number):
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, number))
    made.listen()
    return made


def test_free_ports_pass_and_are_free_afterwards(port):
    for _ in range(2):
        server_ports.check_ports([port], "GYM_BASE_PORT")
    with listen("127.0.0.1", port):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_taken_port_is_refused_with_its_holder(start, port, host):
    code = f"""
        import socket, time
        s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(({host!r}, {port})); s.listen()
        print("up", flush=True); time.sleep(120)
    """
    process, _ = start(python(code))
    with pytest.raises(Failure) as refused:
        server_ports.check_ports([port], "GYM_BASE_PORT")
    message = str(refused.value)
    assert f"port {port} (from GYM_BASE_PORT) is taken by process {process.pid} (" in message
    assert message.endswith("or set GYM_BASE_PORT") and server_ports.holder(port).startswith(f"process {process.pid}")


def test_a_file_that_is_closed_meanwhile_hides_no_socket(port, monkeypatch):
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: ["99999", *real(folder)])
    with listen("127.0.0.1", port) as server:
        assert str(os.fstat(server.fileno()).st_ino) in server_ports.sockets_of(processes.Process(os.getpid()))


def test_a_port_that_the_kernel_hands_out_is_refused():
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    for number in (low, high):
        with pytest.raises(Failure, match=rf"port {number} \(from GYM_RAY_PORT\) lies in the range {low}..{high}"):
            server_ports.check_ports([number], "GYM_RAY_PORT")


def test_an_address_of_another_machine_is_refused(port):
    with pytest.raises(Failure, match="192.0.2.1 is no address of this machine; set GYM_BIND_HOST"):
        server_ports.check_ports([port], "GYM_BASE_PORT", "192.0.2.1")


def test_a_port_that_was_just_left_is_free(port):
    """Connections of an ended server linger for a minute; they take nobody's port."""
    with listen("127.0.0.1", port) as server, socket.create_connection(("127.0.0.1", port)):
        server.accept()[0].close()
    server_ports.check_ports([port], "GYM_BASE_PORT")


def test_what_listens_beyond_loopback_is_told_from_what_does_not(start, port):
    hosts = ["127.0.0.1", "0.0.0.0"] + (["::1", "::"] if socket.has_ipv6 and _ipv6() else [])
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
    process, said = start(python(code))
    ports = dict(zip(hosts, map(int, said), strict=False))
    group = [processes.Process(process.pid)]
    exposed = {(host, ports[host]) for host in hosts if host in ("0.0.0.0", "::")}
    assert set(server_ports.beyond_loopback(group)) == exposed
    assert server_ports.beyond_loopback(group, allowed=set(ports.values())) == []
    assert server_ports.beyond_loopback([]) == []
    assert {(address, number) for address, number, _ in server_ports.listening()} >= set(ports.items())


@pytest.mark.parametrize(
    ("address", "reachable"),
    [
        ("::1", False), ("127.0.0.1", False), ("127.8.0.1", False), ("::ffff:127.0.0.1", False), ("::", True),
        ("::1234", True), ("::1:2:3", True), ("::ffff:10.0.0.1", True), ("1270::1", True), ("10.0.0.1", True),
    ],
)  # fmt: skip
def test_an_address_that_only_begins_like_loopback_is_not(monkeypatch, address, reachable):
    monkeypatch.setattr(server_ports, "listening", lambda: [(address, 80, "7")])
    monkeypatch.setattr(server_ports, "sockets_of", lambda process: {"7"})
    assert server_ports.beyond_loopback([None]) == ([(address, 80)] if reachable else [])


def _ipv6():
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


# --- the rest ------------------------------------------------------------------------------


def test_the_end_of_a_log_is_short_and_indented(tmp_path):
    log = tmp_path / "a.log"
    assert files.tail(log) == f"    (no {log})"
    log.write_bytes(b"\xff" + b"x" * 50_000 + b"\n" + b"\n".join(b"line %d" % n for n in range(100)))
    assert files.tail(log, 3) == "    line 97\n    line 98\n    line 99"
    assert len(files.tail(log, 1000)) < 40_000


def test_both_rays_and_the_graph_share_no_port_of_one_block():
    made = SimpleNamespace(GYM_BASE_PORT=29000, GYM_RAY_PORT=6382, RUN_DIR=Path("/nonexistent"))
    gym, rehearsal = private_ray.PrivateRay(made, "gym"), private_ray.PrivateRay(made, "rehearsal")
    assert gym.address == "127.0.0.1:6382" and rehearsal.address == "127.0.0.1:29100"
    assert rehearsal.dashboard_url == "http://127.0.0.1:29101"
    for ray in (gym, rehearsal):
        assert len(set(ray.ports())) == len(ray.ports())
    assert not set(gym.ports()) & set(rehearsal.ports())
    assert set(gym.ports()) - {6382} <= set(range(29040, 29100))
    assert set(rehearsal.ports()) <= set(range(29100, 29200))


def test_a_ray_keeps_its_temporary_folder_until_it_is_cleared(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(private_ray.tempfile, "tempdir", None)
    made = SimpleNamespace(GYM_BASE_PORT=29000, GYM_RAY_PORT=6382, RUN_DIR=tmp_path / "run")
    ray = private_ray.PrivateRay(made, "gym")
    command = ray.command()
    assert command == ray.command()
    [folder] = [option.removeprefix("--temp-dir=") for option in command if option.startswith("--temp-dir=")]
    assert Path(folder).is_dir()
    ray.clear()
    ray.clear()
    assert not Path(folder).exists()


def test_stopping_what_does_not_run_is_no_fault(run):
    made = SimpleNamespace(GYM_BASE_PORT=29000, GYM_RAY_PORT=6382, RUN_DIR=run.RUN_DIR)
    assert private_ray.PrivateRay(made, "gym").stop() == 0


def test_a_recorded_session_of_another_boot_is_nobodys(run):
    run.RUN_DIR.mkdir()
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        for line in (f"other-boot {stranger.pid} 1 gym", f"{stranger.pid} 1 gym", "torn li"):
            (run.RUN_DIR / processes.SESSIONS).write_text(line + "\n")
            assert processes.ours(run) == []
    finally:
        stranger.kill()
        stranger.wait()


def test_a_session_is_ours_only_with_members_younger_than_its_leader(run):
    run.RUN_DIR.mkdir()
    member = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        later = processes.Process(member.pid).start + 1
        record = run.RUN_DIR / processes.SESSIONS
        record.write_text(f"{processes.boot_id()} {member.pid} {later} gym\n")
        assert processes.ours(run) == []
        record.write_text(f"{processes.boot_id()} {member.pid} {later - 1} gym\n")
        assert [process.pid for process in processes.ours(run)] == [member.pid]
    finally:
        member.kill()
        member.wait()


def test_the_record_of_sessions_goes_with_the_last_process(run):
    run.RUN_DIR.mkdir()
    (run.RUN_DIR / processes.SESSIONS).write_text("old\n")
    processes.forget_sessions(run)
    assert not (run.RUN_DIR / processes.SESSIONS).exists()


def test_as_many_files_may_be_open_as_the_machine_allows():
    program = """
        import resource, sys
        sys.path.insert(0, sys.argv[1])
        from servers import processes
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
        processes.allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, processes.FILES_WANTED), hard)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(ROOT / "scripts")]
    subprocess.run(command, check=True)
