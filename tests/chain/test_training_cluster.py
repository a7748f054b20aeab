"""Training on a real Ray cluster of two nodes and a real graph, with a stand-in for the trainer's checkout.

The stand-in refuses every argument that differs from the contract, and then rolls out for real. It trains
nothing, and acceptance has to say so. The cluster and two graphs that allow its address are started once for
this file, which shares nothing with others. A whole run takes minutes, so each test checks much of one; where
a call of the entrypoint is enough, the checks before it are left out.
"""

import json
import shutil
import signal
import subprocess
import sys

import pytest

from cluster import jobs
from common import program
from common.settings import ROOT
from proofs.rig import SCRIPTS, Graph, eventually, free_block, own_address
from support.two_nodes import Cluster

pytestmark = pytest.mark.timeout(900)
STANDIN = ROOT / "tests" / "train" / "standin"
RUN_SCRIPT = SCRIPTS / "run-qwen3-4B-8xgpu.sh"


class Place:
    """Everything that a run needs: graphs, a cluster and a folder."""

    def __init__(self, folder, graphs, cluster):
        self.folder, self.graphs, self.graph, self.cluster = folder, graphs, graphs[0], cluster
        shutil.copytree(STANDIN, folder / "relax")
        self.make_files(folder, self.graph.row)

    @staticmethod
    def make_files(folder, row):
        (folder / "models" / "Qwen3-4B").mkdir(parents=True)
        for name in ("config.json", "tokenizer.json"):
            (folder / "models" / "Qwen3-4B" / name).write_text("{}")
        (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")

    def environment(self, **changes):
        places = {"RELAX_ROOT": "relax", "NEMO_GYM_SOURCE_DATA": "rows.jsonl", "MODEL_DIR": "models"}
        places |= {"EXP_DIR": "exp", "RUN_DIR": "run"}
        ours = {"RAY_ADDRESS": self.cluster.address, "RAY_DASHBOARD_ADDRESS": self.cluster.dashboard_url}
        ours |= {"GYM_HOST": self.cluster.host, "RELAX_PYTHON": sys.executable, "NEMO_GYM_N_SAMPLES_PER_PROMPT": "2"}
        ours |= {"RELAX_API_PORT": str(self.cluster.base + 99)}
        return self.graph.env | ours | {name: str(self.folder / place) for name, place in places.items()} | changes

    def start(self, *command, **changes):
        output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(list(map(str, command)), env=self.environment(**changes), **output)

    def run(self, stage, **changes):
        """(exit status, output) of a stage, which holds no secret."""
        return self.ended(self.start(*program.stage(stage), **changes))

    def submit(self, *options, **changes):
        """Start the trainer's entrypoint with our run script, without the checks that `make train` makes before."""
        entrypoint = self.folder / "relax" / "scripts" / "entrypoint" / "ray-job.sh"
        return self.start("bash", entrypoint, RUN_SCRIPT, *options, SUBMIT_PYTHON=sys.executable, **changes)

    def ended(self, process):
        output, _ = process.communicate(timeout=600)
        assert self.graph.token not in output and "Traceback" not in output, output
        return process.returncode, output

    def begun(self, process):
        """Wait until the job that a process submits rolls out. Returns its id."""
        before = len(self.samples())

        def rolls_out():
            assert process.poll() is None, process.communicate()[0]
            return len(self.samples()) > before and self.live()

        [job] = eventually(rolls_out, 200, 0.5)
        return job

    def jobs(self):
        """{submission id: what Ray knows of the job}."""
        _, answer = jobs.Dashboard(self.cluster.dashboard_url).ask("GET", "/api/jobs/")
        return {job["submission_id"]: job for job in answer if job["submission_id"]}

    def live(self):
        return [name for name, job in self.jobs().items() if name.startswith("train-") and job["status"] == "RUNNING"]

    def on_file(self):
        return [job.id for job in jobs.open_jobs(self.folder / "run")]

    def samples(self):
        folder = self.folder / "exp" / "Qwen3-4B_mcore_8xgpu" / "rollout_result" / "train"
        return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def place(tmp_path_factory, example_rows):
    folder = tmp_path_factory.mktemp("train")
    host = own_address()
    bind = "0.0.0.0" if host else "127.0.0.1"
    networks = f"10.0.0.0/8{f',{host}/32' if host else ''}"
    allowed = {"GYM_BIND_HOST": bind, "NEMO_GYM_CALLBACK_ALLOWED_NETWORKS": networks, "GYM_START_TIMEOUT_S": "400"}
    graphs = [Graph(folder / "graph", example_rows[0], **allowed)]
    for name in ("differs", "shown"):
        (folder / name).mkdir()
    Place.make_files(folder / "differs", example_rows[0])
    (folder / "shown" / "rows.jsonl").write_text(json.dumps(example_rows[0] | {"id": 77}) + "\n")
    cluster = None
    try:
        graphs[0].up()
        graphs.append(Graph(folder / "second", example_rows[0], **allowed))
        graphs[1].env["GATEWAY_TOKEN"] = graphs[0].token
        graphs[1].up()
        cluster = Cluster(free_block(), folder / "differs", folder / "shown")
        cluster.up()
        yield Place(folder, graphs, cluster)
    finally:
        if cluster:
            cluster.down()
        for graph in graphs:
            graph.stop()


def trials(graph):
    return graph.health()[1]["trials"]


def test_a_run_over_two_graphs_from_the_plan_to_the_verdict(place):
    known, before = set(place.jobs()), [trials(graph) for graph in place.graphs]
    urls = [f"http://{place.cluster.host}:{graph.settings.port('gateway')}" for graph in place.graphs]
    numbers = {"NEMO_GYM_NUM_ROLLOUT": "2", "NEMO_GYM_N_SAMPLES_PER_PROMPT": "6", "NEMO_GYM_GLOBAL_BATCH_SIZE": "3"}
    api = f"http://{place.cluster.host}:{place.cluster.base + 99}/agentic_api"
    status, output = place.run("train", GYM_URLS=",".join(urls), **numbers)
    assert status == 0, output
    for words in (
        f"dashboard {place.cluster.dashboard_url}",
        "8 asked, 8 free",
        "2 of 1 rows x 6 samples, 3 samples a step; 12 samples in all",
        "2 looked at in",
        *(f"a trial at {url} called the model at {api}" for url in urls),
        "Ray job SUCCEEDED: train-",
        "rollouts 2/2, samples 12/12, mean reward 1.000, mixed groups 0%, truncated 0, failed 0",
        "This proves no rollout and no training step: make accept",
    ):
        assert words in output, words
    assert [(item["rollout_id"], item["reward"]) for item in place.samples()] == [(0, 1.0)] * 6 + [(1, 1.0)] * 6
    # The nodes' check played one trial at each Gateway.
    gained = [trials(graph) - start - 1 for graph, start in zip(place.graphs, before, strict=True)]
    assert sum(gained) == 12 and min(gained) > 0
    [job] = [job for name, job in place.jobs().items() if name.startswith("train-") and name not in known]
    log = place.folder / "run" / "logs" / f"{job['submission_id']}.log"
    text = log.read_text()
    assert "stand-in trainer: arguments and variables are the contract's" in text
    assert place.graph.token not in json.dumps(place.jobs()) + text and not place.on_file()

    # Cut the log, as if following the run had been interrupted.
    log.write_text(text[:20])
    status, output = place.run("accept")
    assert status == 1, output
    assert f"run {job['submission_id']}: Ray has it as SUCCEEDED" in output
    assert "services ready:     passed" in output and "verifier contract:  passed" in output
    assert "model rollout:      passed" in output and "rollout_result/train/0.jsonl:1: completed, reward 1.0" in output
    assert "training step:      failed" in output and "no line with the metrics of an optimizer step" in output
    assert (log.with_name(f"{job['submission_id']}.whole.log")).read_text() == text
    report = json.loads((place.folder / "run" / "accept.json").read_text())
    assert report["run"] == job["submission_id"]
    place.graph.wait_released()


def test_a_smoke_run_on_a_cluster_is_the_same_path_with_one_sample(place):
    before = len(place.samples())
    status, output = place.run("smoke", RUN_DIR=str(place.graph.run_dir))
    assert "1 of 1 rows x 1 samples, 1 samples a step; 1 samples in all" in output, output
    assert "kept, its fingerprint matches" in output and "Ray job SUCCEEDED: train-" in output
    # Only the training step is missing, since the stand-in trains nothing.
    assert status == 1 and "acceptance failed: training step" in output
    assert len(place.samples()) == before + 1


def test_a_node_that_differs_is_named_with_each_difference(place):
    if not place.cluster.differs:
        pytest.skip("no mount namespace to be had here")
    known = set(place.jobs())
    changes = {"MODEL_DIR": "models", "NEMO_GYM_SOURCE_DATA": "rows.jsonl", "EXP_DIR": "exp"}
    status, output = place.run("train", **{name: str(place.folder / "differs" / at) for name, at in changes.items()})
    faults = [line for line in output.splitlines() if line.startswith("error: ")]
    assert status == 1 and len(faults) == 3 and all(fault.startswith("error: node ") for fault in faults), output
    assert "rows.jsonl: other contents than on the submitting machine (the rows)" in faults[0]
    assert "differs/models/Qwen3-4B: No such file or directory (MODEL_DIR)" in faults[1]
    assert "differs/exp: does not show what the submitting machine wrote there (EXP_DIR)" in faults[2]
    assert len({fault.split(")")[0] for fault in faults}) == 1, "the other node is as it should be"
    assert not [name for name in set(place.jobs()) - known if name.startswith("train-")]


def test_a_job_that_cannot_be_placed_is_given_up_and_stopped(place):
    status, output = place.ended(place.submit("--cpus", "1000", JOB_PENDING_TIMEOUT_S="10"))
    assert status == 1, output
    assert "did not start within 10 s (JOB_PENDING_TIMEOUT_S) and was stopped; it asked for 1000 CPU" in output
    [name] = [word for word in output.split() if word.startswith("train-")][:1]
    assert place.jobs()[name]["status"] in ("STOPPED", "FAILED") and not place.on_file()


def test_a_trainer_that_refuses_an_argument_fails_the_run_with_the_end_of_its_log(place):
    text = (SCRIPTS / "qwen3-4B-8gpu.yaml").read_text().replace("eps-clip-high: 0.28", "eps-clip-high: 0.3")
    (place.folder / "wrong.yaml").write_text(text)
    status, output = place.ended(place.submit(TRAIN_ARGUMENTS=str(place.folder / "wrong.yaml")))
    assert status == 1, output
    assert "Ray job FAILED: train-" in output and "last lines of " in output
    assert "  | stand-in trainer: --eps-clip-high 0.3 is not 0.28" in output


def test_a_busy_cluster_is_refused_and_ctrl_c_stops_the_job(place):
    process = place.start(*program.stage("train"), NEMO_GYM_NUM_ROLLOUT="500")
    job = place.begun(process)
    status, output = place.run("train")
    assert status == 1 and f"which the trainer's entrypoint would stop: {job} RUNNING" in output, output
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and f"interrupted; job {job} is STOPPED" in output, output
    assert place.jobs()[job]["status"] == "STOPPED" and not place.on_file()
    place.graph.wait_released(60)


def test_a_job_whose_client_died_is_stopped_by_make_stop(place):
    process = place.submit(NEMO_GYM_NUM_ROLLOUT="500")
    job = place.begun(process)
    process.kill()
    process.communicate()
    assert place.on_file() == [job] and place.live() == [job]
    status, output = place.run("stop", GYM_BASE_PORT=str(free_block()))
    assert status == 0 and f"job {job}: STOPPED" in output, output
    assert not place.on_file() and not place.live()
    place.graph.wait_released(60)
