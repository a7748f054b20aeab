"""The doctor on training: scripted dashboards, and processes that look like Rays."""

import json
import shutil

import pytest

import doctor
from checks import registry, trainer
from common import settings as variables
from common.settings import ROOT
from support.doctor_case import PROXY_PAGE, Pages, case_of, found, is_ok
from support.scripted_dashboard import ScriptedDashboard
from support.task_rows import SMALL

STANDIN = ROOT / "tests" / "train" / "standin"


@pytest.fixture
def dashboard():
    with ScriptedDashboard() as server:
        yield server


@pytest.fixture
def train(tmp_path, dashboard):
    """A case of training in which all is well, but for what a test changes."""
    (tmp_path / "rows.jsonl").write_text((json.dumps(SMALL) + "\n") * 3)
    shutil.copytree(STANDIN, tmp_path / "relax_root")
    good = {"RAY_ADDRESS": "127.0.0.1:6379", "RAY_DASHBOARD_ADDRESS": dashboard.url}
    good |= {"NEMO_GYM_SOURCE_DATA": tmp_path / "rows.jsonl"}
    return lambda **changes: case_of(tmp_path, "train", **{**good, **changes})


def test_without_a_cluster_only_the_stage_itself_asks_for_one(tmp_path):
    for look in (trainer.checkout, trainer.budgets, trainer.gateways, trainer.cluster, trainer.ray_version):
        assert "rehearsed on this machine" in found(look, case_of(tmp_path), "ok").what
    assert "RAY_ADDRESS is empty" in found(trainer.cluster, case_of(tmp_path, "train"), "fail").what


def test_the_trainers_checkout(train, tmp_path, monkeypatch):
    assert "trainer:" in found(trainer.checkout, train(), "ok").what
    finding = found(trainer.checkout, train(RELAX_ROOT=tmp_path / "nowhere"), "fail")
    assert "ray-job.sh: not there" in finding.what and "make relax" in finding.cure
    monkeypatch.setenv("RAY_NO_WAIT", "1")
    assert "unset it" in found(trainer.checkout, train(), "fail").cure


def test_budgets_that_contradict_one_another_are_each_named(train):
    assert "rollouts:" in found(trainer.budgets, train(), "ok").what
    findings = found(trainer.budgets, train(AGENT_TIMEOUT_S="100", NEMO_GYM_MAX_RESPONSE_LEN="9000"))
    said = " ".join(finding.what for finding in findings)
    assert {finding.verdict for finding in findings} == {"fail"} and len(findings) == 2
    assert "AGENT_TIMEOUT_S 100 > NEMO_GYM_DEADLINE_S 600" in said and "rollout-max-response-len 9000" in said
    assert "No such file" in found(trainer.budgets, train(NEMO_GYM_SOURCE_DATA="/nowhere.jsonl"), "fail").what


def test_r2_r5_r6_a_cluster_has_gpus_and_no_jobs_or_what_it_lacks_is_named(train, dashboard):
    assert "8 asked, 8 free" in found(trainer.cluster, train(), "ok").what
    dashboard.jobs["j1"] = {"submission_id": "j1", "status": "RUNNING", "entrypoint": "python train.py", "metadata": {}}
    busy = found(trainer.cluster, train(), "fail")
    assert "j1 RUNNING" in busy.what and "FORCE=1" in busy.cure
    assert is_ok(trainer.cluster, train(FORCE="1"))
    dashboard.jobs.clear()
    loopback = found(trainer.cluster, train(RAY_ADDRESS="10.9.9.9:6379"), "fail")
    assert "means each node itself" in loopback.what and "GYM_HOST" in loopback.cure
    dashboard.gpus["worker"] = "4.0/8.0 GPU"
    assert "8 GPUs asked" in found(trainer.cluster, train(), "fail").what


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
    names = {check.name for check in registry.CHECKS if check.belongs_to(smoke)}
    assert {"trainer", "model", "cluster", "cluster's Ray", "gateways"} <= names
    assert smoke.settings.is_given("SPLIT") and smoke.settings.SPLIT == "example" and smoke.settings.LIMIT == 1
    alone = doctor.case_of("smoke", case_of(tmp_path).settings, [])
    assert "trainer" not in {check.name for check in registry.CHECKS if check.belongs_to(alone)}
    assert "make smoke starts it" in found(trainer.gateways, case_of(tmp_path, "smoke", RAY_ADDRESS="h:1"), "ok").what


