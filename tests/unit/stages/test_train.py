"""What `make train` refuses before anything is submitted, and the exits of its submission; no Ray."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cluster import jobs
from common.failure import Failure
from common.program import SCRIPTS
from common.settings import ROOT
from support.doctor_case import Pages
from support.programs import run
from support.scripted_dashboard import ScriptedDashboard
from support.task_rows import SMALL

STANDIN = ROOT / "tests" / "train" / "standin"
READY = {"ready": True, "service_epoch": "e1", "gym_commit": "c", "environment": {"tree": "t"}}


@pytest.fixture
def gateways():
    with Pages({"/readyz": dict(READY)}) as first, Pages({"/readyz": dict(READY)}) as second:
        yield [first, second]


@pytest.fixture
def dashboard():
    with ScriptedDashboard() as server:
        yield server


@pytest.fixture
def place(tmp_path):
    """A folder with everything that a plan needs."""
    (tmp_path / "rows.jsonl").write_text((json.dumps(SMALL) + "\n") * 3)
    shutil.copytree(STANDIN, tmp_path / "relax")
    model = tmp_path / "models" / "Qwen3-4B"
    model.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    return tmp_path


def variables(place, gateways, dashboard, **changes):
    kept = {name: text for name, text in os.environ.items() if name not in ("RAY_NO_WAIT", "WORKING_DIR")}
    folders = {"RELAX_ROOT": "relax", "MODEL_DIR": "models", "EXP_DIR": "exp", "RUN_DIR": "run"}
    paths = {name: str(place / folder) for name, folder in folders.items()}
    paths |= {"NEMO_GYM_SOURCE_DATA": str(place / "rows.jsonl"), "RELAX_PYTHON": sys.executable}
    addresses = {"NEMO_GYM_URL": gateways[0].url, "RAY_ADDRESS": "127.0.0.1:6379"}
    return kept | paths | addresses | {"RAY_DASHBOARD_ADDRESS": dashboard.url} | changes


def train(environment, script="train.py"):
    done = run(sys.executable, SCRIPTS / script, env=environment)
    assert "Traceback" not in done.stderr
    return done


def test_a_dry_run_prints_the_plan_and_writes_the_submission(place, gateways, dashboard):
    done = train(variables(place, gateways, dashboard, DRY_RUN="1", LIMIT="2", GATEWAY_TOKEN="never-show-me"))
    assert done.returncode == 0, done.stderr
    for words in (
        f"dashboard {dashboard.url}",
        "10.0.0.5 (head): 0 of 0 GPUs free",
        "10.0.0.6: 8 of 8 GPUs free",
        "8 asked, 8 free",
        f"2 of {place}/rows.jsonl, sha256",
        "2 of 1 rows x 4 samples, 4 samples a step; 8 samples in all",
        f"bash {place}/relax/scripts/entrypoint/ray-job.sh {SCRIPTS}/run-qwen3-4B-8xgpu.sh",
        f"{gateways[0].url} ready",
    ):
        assert words in done.stdout, words
    text = (place / "run" / "train" / "submission.json").read_text()
    job = json.loads(text)["job"]
    assert "-m relax.entrypoints.train --swiglu --num-layers 36" in job["entrypoint"]
    assert "--rollout-max-context-len 8192" in job["entrypoint"] and "--num-rollout 2" in job["entrypoint"]
    assert job["runtime_env"]["py_executable"] == sys.executable
    assert "never-show-me" not in text + done.stdout
    assert not dashboard.submitted and not (place / "exp").exists()


def test_all_faults_are_named_at_once(place, gateways, dashboard):
    shutil.rmtree(place / "relax" / "scripts" / "models")
    (place / "models" / "Qwen3-4B" / "tokenizer.json").write_text("")
    gateways[0].pages["/readyz"] = (503, READY | {"ready": False})
    dashboard.gpus["worker"] = "4.0/8.0 GPU"
    dashboard.jobs["other"] = {"submission_id": "other", "status": "RUNNING", "entrypoint": "python else.py"}
    changes = {"NEMO_GYM_GLOBAL_BATCH_SIZE": "3", "RAY_NO_WAIT": "1", "WORKING_DIR": "/x"}
    done = train(variables(place, gateways, dashboard, **changes))
    assert done.returncode == 1
    for words in (
        "RAY_NO_WAIT is set; the job is followed in the foreground",
        "WORKING_DIR is set",
        "global-batch-size 3 does not divide",
        "scripts/models/qwen3-4B.sh: not there; set RELAX_ROOT to a checkout, or make relax",
        "Qwen3-4B/tokenizer.json: not there or empty; set MODEL_DIR, or make model",
        f"{gateways[0].url}/readyz: not ready; make gym-up",
        "8 GPUs asked, 8 of them on one node; free: 10.0.0.5 (head): 0 of 0 GPUs free; 10.0.0.6: 4 of 8",
        "1 job(s) run on 127.0.0.1:6379, which the trainer's entrypoint would stop: other RUNNING: python else.py",
    ):
        assert words in done.stderr, words
    assert not dashboard.submitted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RAY_ADDRESS": ""}, "RAY_ADDRESS is empty; set it to the cluster's <head>:6379, or make ray-up"),
        ({"RAY_ADDRESS": "http://x"}, "is not <head>:<port>"),
        ({"RAY_ADDRESS": "10.9.9.9:6379"}, "means each node itself on the cluster at 10.9.9.9; set GYM_HOST"),
        ({"RAY_DASHBOARD_ADDRESS": "http://127.0.0.1:9"}, "Ray's dashboard does not answer"),
        ({"NEMO_GYM_SOURCE_DATA": "/nowhere.jsonl"}, "/nowhere.jsonl: No such file"),
        ({"LIMIT": "x"}, "environment: LIMIT='x' is not a whole number"),
    ],
)
def test_what_is_refused_by_itself(place, gateways, dashboard, changes, said):
    done = train(variables(place, gateways, dashboard, **changes))
    assert done.returncode in (1, 2) and said in done.stderr, done.stderr
    assert not dashboard.submitted


def test_gateways_of_two_environments_are_refused(place, gateways, dashboard):
    both = ",".join(server.url for server in gateways)
    done = train(variables(place, gateways, dashboard, GYM_URLS=both, DRY_RUN="1"))
    assert done.returncode == 0 and done.stdout.count("ready, c") == 2
    gateways[1].pages["/readyz"]["environment"] = {"tree": "other"}
    done = train(variables(place, gateways, dashboard, GYM_URLS=both, DRY_RUN="1"))
    assert done.returncode == 1 and "not the same environment; a reward must mean the same" in done.stderr


def test_a_busy_cluster_is_taken_over_only_by_force(place, gateways, dashboard):
    dashboard.gpus["worker"] = "8.0/8.0 GPU"
    dashboard.jobs["other"] = {"submission_id": "other", "status": "PENDING", "entrypoint": "x"}
    done = train(variables(place, gateways, dashboard, DRY_RUN="1", FORCE="1"))
    assert done.returncode == 0 and "8 asked, 8 in all" in done.stdout
    assert "running:      other PENDING: x" in done.stdout


def test_gpus_of_a_job_that_just_ended_are_waited_for_and_our_own_looks_are_no_jobs(place, gateways, dashboard):
    passing = {"submission_id": "check-1", "status": "RUNNING", "entrypoint": "x", "metadata": {jobs.PASSING: "1"}}
    dashboard.jobs["check-1"], dashboard.gpus["worker"] = passing, "8.0/8.0 GPU"
    threading.Timer(4, lambda: dashboard.gpus.update(worker="0.0/8.0 GPU")).start()
    done = train(variables(place, gateways, dashboard, DRY_RUN="1"))
    assert done.returncode == 0 and "8 asked, 8 free" in done.stdout and "check-1" not in done.stdout, done.stderr


# --- what the nodes tell, and the entrypoint -----------------------------------------------


def test_what_a_node_lacks_is_named_with_the_node_and_nothing_is_submitted(place, gateways, dashboard):
    dashboard.looked |= {"nodes": {"10.0.0.5 (h)": [], "10.0.0.6 (w)": ["/x: No such file", "/y: other contents"]}}
    dashboard.looked |= {"trials": ["http://g: its callback networks do not cover the trainer's address"]}
    done = train(variables(place, gateways, dashboard))
    assert done.returncode == 1 and done.stderr.splitlines()[-3:] == [
        "error: node 10.0.0.6 (w): /x: No such file",
        "error: node 10.0.0.6 (w): /y: other contents",
        "error: http://g: its callback networks do not cover the trainer's address",
    ]
    assert not dashboard.submitted and os.listdir(place / "exp") == []
    assert not jobs.open_jobs(place / "run")


def test_an_entrypoint_that_is_locked_is_said(place, gateways, dashboard):
    done = train(variables(place, gateways, dashboard, STANDIN_LOCKED="1"))
    assert done.returncode == 1 and "the trainer's entrypoint is locked by another submission" in done.stderr
    assert "2 looked at in" in done.stdout and not dashboard.submitted


def test_without_rows_the_budgets_are_shown_all_the_same(place, gateways, dashboard):
    changes = {"NEMO_GYM_SOURCE_DATA": "", "DATA_ROOT": str(place / "none"), "LIMIT": "32"}
    done = train(variables(place, gateways, dashboard, NEMO_GYM_GLOBAL_BATCH_SIZE="3", DRY_RUN="1", **changes))
    assert done.returncode == 1
    assert "not read; the figures below are for 32 of them" in done.stdout
    assert "32 of 1 rows x 4 samples, 3 samples a step; 128 samples in all" in done.stdout
    assert "workplace_assistant_train.jsonl: No such file or directory; make data SPLIT=train" in done.stderr
    assert "global-batch-size 3 does not divide" in done.stderr


# --- the run script and what it leads to ---------------------------------------------------


RUN_SCRIPT = SCRIPTS / "run-qwen3-4B-8xgpu.sh"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "MODEL_CONFIG_DIR is not set; the trainer's entrypoint sets it: make train"),
        ({"MODEL_CONFIG_DIR": "/nowhere"}, "/nowhere/qwen3-4B.sh is not there"),
        ({"MODEL_CONFIG_DIR": "/nowhere", "RAY_NO_WAIT": "1"}, "RAY_NO_WAIT is set"),
        ({"MODEL_CONFIG_DIR": "/nowhere", "WORKING_DIR": "1"}, "WORKING_DIR is set"),
        ({"MODEL_CONFIG_DIR": str(STANDIN / "scripts" / "models")}, "RUNTIME_ENV_JSON is not set; this runs under"),
        ({"MODEL_CONFIG_DIR": "empty"}, "empty/qwen3-4B.sh sets no MODEL_ARGS"),
    ],
)
def test_the_run_script_refuses_to_run_outside_the_entrypoint(tmp_path, changes, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "qwen3-4B.sh").write_text("MODEL_ARGS=()\n")
    environment = {"PATH": os.environ["PATH"], "SUBMIT_PYTHON": sys.executable} | changes
    done = run("bash", RUN_SCRIPT, env=environment, cwd=tmp_path)
    assert done.returncode == 1 and said in done.stderr, done.stderr


def by_hand(environment):
    """The run script under the trainer's entrypoint, without `make train` before it."""
    entrypoint = Path(environment["RELAX_ROOT"]) / "scripts" / "entrypoint" / "ray-job.sh"
    return run("bash", entrypoint, RUN_SCRIPT, env=environment | {"SUBMIT_PYTHON": sys.executable})


