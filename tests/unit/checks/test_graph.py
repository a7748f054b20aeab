"""The doctor on the graph, the engine and the files of a run: small real servers play the graph and the engine."""

import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

from checks import files, graph, leftovers
from common.settings import ROOT
from inputs import hub as hub_client
from inputs import weights
from servers import container, processes, tree
from servers import graph as servers_graph
from support.doctor_case import PROXY_PAGE, Pages, case_of, found, free_base, is_ok
from support.local_hub import Hub

EXAMPLE = tree.WORKPLACE + "/data/example.jsonl"
LOCK = json.loads((ROOT / "data" / "dataset.lock.json").read_text())


# --- a graph that answers as told ----------------------------------------------------------


@pytest.fixture
def gateway(tmp_path):
    """A Gateway's pages on a port that GYM_BASE_PORT can name, as a graph of this clone has them."""
    base = free_base()
    with Pages({}, port=base) as pages:
        pages.case = lambda stage="": case_of(tmp_path, stage, GYM_BASE_PORT=base, GYM_RAY_PORT=base + 200)
        pages.pages["/readyz"] = state = {
            "ready": True,
            "service_epoch": "e1",
            "gym_commit": tree.GYM_COMMIT,
            "config_fingerprint": servers_graph.graph_fingerprint(pages.case().settings),
            "servers": {"agent": {"up": True}, "resource": {"up": True}},
            "active_trials": 0,
            "open_sessions": 0,
        }
        pages.state = state
        yield pages


def test_a_graph_of_this_clone_is_ok(gateway):
    finding = found(graph.running, gateway.case(), "ok")
    assert "ready, commit a85670eb167b" in finding.what and "0 trials, 0 sessions" in finding.what


def test_no_graph_is_fine_until_a_stage_needs_one(tmp_path):
    base = free_base()
    assert "not running" in found(graph.running, case_of(tmp_path, GYM_BASE_PORT=base), "ok").what
    for stage in ("verify", "train", "accept", "audit", "eval"):
        finding = found(graph.running, case_of(tmp_path, stage, GYM_BASE_PORT=base), "fail")
        assert "Connection refused" in finding.what and "make gym-up" in finding.cure


@pytest.mark.parametrize("page", [PROXY_PAGE, (503, PROXY_PAGE), {"hello": 1}, [], "null", (302, "")])
def test_something_else_on_the_gateways_port_is_told_from_it(gateway, page):
    gateway.pages["/readyz"] = page
    finding = found(graph.running, gateway.case(), "fail")
    assert "no Gateway's answer" in finding.what and "GYM_BASE_PORT" in finding.cure


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        ({"gym_commit": "0" * 40}, "fail", "NeMo Gym 000000000000, not a85670eb167b"),
        ({"gym_commit": None}, "fail", "NeMo Gym None"),
        ({"config_fingerprint": "other"}, "warn", "other variables or code"),
        ({"ready": False, "servers": {"agent": {"up": True}, "resource": {"up": False}}}, "fail", "resource down"),
        ({"ready": False}, "fail", "the Gateway itself down"),
        ({"open_sessions": 3}, "warn", "3 sessions are open and no trial is"),
    ],
)
def test_e2_e3_a_graph_that_is_stale_down_or_leaking_is_named(gateway, changes, verdict, said):
    gateway.state.update(changes)
    assert said in found(graph.running, gateway.case(), verdict).what


