"""The doctor on training and on what earlier runs left: scripted dashboards, real processes and folders."""

import mmap
import os
import shutil
import subprocess
import sys

import pytest

import doctor
from checks import leftovers, registry, trainer
from common import settings as variables
from common.settings import ROOT
from servers import processes
from support.doctor_case import PROXY_PAGE, Pages, case_of, found, is_ok
from support.scripted_dashboard import ScriptedDashboard

STANDIN = ROOT / "tests" / "train" / "standin"
ROW = (
    '{"id": 1, "category": "c", "environment_name": "workplace_assistant", "ground_truth": [],'
    ' "responses_create_params": {"input": [{"role": "user", "content": "hello"}]}}\n'
)


@pytest.fixture
def dashboard():
    with ScriptedDashboard() as server:
        yield server


@pytest.fixture
def train(tmp_path, dashboard):
    """A case of training in which all is well, but for what a test changes."""
    (tmp_path / "rows.jsonl").write_text(ROW * 3)
    shutil.copytree(STANDIN, tmp_path / "relax_root")
    good = {
        "NEMO_GYM_SOURCE_DATA": tmp_path / "rows.jsonl",
        "RAY_ADDRESS": "127.0.0.1:6379",
        "RAY_DASHBOARD_ADDRESS": dashboard.url,
    }
    return lambda **changes: case_of(tmp_path, "train", **{**good, **changes})


# --- training ------------------------------------------------------------------------------


def test_without_a_cluster_only_the_stage_itself_asks_for_one(tmp_path):
    for look in (trainer.checkout, trainer.budgets, trainer.gateways, trainer.cluster, trainer.ray_version):
        assert "rehearsed on this machine" in found(look, case_of(tmp_path), "ok").what
    assert "RAY_ADDRESS is empty" in found(trainer.cluster, case_of(tmp_path, "train"), "fail").what


def test_the_trainers_checkout(train, tmp_path, monkeypatch):
    assert "trainer:" in found(trainer.checkout, train(), "ok").what
    monkeypatch.setenv("RAY_NO_WAIT", "1")
    assert "unset it" in found(trainer.checkout, train(), "fail").cure
    monkeypatch.delenv("RAY_NO_WAIT")
    finding = found(trainer.checkout, train(RELAX_ROOT=tmp_path / "nowhere"), "fail")
    assert "ray-job.sh: not there" in finding.what and "make relax" in finding.cure


def test_budgets_that_contradict_one_another_are_each_named(train):
    assert "rollouts:" in found(trainer.budgets, train(), "ok").what
    findings = found(trainer.budgets, train(AGENT_TIMEOUT_S="100", NEMO_GYM_MAX_RESPONSE_LEN="9000"))
    said = " ".join(each.what for each in findings)
    assert {each.verdict for each in findings} == {"fail"} and len(findings) == 2
    assert "AGENT_TIMEOUT_S 100 > NEMO_GYM_DEADLINE_S 600" in said and "rollout-max-response-len 9000" in said
    assert "No such file" in found(trainer.budgets, train(NEMO_GYM_SOURCE_DATA="/nowhere.jsonl"), "fail").what


def test_r5_r6_a_cluster_with_gpus_and_no_jobs_is_ok(train):
    finding = found(trainer.cluster, train(), "ok")
    assert "8 asked, 8 free" in finding.what


def test_r2_too_few_gpus_are_named(train, dashboard):
    dashboard.gpus["worker"] = "4.0/8.0 GPU"
    assert "8 GPUs asked" in found(trainer.cluster, train(), "fail").what


def test_r6_running_jobs_are_named_unless_they_may_be_stopped(train, dashboard):
    dashboard.jobs["j1"] = {"submission_id": "j1", "status": "RUNNING", "entrypoint": "python train.py", "metadata": {}}
    finding = found(trainer.cluster, train(), "fail")
    assert "j1 RUNNING" in finding.what and "FORCE=1" in finding.cure
    assert is_ok(trainer.cluster, train(FORCE="1"))


def test_r5_a_loopback_gateway_is_refused_for_a_cluster_elsewhere(train):
    finding = found(trainer.cluster, train(RAY_ADDRESS="10.9.9.9:6379"), "fail")
    assert "means each node itself" in finding.what and "GYM_HOST" in finding.cure


