"""The doctor on the graph and the engine: small real servers play both."""

import json

import pytest

from checks import graph, leftovers
from servers import container, processes, tree
from servers import graph as servers_graph
from support.doctor_case import PROXY_PAGE, Pages, case_of, found, free_base, is_ok


@pytest.fixture
def gateway(tmp_path):
    """A Gateway's pages on a port that GYM_BASE_PORT can name, as a graph of this clone has them."""
    base = free_base()
    with Pages({}, port=base) as pages:
        pages.case = lambda stage="": case_of(tmp_path, stage, GYM_BASE_PORT=base, GYM_RAY_PORT=base + 200)
        pages.pages["/readyz"] = pages.state = {
            "ready": True,
            "service_epoch": "e1",
            "gym_commit": tree.GYM_COMMIT,
            "config_fingerprint": servers_graph.graph_fingerprint(pages.case().settings),
            "servers": {"agent": {"up": True}, "resource": {"up": True}},
            "active_trials": 0,
            "open_sessions": 0,
        }
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


def test_a_stale_graph_of_another_clone_is_named_by_its_folder(tmp_path, start):
    base = free_base()
    state = {"ready": True, "service_epoch": "e", "gym_commit": tree.GYM_COMMIT, "config_fingerprint": "x"}
    code = f"""
import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write({json.dumps(state).encode()!r})
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", {base}), Handler)
threading.Thread(target=server.serve_forever).start()
"""
    process = start(code, **{processes.MARK: str(tmp_path / "other")})
    finding = found(graph.running, case_of(tmp_path, GYM_BASE_PORT=base, GYM_RAY_PORT=base + 200), "fail")
    assert f"that of {tmp_path}/other (process {process.pid})" in finding.what
    assert "make stop in that clone" in finding.cure


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


@pytest.mark.parametrize(("role", "cure"), [("gym", "make gym-down"), ("rehearsal", "make stop")])
def test_e16_a_server_of_ours_beyond_loopback_is_named(tmp_path, start, role, cure):
    case = case_of(tmp_path)
    assert is_ok(graph.exposed, case)
    mark = {processes.MARK: processes.mark(case.settings), processes.ROLE: role}
    start("s = socket.create_server(('0.0.0.0', 0))", **mark)
    finding = found(graph.exposed, case, "fail")
    assert "0.0.0.0:" in finding.what and cure in finding.cure


# --- the engine ----------------------------------------------------------------------------


@pytest.fixture
def backend(tmp_path):
    return lambda name="docker", stage="": case_of(tmp_path, stage, GYM_BACKEND=name)


@pytest.mark.parametrize(
    ("code", "commit", "said"),
    [
        ("", tree.GYM_COMMIT, "commit a85670eb167b, code and patches of this clone"),
        (None, None, "is not there"),
        ("other", tree.GYM_COMMIT, "built from other scripts or patches"),
        ("", "0" * 40, "holds NeMo Gym 000"),
    ],
)
def test_an_image_is_this_clones_or_what_it_is_is_named(backend, engine, code, commit, said):
    if commit:
        labels = {container.CODE_LABEL: code or servers_graph.graph_code()}
        config = {"Labels": labels, "Env": ["PATH=/bin", f"NEMO_GYM_COMMIT={commit}"]}
        engine.put("images/relax-nemo-gym:a85670e/json", {"Id": "sha256:1", "RepoTags": [], "Config": config})
    good = "of this clone" in said
    finding = found(graph.engine, backend(), "ok" if good else "fail")
    assert said in finding.what and (good or "make image" in finding.cure)
    auto = found(graph.engine, backend("auto"), "ok" if good or not commit else "warn")
    assert said in auto.what


def test_an_engine_that_is_not_there_matters_where_it_is_needed(backend, no_engine):
    for case in (backend(), backend("auto", "image")):
        assert "no Docker engine answers" in found(graph.engine, case, "fail").what
    assert "local processes are used" in found(graph.engine, backend("auto"), "ok").what
    assert "no engine is asked" in found(graph.engine, backend("local"), "ok").what
    assert is_ok(leftovers.containers, backend())


def test_somebody_elses_container_of_our_name_is_named_where_it_matters(backend, engine):
    engine.put("containers/nemo-gym-workplace/json", {"Id": "1", "Name": "/x", "Config": {"Labels": {}}})
    assert "is not ours" in found(graph.engine, backend(), "fail").what
    assert "make image pulls" in found(graph.engine, backend("docker", "image"), "ok").what