def test_a_stale_graph_of_another_clone_is_named_by_its_folder(tmp_path):
    base = free_base()
    state = {"ready": True, "service_epoch": "e", "gym_commit": tree.GYM_COMMIT, "config_fingerprint": "x"}
    code = f"""
import http.server, json
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write({json.dumps(state).encode()!r})
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", {base}), H)
print("up", flush=True)
server.serve_forever()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        env={**os.environ, processes.MARK: str(tmp_path / "other")},
    )
    try:
        process.stdout.readline()
        finding = found(graph.running, case_of(tmp_path, GYM_BASE_PORT=base, GYM_RAY_PORT=base + 200), "fail")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert (
        f"that of {tmp_path}/other (process {process.pid})" in finding.what
        and "make stop in that clone" in finding.cure
    )


def test_the_head_server_answers_json_and_no_proxys_page(gateway):
    case = gateway.case()
    with Pages({"/server_instances": []}, port=gateway.port + 3) as head:
        assert is_ok(graph.head_server, case)
        for page in (PROXY_PAGE, (503, PROXY_PAGE), (404, "{}")):
            head.pages["/server_instances"] = page
            assert "not the list of servers" in found(graph.head_server, case, "fail").what
    silent = found(graph.head_server, case, "fail")
    assert "Connection refused" in silent.what and silent.cure == "make gym-up"
    gateway.pages["/readyz"] = PROXY_PAGE
    assert is_ok(graph.head_server, gateway.case()), "whoever has the Gateway's port, it is no graph"


def test_e16_a_server_of_ours_beyond_loopback_is_named(tmp_path):
    case = case_of(tmp_path)
    assert is_ok(graph.exposed, case)
    for role, cure in (("gym", "make gym-down"), ("rehearsal", "make stop")):
        code = "import socket, time; s = socket.create_server(('0.0.0.0', 0)); print('up', flush=True); time.sleep(60)"
        environment = {**os.environ, processes.MARK: processes.mark(case.settings), processes.ROLE: role}
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
        try:
            process.stdout.readline()
            finding = found(graph.exposed, case, "fail")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        assert "0.0.0.0:" in finding.what and cure in finding.cure


# --- the engine ----------------------------------------------------------------------------


@pytest.fixture
def engine(monkeypatch):
    """An engine's API as far as it is asked, without images and containers."""
    with Pages({"/version": {"ApiVersion": "1.44", "Version": "27"}}) as api:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{api.port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")

        def put(path, page):
            api.pages[f"/v1.44/{path}"] = page

        put("containers/json", [])
        put("images/json", [])
        api.put = put
        yield api


def image(code, commit=tree.GYM_COMMIT):
    config = {"Labels": {container.CODE_LABEL: code}, "Env": ["PATH=/bin", f"NEMO_GYM_COMMIT={commit}"]}
    return {"Id": "sha256:1", "RepoTags": [], "Config": config}


def docker_case(tmp_path, stage="", backend="docker"):
    return case_of(tmp_path, stage, GYM_BACKEND=backend)


def test_an_image_of_this_clone_is_ok(tmp_path, engine):
    engine.put("images/relax-nemo-gym:a85670e/json", image(servers_graph.graph_code()))
    assert (
        "commit a85670eb167b, code and patches of this clone" in found(graph.engine, docker_case(tmp_path), "ok").what
    )


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (None, "is not there"),
        (("other",), "built from other scripts or patches"),
        ((None, "0" * 40), "holds NeMo Gym 000"),
    ],
)
def test_an_image_that_is_missing_or_other_is_named(tmp_path, engine, made, said):
    if made:
        engine.put("images/relax-nemo-gym:a85670e/json", image(made[0] or servers_graph.graph_code(), *made[1:]))
    finding = found(graph.engine, docker_case(tmp_path), "fail")
    assert said in finding.what and "make image" in finding.cure
    auto = found(graph.engine, docker_case(tmp_path, backend="auto"))[0]
    assert auto.verdict == ("warn" if made else "ok") and said in auto.what


def test_an_engine_that_is_not_there_matters_where_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "no Docker engine answers" in found(graph.engine, docker_case(tmp_path), "fail").what
    assert "no Docker engine answers" in found(graph.engine, docker_case(tmp_path, "image", "auto"), "fail").what
    assert "local processes are used" in found(graph.engine, docker_case(tmp_path, backend="auto"), "ok").what
    assert "no engine is asked" in found(graph.engine, docker_case(tmp_path, backend="local"), "ok").what
    assert is_ok(leftovers.containers, docker_case(tmp_path))


