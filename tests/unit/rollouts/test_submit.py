"""The rehearsal's job as it is submitted, and what runs in it before the driver."""

import json
import os
import subprocess

from common import program
from proofs.rig import eventually
from support.scripted_dashboard import ScriptedDashboard
from support.scripted_gateway import ScriptedGateway

ROW = {"id": 1, "category": "c", "environment_name": "workplace_assistant", "ground_truth": []}
ROW |= {"responses_create_params": {"input": [{"role": "user", "content": "hello"}]}}
TOKEN = "never-show-me"


def submit(folder, dashboard, *options):
    (folder / "rows.jsonl").write_text((json.dumps(ROW) + "\n") * 3)
    places = {"RUN_DIR": str(folder / "run"), "EXP_DIR": str(folder / "exp")}
    cluster = {"RAY_ADDRESS": "127.0.0.1:6379", "RAY_DASHBOARD_ADDRESS": dashboard.url, "GATEWAY_TOKEN": TOKEN}
    return subprocess.Popen(
        program.room("rollouts.submit", "--nemo-gym-source-data", str(folder / "rows.jsonl"), *options),
        env=os.environ | places | cluster,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_job_that_fails_fails_the_run_and_shows_no_secret(tmp_path):
    with ScriptedDashboard() as dashboard:
        dashboard.ends = "FAILED"
        process = submit(tmp_path, dashboard)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "Ray job FAILED: rehearsal-" in output and "last lines of " in output
    assert TOKEN not in json.dumps(dashboard.submitted) + output
    assert not list((tmp_path / "run" / "jobs").iterdir())


def test_the_job_gets_the_rows_and_the_secrets_as_files_and_an_interruption_stops_it(tmp_path):
    with ScriptedDashboard() as dashboard:
        dashboard.ends = "RUNNING"
        process = submit(tmp_path, dashboard, "--limit", "2")
        eventually(lambda: dashboard.jobs)
        [folder] = (tmp_path / "run" / "jobs").iterdir()
        lines = (folder / "prompts.jsonl").read_text().splitlines()
        assert [json.loads(line)["metadata"]["id"] for line in lines] == [1, 1]
        assert f"--prompt-data {folder}/prompts.jsonl" in dashboard.submitted[0]["entrypoint"]
        assert json.loads((folder / "secrets.json").read_text())["GATEWAY_TOKEN"] == TOKEN
        process.terminate()
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and f"interrupted; job {folder.name} is STOPPED" in output
    assert not folder.exists()


def test_the_driver_starts_with_the_secrets_once_the_gateway_is_ready(tmp_path):
    secrets = tmp_path / "secrets.json"
    secrets.write_text(json.dumps({"GATEWAY_TOKEN": TOKEN}))
    command = program.stage("job", "--secrets", str(secrets), "--", "sh", "-c", "echo $GATEWAY_TOKEN; exit 7")
    with ScriptedGateway(get=[503, (200, {"ready": True}, {})]) as gateway:
        environment = os.environ | {"NEMO_GYM_URL": gateway.url}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (7, f"{gateway.url} ready\n{TOKEN}\n"), done.stderr
    assert not secrets.exists()
    environment |= {"NEMO_GYM_STARTUP_TIMEOUT_S": "1"}
    done = subprocess.run(command[:2] + ["--", "true"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "is not ready (NEMO_GYM_STARTUP_TIMEOUT_S=1)" in done.stderr