def test_what_is_no_dashboard_is_named(train):
    with Pages({"/api/jobs/": PROXY_PAGE, "/nodes": PROXY_PAGE, "/api/version": (503, PROXY_PAGE)}) as proxy:
        case = train(RAY_DASHBOARD_ADDRESS=proxy.url)
        assert "no list of jobs" in found(trainer.cluster, case, "fail").what
        assert "<html>" in found(trainer.ray_version, case, "fail").what
    assert "does not answer" in found(trainer.cluster, case, "fail").what
    assert "<head>:<port>" in found(trainer.cluster, train(RAY_ADDRESS="10.0.0.5"), "fail").what


def test_the_clusters_ray_is_compared_with_ours(train):
    ours = trainer.own_ray()
    assert trainer.PIN.search((ROOT / "scripts" / "requirements.txt").read_text())[1] == ours
    for theirs, verdict in ((ours, "ok"), ("1.9.2", "warn")):
        with Pages({"/api/version": {"ray_version": theirs}}) as pages:
            finding = found(trainer.ray_version, train(RAY_DASHBOARD_ADDRESS=pages.url), verdict)
            assert theirs in finding.what and ours in finding.what


def test_gateways_are_ready_and_alike(train):
    def state(tree, ready=True):
        return (200 if ready else 503, {"ready": ready, "service_epoch": "e", "environment": {"tree": tree}})

    with Pages({"/readyz": state("a")}) as one, Pages({"/readyz": state("a")}) as two:
        case = train(GYM_URLS=f"{one.url},{two.url}")
        assert "2 ready, one environment" in found(trainer.gateways, case, "ok").what
        for page, said in ((state("b"), "not the same environment"), (state("a", ready=False), "not ready")):
            two.pages["/readyz"] = page
            assert said in found(trainer.gateways, case, "fail").what


def test_two_rays_on_one_port_are_named(tmp_path, start):
    heads = [start("", "--gcs_server_port=7999", name="/opt/ray/gcs_server")]
    assert 7999 in trainer.gcs_ports() and is_ok(trainer.second_ray, case_of(tmp_path))
    heads.append(start("", "--gcs_server_port=7999", name="/opt/ray/gcs_server"))
    finding = found(trainer.second_ray, case_of(tmp_path), "fail")
    assert "2 Rays have port 7999" in finding.what and all(str(process.pid) in finding.what for process in heads)


def test_the_gyms_own_ray_is_no_cluster_to_train_on(tmp_path):
    for port in (6382, 29100):
        finding = found(trainer.second_ray, case_of(tmp_path, RAY_ADDRESS=f"127.0.0.1:{port}"), "fail")
        assert "this clone's private Ray" in finding.what
    assert is_ok(trainer.second_ray, case_of(tmp_path, RAY_ADDRESS="[::1"))


def test_a_gpu_machine_needs_an_engine(tmp_path, no_engine):
    assert is_ok(trainer.container_host, case_of(tmp_path))
    case = case_of(tmp_path, "ray-up", RELAX_HOST="10.0.0.5")
    assert "no Docker engine answers" in found(trainer.container_host, case, "fail").what


def test_a_gpu_machine_has_its_gpus(tmp_path, engine):
    labels = {"Labels": {"workplace-assistant.trainer": "1"}}
    running = {"Id": "1", "Name": "/relax-train", "State": {"Status": "running"}, "Config": labels}
    engine.put("containers/relax-train/json", running)
    case = case_of(tmp_path, "ray-up", RELAX_HOST="10.0.0.5")
    assert "0 NVIDIA GPUs here, 8 are asked for" in trainer.container_host(case, tmp_path).what
    for number in range(8):
        (tmp_path / f"nvidia{number}").touch()
    assert trainer.container_host(case, tmp_path).verdict == "ok"