def test_somebody_elses_container_of_our_name_is_named(tmp_path, engine):
    engine.put("containers/nemo-gym-workplace/json", {"Id": "1", "Name": "/x", "Config": {"Labels": {}}})
    assert "is not ours" in found(graph.engine, docker_case(tmp_path), "fail").what


def test_the_base_image_is_there_or_pulled(tmp_path, engine):
    assert "make image pulls" in found(graph.engine, docker_case(tmp_path, "image"), "ok").what


def test_containers_that_ended_or_whose_folder_is_gone_are_left_over(tmp_path, engine):
    assert is_ok(leftovers.containers, docker_case(tmp_path))
    case = docker_case(tmp_path)
    (tmp_path / "run_dir").mkdir()
    for folder, status, left in (
        (processes.mark(case.settings), "running", False),
        (processes.mark(case.settings), "exited", True),
        (f"{tmp_path}/gone", "running", True),
    ):
        labels = {container.RUN_LABEL: folder}
        engine.put("containers/json", [{"Id": "1"}])
        engine.put(
            "containers/1/json", {"Id": "1", "Name": "/old", "State": {"Status": status}, "Config": {"Labels": labels}}
        )
        finding = found(leftovers.containers, case)[0]
        assert (finding.verdict == "warn") is left
        assert not left or finding.cure == "docker rm -f old"


