"""Training on a real Ray cluster of two nodes and a real graph, with a stand-in for the trainer's checkout.

The stand-in refuses whatever is not the contract's, argument by argument, and then rolls out for
real; it trains nothing, and acceptance has to say so. The cluster, and a graph that allows its
address, are started once for this module.
"""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

import ray_jobs
from graph import SCRIPTS, Graph, eventually, free_block, own_address
from settings import ROOT
from two_nodes import Cluster

pytestmark = pytest.mark.timeout(900)
STANDIN = ROOT / "tests" / "train" / "standin"
RUN_SCRIPT = SCRIPTS / "run-qwen3-4B-8xgpu.sh"


class Place:
    """Everything a run needs: a graph, a cluster, and a folder; `run` starts a stage with variables that lead there."""

    def __init__(self, folder, graph, cluster):
        self.folder, self.graph, self.cluster = folder, graph, cluster
        shutil.copytree(STANDIN, folder / "relax")
        self.make_files(folder, graph.row)

    @staticmethod
    def make_files(folder, row, **changes):
        (folder / "models" / "Qwen3-4B").mkdir(parents=True)
        for name in ("config.json", "tokenizer.json"):
            (folder / "models" / "Qwen3-4B" / name).write_text("{}")
        (folder / "rows.jsonl").write_text(json.dumps(row | changes) + "\n")

    def environment(self, **changes):
        ours = {
            "RAY_ADDRESS": self.cluster.address,
            "RAY_DASHBOARD_ADDRESS": self.cluster.dashboard_url,
            "GYM_HOST": self.cluster.host,
            "RELAX_ROOT": str(self.folder / "relax"),
            "RELAX_PYTHON": sys.executable,
            "RELAX_API_PORT": str(self.cluster.base + 99),
            "NEMO_GYM_SOURCE_DATA": str(self.folder / "rows.jsonl"),
            "MODEL_DIR": str(self.folder / "models"),
            "EXP_DIR": str(self.folder / "exp"),
            "RUN_DIR": str(self.folder / "run"),
            "NEMO_GYM_N_SAMPLES_PER_PROMPT": "2",
        }
        return self.graph.env | ours | changes

    def start(self, *command, **changes):
        return subprocess.Popen(
            [str(word) for word in command],
            env=self.environment(**changes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, stage, **changes):
        """(exit status, output) of a stage, its secrets looked for."""
        process = self.start(sys.executable, SCRIPTS / f"{stage}.py", **changes)
        output, _ = process.communicate(timeout=600)
        assert self.graph.token not in output and "Traceback" not in output, output
        return process.returncode, output

    def jobs(self):
        """{submission id: what Ray knows of the job}."""
        _, answer = ray_jobs.Dashboard(self.cluster.dashboard_url).ask("GET", "/api/jobs/")
        return {job["submission_id"]: job for job in answer if job["submission_id"]}

    def live(self, kind="train-"):
        return [name for name, job in self.jobs().items() if name.startswith(kind) and job["status"] == "RUNNING"]

    def on_file(self):
        return [job.id for job in ray_jobs.open_jobs(self.folder / "run")]

    def samples(self):
        folder = self.folder / "exp" / "Qwen3-4B_mcore_8xgpu" / "rollout_result" / "train"
        return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory, example_rows):
    folder = tmp_path_factory.mktemp("train")
    host = own_address()
    networks = f"10.0.0.0/8{f',{host}/32' if host else ''}"
    graph = Graph(
        folder / "graph",
        example_rows[0],
        GYM_BIND_HOST="0.0.0.0" if host else "127.0.0.1",
        NEMO_GYM_CALLBACK_ALLOWED_NETWORKS=networks,
    )
    (folder / "differs").mkdir()
    (folder / "shown").mkdir()
    Place.make_files(folder / "differs", example_rows[0])
    (folder / "shown" / "rows.jsonl").write_text(json.dumps(example_rows[0] | {"id": 77}) + "\n")
    cluster = None
    try:
        graph.up()
        cluster = Cluster(free_block(), folder / "differs", folder / "shown")
        cluster.up()
        yield Place(folder, graph, cluster)
    finally:
        if cluster:
            cluster.down()
        graph.stop()