def test_no_secret_of_an_address_or_a_job_is_shown(train, dashboard):
    for address in ("ray://user:pw@h:10001", "user:p/w@h:6379", "user:p@w@127.0.0.1:6382"):
        for look in (trainer.cluster, trainer.ray_version, trainer.second_ray):
            said = str(found(look, train(RAY_ADDRESS=address)))
            assert "user" not in said and "pw" not in said and "p/w" not in said and "p@w" not in said
    entrypoint = "python train.py --api-key sk-4711"
    dashboard.jobs["j1"] = {"submission_id": "j1", "status": "RUNNING", "entrypoint": entrypoint, "metadata": {}}
    said = found(trainer.cluster, train(), "fail").what
    assert "j1 RUNNING: python train.py" in said and "sk-4711" not in said


def test_smoke_on_a_cluster_needs_what_training_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "h:1")
    smoke = doctor.case_of("smoke", variables.load(), [])
    assert {"trainer", "model", "cluster", "cluster's Ray", "gateways"} <= {
        check.name for check in registry.CHECKS if check.belongs_to(smoke)
    }
    assert smoke.settings.is_given("SPLIT") and smoke.settings.SPLIT == "example" and smoke.settings.LIMIT == 1
    alone = doctor.case_of("smoke", case_of(tmp_path).settings, [])
    assert "trainer" not in {check.name for check in registry.CHECKS if check.belongs_to(alone)}
    assert "make smoke starts it" in found(trainer.gateways, case_of(tmp_path, "smoke", RAY_ADDRESS="h:1"), "ok").what


def test_what_is_no_dashboard_is_named(train):
    with Pages({"/api/jobs/": PROXY_PAGE, "/nodes": PROXY_PAGE, "/api/version": (503, PROXY_PAGE)}) as proxy:
        assert "no list of jobs" in found(trainer.cluster, train(RAY_DASHBOARD_ADDRESS=proxy.url), "fail").what
        assert "<html>" in found(trainer.ray_version, train(RAY_DASHBOARD_ADDRESS=proxy.url), "fail").what
    assert "does not answer" in found(trainer.cluster, train(RAY_DASHBOARD_ADDRESS=proxy.url), "fail").what
    assert "<head>:<port>" in found(trainer.cluster, train(RAY_ADDRESS="10.0.0.5"), "fail").what


def test_the_clusters_ray_is_compared_with_ours(train):
    ours = trainer.own_ray()
    for theirs, verdict in ((ours, "ok"), ("1.9.2", "warn")):
        with Pages({"/api/version": {"ray_version": theirs}}) as pages:
            finding = found(trainer.ray_version, train(RAY_DASHBOARD_ADDRESS=pages.url), verdict)
            assert theirs in finding.what and ours in finding.what


def test_the_locked_ray_is_the_installed_one():
    assert trainer.PIN.search((ROOT / "scripts" / "requirements.txt").read_text())[1] == trainer.own_ray()


def test_gateways_are_ready_and_alike(train):
    def state(tree, ready=True):
        return (200 if ready else 503, {"ready": ready, "service_epoch": "e", "environment": {"tree": tree}})

    with Pages({"/readyz": state("a")}) as one, Pages({"/readyz": state("a")}) as two:
        case = train(GYM_URLS=f"{one.url},{two.url}")
        assert "2 ready, one environment" in found(trainer.gateways, case, "ok").what
        two.pages["/readyz"] = state("b")
        assert "not the same environment" in found(trainer.gateways, case, "fail").what
        two.pages["/readyz"] = state("a", ready=False)
        assert "not ready" in found(trainer.gateways, case, "fail").what


