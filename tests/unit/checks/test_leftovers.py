"""The doctor on what earlier runs left: real processes, folders and records."""

import mmap
import os
import subprocess

import pytest

from checks import leftovers
from common.settings import ROOT
from servers import container, processes
from support.doctor_case import Pages, case_of, found, is_ok


def test_processes_of_a_folder_that_is_gone_are_named(tmp_path, start):
    case = case_of(tmp_path)
    assert f"{tmp_path}" not in str(found(leftovers.processes, case))
    process = start(**{processes.MARK: f"{tmp_path}/gone"})
    (orphans,) = [finding for finding in found(leftovers.processes, case) if f"{tmp_path}/gone" in finding.what]
    assert orphans.verdict == "warn" and orphans.cure == f"kill {process.pid}"


def test_a_containers_processes_are_asked_for_the_folder_in_their_own_tree(tmp_path):
    (tmp_path / "4711" / "root" / "state").mkdir(parents=True)
    assert leftovers.sees(4711, "/state", tmp_path) and not leftovers.sees(4711, "/gone", tmp_path)
    assert leftovers.sees(os.getpid(), str(tmp_path)) and not leftovers.sees(os.getpid(), f"{tmp_path}/gone")


def test_servers_without_their_supervisor_are_named(tmp_path, start):
    case = case_of(tmp_path)
    case.settings.RUN_DIR.mkdir()
    mark = {processes.MARK: processes.mark(case.settings), processes.ROLE: "gym"}
    start(**mark)
    assert "without their supervisor" in str(found(leftovers.processes, case))
    start("", "servers.supervise", **mark)
    assert "without their supervisor" not in str(found(leftovers.processes, case))


def test_r4_records_of_what_is_gone_are_named(tmp_path):
    case = case_of(tmp_path)
    dead = subprocess.Popen(["true"])
    dead.wait()
    with Pages({}) as dashboard:
        for pid in (os.getpid(), dead.pid):
            assert is_ok(leftovers.records, case)
            folder = case.settings.RUN_DIR / "jobs" / f"train-20260101-000000-{pid}-0a"
            folder.mkdir(parents=True)
            (folder / "dashboard").write_text(f"{dashboard.url}\n")
        finding = found(leftovers.records, case, "warn")
    assert f"1 jobs whose end nobody saw, {folder.name}" in finding.what and finding.cure == "make stop"


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", ""])
def test_r4_the_record_of_a_job_whose_cluster_is_gone_can_be_removed(tmp_path, address):
    case = case_of(tmp_path, RUN_DIR=tmp_path / "a run")
    folder = case.settings.RUN_DIR / "jobs" / "train-20260101-000000-0-0c"
    folder.mkdir(parents=True)
    (folder / "dashboard").write_text(f"{address}\n")
    cure = found(leftovers.records, case, "warn").cure
    subprocess.run(cure.partition(": ")[2], shell=True, check=True)
    assert is_ok(leftovers.records, case)


def test_a_record_of_sessions_and_probes_are_named(tmp_path):
    case = case_of(tmp_path)
    folder = case.settings.RUN_DIR
    folder.mkdir()
    for name, cure in ((processes.SESSIONS, "make stop"), (".probe-1", f"rm {folder}/.probe-1")):
        (folder / name).write_text("old\n")
        assert found(leftovers.records, case, "warn").cure == cure
        (folder / name).unlink()


@pytest.mark.parametrize("lives", ["cwd", "file"])
@pytest.mark.parametrize("name", ["session-x", "gym-ray-x"])
def test_a_folder_in_which_a_process_lives_is_not_left_over(tmp_path, monkeypatch, name, lives):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "link"))
    folder, pattern = tmp_path / "link" / name, name.replace("x", "*")
    folder.mkdir()
    (folder / "agent.log").touch()
    os.utime(folder, (0, 0))
    assert leftovers.folders(pattern) == [folder]
    with (folder / "agent.log").open() as log:
        uses = {"cwd": folder} if lives == "cwd" else {"stdin": log, "cwd": "/"}
        process = subprocess.Popen(["sleep", "120"], env={}, **uses)
    try:
        assert leftovers.folders(pattern) == []
    finally:
        process.kill()
        process.wait()


def test_the_cure_for_temporary_folders_removes_all_that_are_left_and_nothing_else(tmp_path, start, monkeypatch):
    folder = tmp_path / "with a space"
    monkeypatch.setenv("TMPDIR", str(folder))
    left = {f"gym-ray-{n}" for n in range(30)} | {"gym-ray-two\nlines", "gym-ray-\x1b"}
    kept = {"gym-ray-used", "session-used", "session-somebody"}
    for name in left | kept | {"session-old"}:
        (folder / name).mkdir(parents=True)
    (folder / "session-old" / "agent.log").touch()
    (folder / "session-used" / "input.json").touch()
    (folder / "gym-ray-file").touch()
    start("", f"--temp-dir={folder}/gym-ray-used", RELAX_SESSION_IO_DIR=f"{folder}/session-used")
    assert f"{folder}" not in str(found(leftovers.temporary, case_of(tmp_path))), (
        "their processes may be about to start"
    )
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    (folder / "gym-ray-new").mkdir()
    rays, sessions = [each for each in found(leftovers.temporary, case_of(tmp_path)) if str(folder) in each.what]
    assert f"{len(left)} folders" in rays.what and len(rays.what + rays.cure) < 500
    assert f"{folder}/session-old" in sessions.what
    for finding in (rays, sessions):
        subprocess.run(finding.cure, shell=True, cwd=ROOT, check=True, timeout=100)
    assert {path.name for path in folder.iterdir()} == kept | {"gym-ray-file", "gym-ray-new"}


def test_objects_in_shared_memory_that_nobody_has_open_are_named(tmp_path):
    (tmp_path / "plasmashell-cache").mkdir()
    (tmp_path / "plasma-link").symlink_to(tmp_path)
    for name in ("plasma1", "plasma2", "other"):
        (tmp_path / name).write_bytes(bytes(4096))
    with (tmp_path / "plasma1").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert leftovers.objects(tmp_path) == [tmp_path / "plasma2"]
    with (tmp_path / "plasma1").open("rb"):
        assert leftovers.objects(tmp_path) == [tmp_path / "plasma2"]
    assert leftovers.objects(tmp_path) == [tmp_path / "plasma1", tmp_path / "plasma2"]


def test_containers_that_ended_or_whose_folder_is_gone_are_left_over(tmp_path, engine):
    case = case_of(tmp_path, GYM_BACKEND="docker")
    assert is_ok(leftovers.containers, case)
    case.settings.RUN_DIR.mkdir()
    own = processes.mark(case.settings)
    engine.put("containers/json", [{"Id": "1"}])
    for folder, status, left in ((own, "running", False), (own, "exited", True), (f"{tmp_path}/gone", "running", True)):
        config = {"Labels": {container.RUN_LABEL: folder}}
        engine.put("containers/1/json", {"Id": "1", "Name": "/old", "State": {"Status": status}, "Config": config})
        (finding,) = found(leftovers.containers, case)
        assert (finding.verdict, finding.cure) == (("warn", "docker rm -f old") if left else ("ok", ""))