def test_the_entrypoint_submits_the_plan_that_was_made_and_makes_the_same_by_hand(place, gateways, dashboard):
    dashboard.ends = "FAILED"
    environment = variables(place, gateways, dashboard, LIMIT="2", GATEWAY_TOKEN="never-show-me")
    for start in (train, by_hand):
        done = start(environment)
        assert done.returncode == 1 and "Ray job FAILED: train-" in done.stdout, done.stderr
        assert "never-show-me" not in done.stdout + done.stderr
    entrypoints = []
    for job in dashboard.submitted:
        name = job["submission_id"]
        assert f" GATEWAY_TOKEN_FILE={place}/run/jobs/{name}/token " in job["entrypoint"]
        assert "never-show-me" not in json.dumps(job)
        assert job["runtime_env"]["env_vars"]["PYTHONPATH"].startswith(f"{place}/relax:")
        lines = (place / "exp/Qwen3-4B_mcore_8xgpu/runs" / f"{name}.prompts.jsonl").read_text().splitlines()
        assert [json.loads(line)["metadata"]["id"] for line in lines] == [1, 1]
        entrypoints.append(job["entrypoint"].replace(name, "ID"))
    assert len(entrypoints) == 2 and len(set(entrypoints)) == 1
    assert entrypoints[0].endswith("/runs/ID.prompts.jsonl")
    # The plan and the token go with the run.
    assert not list((place / "run" / "train").iterdir()) and not list((place / "run" / "jobs").iterdir())