def test_a_run_from_the_plan_to_the_verdict(place):
    known = set(place.jobs())
    status, output = place.run("train", NEMO_GYM_NUM_ROLLOUT="2")
    assert status == 0, output
    for words in (
        f"dashboard {place.cluster.dashboard_url}",
        "8 asked, 8 free",
        "2 of 1 rows x 2 samples, 2 samples a step; 4 samples in all",
        "2 looked at in",
        f"called the model at http://{place.cluster.host}:{place.cluster.base + 99}/agentic_api",
        "Ray job SUCCEEDED: train-",
        "rollouts 2/2, samples 4/4, mean reward 1.000, mixed groups 0%, truncated 0, failed 0",
        "This proves no rollout and no training step: make accept",
    ):
        assert words in output, words
    assert [(item["rollout_id"], item["reward"]) for item in place.samples()] == [(0, 1.0)] * 2 + [(1, 1.0)] * 2
    [job] = [job for name, job in place.jobs().items() if name.startswith("train-") and name not in known]
    log = (place.folder / "run" / "logs" / f"{job['submission_id']}.log").read_text()
    assert "stand-in trainer: arguments and variables are the contract's" in log
    assert place.graph.token not in json.dumps(place.jobs()) + log and not place.on_file()

    status, output = place.run("accept")
    assert status == 1, output
    assert "services ready:     passed" in output and "verifier contract:  passed" in output
    assert "model rollout:      passed" in output and "rollout_result/train/0.jsonl:1: completed, reward 1.0" in output
    assert "training step:      failed" in output and "no line with the metrics of an optimizer step" in output
    report = json.loads((place.folder / "run" / "accept.json").read_text())
    assert report["run"] == job["submission_id"]
    place.graph.wait_released()


def test_a_smoke_run_on_a_cluster_is_the_same_path_with_one_sample(place):
    before = len(place.samples())
    status, output = place.run("smoke", RUN_DIR=str(place.graph.run_dir))
    assert "1 of 1 rows x 1 samples, 1 samples a step; 1 samples in all" in output, output
    assert "kept, its fingerprint matches" in output and "Ray job SUCCEEDED: train-" in output
    # The stand-in trains nothing, and that is the one thing missing.
    assert status == 1 and "acceptance failed: training step" in output
    assert len(place.samples()) == before + 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"MODEL_DIR": "differs/models"}, "differs/models/Qwen3-4B: No such file or directory (MODEL_DIR)"),
        ({"NEMO_GYM_SOURCE_DATA": "differs/rows.jsonl"}, "rows.jsonl: other contents than on the submitting machine"),
        ({"EXP_DIR": "differs/exp"}, "differs/exp: does not show what the submitting machine wrote there (EXP_DIR)"),
    ],
)
def test_a_node_that_differs_is_named(place, changes, said):
    if not place.cluster.differs:
        pytest.skip("no mount namespace to be had here")
    known = set(place.jobs())
    status, output = place.run("train", **{name: str(place.folder / path) for name, path in changes.items()})
    faults = [line for line in output.splitlines() if line.startswith("error: ")]
    assert status == 1 and len(faults) == 1 and faults[0].startswith("error: node "), output
    assert said in faults[0]
    assert not [name for name in set(place.jobs()) - known if name.startswith("train-")]


def test_callback_networks_that_do_not_cover_the_trainer_are_refused(place, graph):
    if not own_address():
        pytest.skip("no address beyond loopback")
    url = f"http://{place.cluster.host}:{graph.settings.port('gateway')}"
    status, output = place.run("train", NEMO_GYM_URL=url, GATEWAY_TOKEN=graph.token)
    assert status == 1, output
    assert f"{url}: its callback networks do not cover the trainer's address {place.cluster.host}" in output


def test_a_gateway_token_that_is_wrong_is_refused(place):
    status, output = place.run("train", GATEWAY_TOKEN="another")
    assert status == 1 and "the Gateway answered 401" in output, output