# --- rows and model ------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    made = Hub()
    made.publish(f"datasets/{LOCK['repo_id']}", LOCK["revision"], {})
    made.publish(weights.REPO, "3" * 40, {})
    monkeypatch.setenv("HF_ENDPOINT", made.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield made
    made.close()


def test_d1_rows_are_there_with_the_pinned_hash_or_to_be_had(tmp_path, hub):
    case = case_of(tmp_path, SPLIT="example")
    assert "not there yet; make data SPLIT=example" in found(files.task_rows, case, "ok").what
    path = case.settings.rows_path()
    path.parent.mkdir(parents=True)
    shutil.copy(tree.installed_tree() / EXAMPLE, path)
    assert (
        "5 rows of example" in found(files.task_rows, case, "ok").what
        and "as pinned" in found(files.task_rows, case)[0].what
    )
    with path.open("a") as rows:
        rows.write("{}\n")
    edited = found(files.task_rows, case, "warn")
    assert "not those pinned" in edited.what and "NEMO_GYM_SOURCE_DATA" in edited.cure
    assert "the hub has them" in found(files.task_rows, case_of(tmp_path, SPLIT="train"), "ok").what


def test_rows_with_something_in_their_way_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    below = found(files.task_rows, case_of(tmp_path, DATA_ROOT=tmp_path / "file"), "fail")
    assert "Not a directory" in below.what and "DATA_ROOT" in below.cure
    case = case_of(tmp_path)
    case.settings.rows_path().mkdir(parents=True)
    assert "Is a directory" in found(files.task_rows, case, "fail").what


def test_training_needs_its_rows_in_place(tmp_path, hub):
    finding = found(files.task_rows, case_of(tmp_path, "train"), "fail")
    assert "rows of train not there yet" in finding.what and finding.cure == "make data SPLIT=train"


def test_d1_a_hub_that_cannot_give_the_rows_is_named(tmp_path, hub, monkeypatch):
    case = case_of(tmp_path, SPLIT="validation")
    for status, said in ((401, "HTTP 401"), (404, "HTTP 404"), (503, "HTTP 503")):
        hub.status = status
        assert said in found(files.task_rows, case, "fail").what
    hub.status = None
    for page in (PROXY_PAGE, {"sha": ""}, "[" * 100_000):
        revision = f"/api/datasets/{LOCK['repo_id']}/revision/{LOCK['revision']}"
        with Pages({revision: page}) as other:
            monkeypatch.setenv("HF_ENDPOINT", other.url)
            assert "something else than a hub" in found(files.task_rows, case, "fail").what
    monkeypatch.setenv("HF_ENDPOINT", "no url")
    assert "HF_ENDPOINT" in found(files.task_rows, case, "fail").cure
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("no_proxy")
    refused = found(files.task_rows, case, "fail")
    assert "Connection refused" in refused.what and "proxy variables" in refused.cure
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in found(files.task_rows, case, "fail").what


def test_a_hubs_token_is_sent_and_never_shown(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_nevershowme")
    hub.token = "hf_nevershowme"
    assert is_ok(files.task_rows, case_of(tmp_path, SPLIT="train"))
    hub.token = "another"
    finding = found(files.task_rows, case_of(tmp_path, SPLIT="train"), "fail")
    assert "HF_TOKEN" in finding.cure + finding.what and "nevershowme" not in str(finding)


def test_e9_rows_of_ones_own_must_be_fit(tmp_path):
    row = (tree.installed_tree() / EXAMPLE).read_text().splitlines()[0]
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{row}\n")
    case = case_of(tmp_path, NEMO_GYM_SOURCE_DATA=path)
    assert "1 rows of" in found(files.task_rows, case, "ok").what
    path.write_text(f'{row}\n{{"input": []}}\n')
    assert f"{path}:2: responses_create_params: missing" in found(files.task_rows, case, "fail").what


def test_a_lock_that_was_edited_is_named(tmp_path, monkeypatch):
    (tmp_path / "lock.json").write_text("{}")
    monkeypatch.setattr(files.pins, "LOCK", tmp_path / "lock.json")
    assert "git checkout" in found(files.task_rows, case_of(tmp_path), "fail").cure


def put_model(folder):
    """A whole model of the right shape with tiny weights."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(weights.SHAPE))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text('{"a": 1}')
    (folder / weights.INDEX).write_text('{"weight_map": {"t": "w.safetensors"}}')
    header = json.dumps({"t": {"dtype": "U8", "shape": [64], "data_offsets": [0, 64]}}).encode()
    (folder / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))


def test_a_model_is_whole_or_what_it_lacks_is_named(tmp_path, hub):
    case, trains = case_of(tmp_path), case_of(tmp_path, RAY_ADDRESS="10.0.0.5:6379")
    folder = case.settings.MODEL_DIR / "Qwen3-4B"
    assert "only training needs it" in found(files.model, case, "ok").what
    assert "make model" in found(files.model, trains, "fail").cure
    put_model(folder)
    assert "1 weight files" in found(files.model, trains, "ok").what
    (folder / "w.safetensors").write_bytes((folder / "w.safetensors").read_bytes()[:-1])
    assert "bytes instead of" in found(files.model, trains, "fail").what
    assert "bytes instead of" in found(files.model, case, "warn").what


def test_a_model_to_fetch_needs_a_hub_and_room(tmp_path, hub, monkeypatch):
    case = case_of(tmp_path, "model")
    assert "the hub has it" in found(files.model, case, "ok").what
    monkeypatch.setattr(files, "MODEL_MB", 1)
    assert is_ok(files.room_for_model, case)
    monkeypatch.setattr(files, "MODEL_MB", 1 << 40)
    assert "MODEL_DIR" in found(files.room_for_model, case, "fail").cure
    hub.status = 503
    assert "HTTP 503" in found(files.model, case, "fail").what


def test_the_doctor_asks_the_hub_what_its_client_asks(hub):
    hub_client.refuse_unreachable(weights.REPO, "main", "model")
    asked = [path for _, path, _ in hub.requests]
    hub.requests.clear()
    import huggingface_hub

    huggingface_hub.HfApi(endpoint=hub.url).repo_info(weights.REPO, revision="main", repo_type="model")
    assert asked == [path for _, path, _ in hub.requests][-1:]