def test_results_that_cannot_be_written_are_said_before_ray_hears_of_a_job(place, gateways, dashboard):
    (place / "exp").write_text("a file")
    done = by_hand(variables(place, gateways, dashboard))
    assert done.returncode == 1 and "EXP_DIR and RUN_DIR have to be writable" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not dashboard.submitted and not jobs.open_jobs(place / "run")


# --- make stop -----------------------------------------------------------------------------


def test_stop_confirms_each_job_and_forgets_it(place, gateways, dashboard):
    environment = variables(place, gateways, dashboard, GYM_BASE_PORT="20900")
    known, unknown = (jobs.open_job(place / "run", jobs.Dashboard(dashboard.url), "train") for _ in range(2))
    dashboard.jobs[known.id] = {"submission_id": known.id, "status": "RUNNING"}
    done = train(environment, "stop.py")
    assert done.returncode == 0, done.stderr
    assert f"job {known.id}: STOPPED" in done.stdout and f"job {unknown.id}: unknown to Ray" in done.stdout
    assert not jobs.open_jobs(place / "run")


def test_stop_says_which_job_may_still_run(place, gateways, dashboard):
    job = jobs.open_job(place / "run", jobs.Dashboard("http://127.0.0.1:9"), "train")
    done = train(variables(place, gateways, dashboard, GYM_BASE_PORT="20900"), "stop.py")
    assert done.returncode == 1 and f"job {job.id} may still run: http://127.0.0.1:9" in done.stderr
    assert f"gone for good: rm -r {job.folder}\n" in done.stderr
    assert "Stopped: nothing was running" in done.stdout
    assert [each.id for each in jobs.open_jobs(place / "run")] == [job.id]


