"""Our own processes on this machine: found by their mark, ended for certain, nobody else's touched."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest

from common.failure import Failure
from common.settings import ROOT
from servers import processes

SLEEP = "import time; print('up', flush=True); time.sleep(120)"


def pids(found):
    return {process.pid for process in found}


# --- what is ours --------------------------------------------------------------------------


def test_a_marked_process_is_ours_by_its_run_folder_and_role(run, start, tmp_path):
    (tmp_path / "another").mkdir()
    gym, words = start(run=run)
    rehearsal, _ = start(run=run, role="rehearsal")
    start(run=SimpleNamespace(RUN_DIR=tmp_path / "another"))
    start()
    assert words == ["up"] and os.getsid(gym.pid) == gym.pid != os.getsid(0)
    assert pids(processes.ours(run)) == {gym.pid, rehearsal.pid}
    (tmp_path / "link").symlink_to(tmp_path)
    assert pids(processes.ours(SimpleNamespace(RUN_DIR=tmp_path / "link" / "run"), "gym")) == {gym.pid}


def test_a_session_we_started_is_ours_though_its_leader_is_gone(run, start):
    code = """
        import os, subprocess, sys
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], env={})
        print(process.pid, flush=True)
        os._exit(0)
    """
    leader, [orphan] = start(code, run)
    leader.wait()
    assert pids(processes.ours(run, "gym")) == {int(orphan)} and not processes.ours(run, "rehearsal")
    processes.end(processes.ours(run), grace_s=2)
    assert not processes.ours(run)


def test_descendants_are_ours_though_they_lost_the_mark(run, start):
    code = """
        import os, subprocess, sys, time
        grandchild = "import time; time.sleep(120)"
        child = f"import subprocess, sys, os; p = subprocess.Popen([sys.executable, '-c', {grandchild!r}], env={{}}); "
        child += "print(os.getpid(), p.pid, flush=True); p.wait()"
        subprocess.Popen([sys.executable, "-c", child], env={}, start_new_session=True).wait()
    """
    process, family = start(code, run)
    assert pids(processes.ours(run, "gym")) == {process.pid, *map(int, family)}
    processes.end(processes.ours(run), grace_s=2)
    assert not processes.ours(run)


def test_a_recorded_session_is_ours_if_the_record_is_of_this_boot_and_of_its_leader(run, start):
    stranger, _ = start()
    record, boot, pid = run.RUN_DIR / processes.SESSIONS, processes.boot_id(), stranger.pid
    born = processes.Process(pid).start
    for line in (
        f"other-boot {pid} {born} gym",
        f"{boot} {pid} {born - 1} gym",  # an earlier leader had its number
        f"{boot} {pid} {born + 1} gym",  # it is older than the leader
        f"{pid} {born} gym",
        "torn li",
    ):
        record.write_text(line + "\n")
        assert processes.ours(run) == [], line
    record.write_text(f"{boot} {pid} {born} gym\n")
    assert pids(processes.ours(run)) == {pid}


def test_a_session_whose_leader_was_replaced_is_ours_only_with_younger_members(run, start):
    code = """
        import os, subprocess, sys
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
        print(process.pid, flush=True)
        os._exit(0)
    """
    leader, [member] = start(code)
    leader.wait()
    born = processes.Process(int(member)).start
    record = run.RUN_DIR / processes.SESSIONS
    try:
        record.write_text(f"{processes.boot_id()} {leader.pid} {born + 1} gym\n")
        assert processes.ours(run) == []
        record.write_text(f"{processes.boot_id()} {leader.pid} {born - 1} gym\n")
        assert pids(processes.ours(run)) == {int(member)}
    finally:
        os.kill(int(member), signal.SIGKILL)


def test_the_record_of_sessions_goes_with_the_last_process(run, start):
    record = run.RUN_DIR / processes.SESSIONS
    process, _ = start(run=run)
    processes.forget_sessions(run)
    assert record.exists()
    process.kill()
    process.wait()
    processes.forget_sessions(run)
    assert not record.exists()


def test_who_asks_is_not_among_those_found(run, start):
    code = f"""
        import sys
        sys.path.insert(0, {str(ROOT / "scripts")!r})
        import pathlib, types
        from servers import processes
        print(len(processes.ours(types.SimpleNamespace(RUN_DIR=pathlib.Path({str(run.RUN_DIR)!r})))), flush=True)
    """
    assert start(code, run)[1] == ["0"]


def test_processes_of_ours_see_no_proxy_and_no_other_cluster(run, monkeypatch):
    for name in ("http_proxy", "HTTPS_PROXY", "All_Proxy", "no_proxy", "RAY_ADDRESS", "MAKEFLAGS"):
        monkeypatch.setenv(name, "set-by-this-test")
    monkeypatch.setenv("KEPT", "yes")
    given = processes.environment(run, "gym")
    assert "set-by-this-test" not in given.values() and given["KEPT"] == "yes"
    assert given[processes.MARK] == str(run.RUN_DIR) and given[processes.ROLE] == "gym"


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
    process, _ = start(code, run)
    processes.end(processes.ours(run))
    assert (tmp_path / "cleaned").exists() and process.wait() == 0


def test_end_kills_who_does_not_listen(run, start):
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"
    )
    process, _ = start(deaf, run)
    processes.end(processes.ours(run), grace_s=0.2)
    assert process.wait() == -signal.SIGKILL and not processes.ours(run)


def test_end_leaves_a_process_alone_that_only_has_the_pid(run, start):
    process, _ = start(run=run)
    [other] = processes.ours(run)
    other.start -= 1  # as if an earlier process had had this pid
    processes.end([other], grace_s=0.1)
    assert process.poll() is None


def test_end_of_what_is_gone_or_a_zombie_is_no_fault(run, start):
    processes.end([])
    process, _ = start(run=run)
    zombies = processes.ours(run)
    process.kill()
    while zombies[0].alive():
        time.sleep(0.02)
    processes.end(zombies)
    assert not processes.ours(run), "a zombie is not among ours"
    process.wait()
    processes.end(zombies)


def test_one_that_survives_is_named(monkeypatch):
    class Stuck(processes.Process):
        pid, program, command = 4_000_000, "stuck", "stuck --in=disk"

        def __init__(self):
            """Of no process that there is."""

        def alive(self):
            return True

    moments = iter(range(0, 10_000, 5))
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(moments))
    with pytest.raises(Failure, match=r"process 4000000 \(stuck\) does not end$"):
        processes.end([Stuck()])


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