def fake_head(port):
    """A process with the name and the argument of a Ray head."""
    code = "import time; print('up', flush=True); time.sleep(60)"
    command = ["/opt/ray/gcs_server", "-c", code, f"--gcs_server_port={port}"]
    process = subprocess.Popen(command, executable=sys.executable, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    return process


def test_two_rays_on_one_port_are_named(tmp_path):
    heads = [fake_head(7999)]
    try:
        assert 7999 in trainer.gcs_ports() and is_ok(trainer.second_ray, case_of(tmp_path))
        heads.append(fake_head(7999))
        finding = found(trainer.second_ray, case_of(tmp_path), "fail")
    finally:
        for process in heads:
            process.kill()
            process.wait()
            process.stdout.close()
    assert "2 Rays have port 7999" in finding.what and all(str(process.pid) in finding.what for process in heads)


def test_the_gyms_own_ray_is_no_cluster_to_train_on(tmp_path):
    for port in (6382, 29100):
        finding = found(trainer.second_ray, case_of(tmp_path, RAY_ADDRESS=f"127.0.0.1:{port}"), "fail")
        assert "this clone's private Ray" in finding.what
    assert is_ok(trainer.second_ray, case_of(tmp_path, RAY_ADDRESS="[::1"))


def test_a_gpu_machine_has_an_engine_its_ports_and_gpus(tmp_path, monkeypatch):
    assert is_ok(trainer.container_host, case_of(tmp_path))
    case = case_of(tmp_path, "ray-up", RELAX_HOST="10.0.0.5")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "no Docker engine answers" in found(trainer.container_host, case, "fail").what
    labels = {"Labels": {"workplace-assistant.trainer": "1"}}
    running = {"Id": "1", "Name": "/relax-train", "State": {"Status": "running"}, "Config": labels}
    pages = {"/version": {"ApiVersion": "1.44"}, "/v1.44/_ping": "OK", "/v1.44/containers/relax-train/json": running}
    with Pages(pages) as engine:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{engine.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert "0 NVIDIA GPUs here, 8 are asked for" in trainer.container_host(case, tmp_path).what
        for number in range(8):
            (tmp_path / f"nvidia{number}").touch()
        assert trainer.container_host(case, tmp_path).verdict == "ok"


# --- what earlier runs left ----------------------------------------------------------------


@pytest.fixture
def sleeper():
    started = []

    def begin(*arguments, **environment):
        code = "import time; print('up', flush=True); time.sleep(60)"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, env={**os.environ, **environment}
        )
        started.append(process)
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_processes_of_a_folder_that_is_gone_are_named(tmp_path, sleeper):
    case = case_of(tmp_path)
    assert f"{tmp_path}" not in str(found(leftovers.processes, case))
    process = sleeper(**{processes.MARK: f"{tmp_path}/gone"})
    mine = [each for each in found(leftovers.processes, case) if f"{tmp_path}/gone" in each.what]
    assert mine[0].verdict == "warn" and mine[0].cure == f"kill {process.pid}"


def test_a_containers_processes_are_asked_for_the_folder_in_their_own_tree(tmp_path):
    (tmp_path / "4711" / "root" / "state").mkdir(parents=True)
    assert leftovers.sees(4711, "/state", tmp_path) and not leftovers.sees(4711, "/gone", tmp_path)
    assert leftovers.sees(os.getpid(), str(tmp_path)) and not leftovers.sees(os.getpid(), f"{tmp_path}/gone")


def test_servers_without_their_supervisor_are_named(tmp_path, sleeper):
    case = case_of(tmp_path)
    case.settings.RUN_DIR.mkdir()
    sleeper(**{processes.MARK: processes.mark(case.settings), processes.ROLE: "gym"})
    assert any("without their supervisor" in each.what for each in found(leftovers.processes, case))
    sleeper("servers.supervise", **{processes.MARK: processes.mark(case.settings), processes.ROLE: "gym"})
    assert not any("without their supervisor" in each.what for each in found(leftovers.processes, case))


def test_r4_records_of_what_is_gone_are_named(tmp_path):
    case = case_of(tmp_path)
    jobs = case.settings.RUN_DIR / "jobs"
    (jobs / f"train-20260101-000000-{os.getpid()}-0a").mkdir(parents=True)
    (jobs / f"train-20260101-000000-{os.getpid()}-0a" / "dashboard").write_text("http://h\n")
    assert is_ok(leftovers.records, case)
    dead = subprocess.Popen(["true"])
    dead.wait()
    (jobs / f"train-20260101-000000-{dead.pid}-0b").mkdir()
    with Pages({}) as dashboard:
        (jobs / f"train-20260101-000000-{dead.pid}-0b" / "dashboard").write_text(f"{dashboard.url}\n")
        finding = found(leftovers.records, case, "warn")
    assert f"1 jobs whose end nobody saw, train-20260101-000000-{dead.pid}-0b" in finding.what
    assert finding.cure == "make stop"


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", ""])
def test_r4_the_record_of_a_job_whose_cluster_is_gone_can_be_removed(tmp_path, address, capsys):
    case = case_of(tmp_path, RUN_DIR=tmp_path / "a run")
    folder = case.settings.RUN_DIR / "jobs" / "train-20260101-000000-0-0c"
    folder.mkdir(parents=True)
    (folder / "dashboard").write_text(f"{address}\n")
    cure = found(leftovers.records, case, "warn").cure
    subprocess.run(cure.partition(": ")[2], shell=True, check=True)
    assert is_ok(leftovers.records, case)


def test_a_record_of_sessions_and_probes_are_named(tmp_path):
    case = case_of(tmp_path)
    case.settings.RUN_DIR.mkdir()
    (case.settings.RUN_DIR / processes.SESSIONS).write_text("old\n")
    assert found(leftovers.records, case, "warn").cure == "make stop"
    (case.settings.RUN_DIR / processes.SESSIONS).unlink()
    (case.settings.RUN_DIR / ".probe-1").touch()
    assert found(leftovers.records, case, "warn").cure == f"rm {case.settings.RUN_DIR}/.probe-1"


def test_temporary_folders_that_nobody_uses_are_named(tmp_path, sleeper, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name in ("gym-ray-used", "session-somebody", "session-used"):
        (tmp_path / name).mkdir()
    (tmp_path / "gym-ray-file").touch()
    (tmp_path / "session-used" / "input.json").touch()
    sleeper(f"--temp-dir={tmp_path}/gym-ray-used", RELAX_SESSION_IO_DIR=f"{tmp_path}/session-used")
    assert is_ok(leftovers.temporary, case_of(tmp_path))
    (tmp_path / "gym-ray-old").mkdir()
    (tmp_path / "session-old").mkdir()
    (tmp_path / "session-old" / "agent.log").touch()
    assert is_ok(leftovers.temporary, case_of(tmp_path)), "their processes may be about to start"
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    whats = " ".join(each.what for each in found(leftovers.temporary, case_of(tmp_path)))
    assert f"{tmp_path}/gym-ray-old" in whats and f"{tmp_path}/session-old" in whats


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
        process = subprocess.Popen(
            ["sleep", "120"], env={}, **{"cwd": {"cwd": folder}, "file": {"stdin": log, "cwd": "/"}}[lives]
        )
    try:
        assert leftovers.folders(pattern) == []
    finally:
        process.kill()
        process.wait()


def test_the_cure_for_temporary_folders_removes_all_that_are_left_and_nothing_else(tmp_path, sleeper, monkeypatch):
    folder = tmp_path / "with a space"
    monkeypatch.setenv("TMPDIR", str(folder))
    left = {f"gym-ray-{n}" for n in range(30)} | {"gym-ray-two\nlines", "gym-ray-\x1b"}
    for name in left | {"gym-ray-used", "session-somebody"}:
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (0, 0))
    (folder / "gym-ray-new").mkdir()
    sleeper(f"--temp-dir={folder}/gym-ray-used")
    (finding,) = [each for each in found(leftovers.temporary, case_of(tmp_path)) if str(folder) in each.what]
    assert f"{len(left)} folders" in finding.what and len(finding.what + finding.cure) < 500
    subprocess.run(finding.cure, shell=True, cwd=ROOT, check=True, timeout=100)
    assert {path.name for path in folder.iterdir()} == {"gym-ray-used", "session-somebody", "gym-ray-new"}


def test_objects_in_shared_memory_that_nobody_has_open_are_named(tmp_path):
    for name in ("plasma1", "plasma2", "other"):
        (tmp_path / name).write_bytes(bytes(4096))
    with (tmp_path / "plasma1").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert leftovers.objects(tmp_path) == [tmp_path / "plasma2"]
    with (tmp_path / "plasma1").open("rb"):
        assert leftovers.objects(tmp_path) == [tmp_path / "plasma2"]
    assert leftovers.objects(tmp_path) == [tmp_path / "plasma1", tmp_path / "plasma2"]


def test_only_files_are_objects_of_ray(tmp_path):
    (tmp_path / "plasmashell-cache").mkdir()
    (tmp_path / "plasma-link").symlink_to(tmp_path)
    assert leftovers.objects(tmp_path) == []