def test_a_stop_that_stops_nothing_is_said(dashboard, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "STOP_TIMEOUT_S", 1)
    dashboard.after_stop = None
    job = jobs.open_job(tmp_path, jobs.Dashboard(dashboard.url), "train", "/usr/bin/python3")
    dashboard.jobs[job.id] = {"submission_id": job.id, "status": "RUNNING"}
    with pytest.raises(Failure, match="was told to stop and is still RUNNING after 1 s"):
        job.stop()
    [again] = jobs.open_jobs(tmp_path)
    assert (again.id, again.python, again.dashboard.url) == (job.id, "/usr/bin/python3", dashboard.url)


# --- make relax ----------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(STANDIN, source)
    git = ["git", "-C", str(source), "-c", "user.name=n", "-c", "user.email=e@example.invalid"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    return source


def relax(tmp_path, repository, **changes):
    places = {"RELAX_ROOT": str(tmp_path / "relax"), "RELAX_URL": str(repository)}
    return train(os.environ | places | changes, "fetch_relax.py")


def test_a_checkout_is_cloned_once_and_named_and_another_folder_is_none(tmp_path, repository):
    (tmp_path / "relax").mkdir()
    done = relax(tmp_path, repository)
    assert done.returncode == 1 and "is no checkout of the trainer, it lacks scripts/entrypoint" in done.stderr
    (tmp_path / "relax").rmdir()
    done = relax(tmp_path, repository)
    assert done.returncode == 0 and f"Trainer ready: {tmp_path}/relax at " in done.stdout, done.stderr
    assert (tmp_path / "relax" / "scripts" / "entrypoint" / "ray-job.sh").is_file()
    (tmp_path / "relax" / "mine").write_text("kept")
    assert relax(tmp_path, repository, RELAX_URL="/nowhere").returncode == 0
    assert (tmp_path / "relax" / "mine").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"RELAX_REF": "nope"}, ("git checkout: ", "; set RELAX_REF")),
        ({"RELAX_URL": "/nowhere"}, ("git clone: ", "; check RELAX_URL")),
    ],
)
def test_a_clone_that_fails_leaves_nothing_and_says_what_cures_it(tmp_path, repository, changes, said):
    done = relax(tmp_path, repository, **changes)
    assert done.returncode == 1 and all(words in done.stderr for words in said), done.stderr
    assert not list(tmp_path.glob("relax*"))