def test_a_job_that_cannot_be_placed_is_given_up_and_stopped(place):
    entrypoint = place.folder / "relax" / "scripts" / "entrypoint" / "ray-job.sh"
    changes = {"JOB_PENDING_TIMEOUT_S": "10", "SUBMIT_PYTHON": sys.executable}
    process = place.start("bash", entrypoint, RUN_SCRIPT, "--cpus", "1000", **changes)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "did not start within 10 s (JOB_PENDING_TIMEOUT_S) and was stopped; it asked for 1000 CPU" in output
    assert not place.live() and not place.on_file()


def test_a_trainer_that_fails_shows_the_end_of_its_log(place):
    status, output = place.run("train", STANDIN_CRASH="1")
    assert status == 1, output
    assert "Ray job FAILED: train-" in output and "last lines of " in output
    assert "  | stand-in trainer: ends badly, as told" in output


def test_an_entrypoint_that_is_locked_is_said(place):
    status, output = place.run("train", STANDIN_LOCKED="1")
    assert status == 1 and "the trainer's entrypoint is locked by another submission" in output, output


def begin(place):
    """A long run, and the id of its job once it rolls out."""
    before = len(place.samples())
    process = place.start(sys.executable, SCRIPTS / "train.py", NEMO_GYM_NUM_ROLLOUT="500")

    def rolls_out():
        assert process.poll() is None, process.communicate()[0]
        return len(place.samples()) > before and place.live()

    [job] = eventually(rolls_out, 200, 0.5)
    return process, job


def test_a_busy_cluster_is_refused_and_ctrl_c_stops_the_job(place):
    process, job = begin(place)
    status, output = place.run("train")
    assert status == 1 and f"which the trainer's entrypoint would stop: {job} RUNNING" in output, output
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and f"interrupted; job {job} is STOPPED" in output, output
    assert place.jobs()[job]["status"] == "STOPPED" and not place.on_file()
    place.graph.wait_released(60)


def test_a_job_whose_client_died_is_stopped_by_make_stop(place):
    process, job = begin(place)
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    for pid in [process.pid, *map(int, children.stdout.split())]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    assert place.on_file() == [job] and place.live() == [job]
    status, output = place.run("stop", GYM_BASE_PORT=str(free_block()))
    assert status == 0 and f"job {job}: STOPPED" in output, output
    assert not place.on_file() and not place.live()
    place.graph.wait_released(60)


@pytest.mark.slow
def test_sessions_spread_over_two_graphs(place, example_rows):
    second = Graph(
        place.folder / "second",
        example_rows[0],
        GYM_BIND_HOST=place.graph.env["GYM_BIND_HOST"],
        NEMO_GYM_CALLBACK_ALLOWED_NETWORKS=place.graph.env["NEMO_GYM_CALLBACK_ALLOWED_NETWORKS"],
    )
    second.env["GATEWAY_TOKEN"] = place.graph.token
    try:
        second.up()
        ports = [each.settings.port("gateway") for each in (place.graph, second)]
        urls = [f"http://{place.cluster.host}:{port}" for port in ports]
        before = [trials(each) for each in (place.graph, second)]
        status, output = place.run("train", GYM_URLS=",".join(urls), NEMO_GYM_N_SAMPLES_PER_PROMPT="12")
        assert status == 0 and "samples 12/12, mean reward 1.000" in output, output
        # One trial each is the check's.
        gained = [trials(each) - start - 1 for each, start in zip((place.graph, second), before, strict=True)]
        assert sum(gained) == 12 and min(gained) > 0
        place.graph.wait_released()
    finally:
        second.stop()


def trials(graph):
    return graph.health()[1]["trials"]


def test_the_stand_in_refuses_what_is_not_the_contracts(place):
    text = (SCRIPTS / "qwen3-4B-8gpu.yaml").read_text().replace("eps-clip-high: 0.28", "eps-clip-high: 0.3")
    (place.folder / "wrong.yaml").write_text(text)
    status, output = place.run("train", TRAIN_ARGUMENTS=str(place.folder / "wrong.yaml"))
    assert status == 1 and "--eps-clip-high 0.3 is not 0.28" in output, output
