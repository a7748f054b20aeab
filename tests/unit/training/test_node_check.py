"""The look at a node, without Ray: paths, hashes, the shared folder, Gateways, and the trial that calls back."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from support.scripted_gateway import ScriptedGateway, fault, snapshot
from support.task_rows import SMALL
from training import node_check


def test_a_fingerprint_is_of_names_and_contents(tmp_path):
    (tmp_path / "a.py").write_text("one")
    (tmp_path / "b.txt").write_text("not looked at")
    hashes = [node_check.fingerprint(tmp_path, ["*.py"])]
    (tmp_path / "b.txt").write_text("changed")
    assert node_check.fingerprint(tmp_path, ["*.py"]) == hashes[0]
    (tmp_path / "a.py").write_text("two")
    hashes.append(node_check.fingerprint(tmp_path, ["*.py"]))
    (tmp_path / "a.py").rename(tmp_path / "c.py")
    hashes.append(node_check.fingerprint(tmp_path, ["*.py"]))
    assert len(set(hashes)) == 3


def test_large_files_are_told_apart_by_size_and_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(node_check, "WHOLE_BYTES", 100)
    monkeypatch.setattr(node_check, "EDGE_BYTES", 10)
    path, hashes = tmp_path / "w", []
    # The last differs from the first in its middle alone.
    for content in (b"a" * 200, b"a" * 201, b"b" + b"a" * 199, b"a" * 199 + b"b", b"a" * 100 + b"b" + b"a" * 99):
        path.write_bytes(content)
        hashes.append(node_check.fingerprint(path, ()))
    assert len(set(hashes)) == 4 and hashes[4] == hashes[0]


@pytest.fixture
def spec(tmp_path):
    for name in ("repository", "exp"):
        (tmp_path / name).mkdir()
    (tmp_path / "repository" / "a.py").write_text("one")
    (tmp_path / "rows.jsonl").write_text(json.dumps(SMALL) + "\n")
    (tmp_path / "exp" / "probe").touch()
    wanted = [(tmp_path / "repository", ["*.py"], "this repository"), (tmp_path / "rows.jsonl", [], "the rows")]
    return {
        "root": str(Path(__file__).resolve().parents[3]),
        "rows": str(tmp_path / "rows.jsonl"),
        "paths": [
            {"path": str(path), "patterns": patterns, "what": what, "sha256": node_check.fingerprint(path, patterns)}
            for path, patterns, what in wanted
        ],
        "exp_dir": str(tmp_path / "exp"),
        "probe": "probe",
        "python": sys.executable,
        "gateways": [],
        "api_port": 0,
        "variables": {"NEMO_GYM_DEADLINE_S": "20", "NEMO_GYM_LEASE_S": "10", "NEMO_GYM_MAX_RETRIES": "2"},
    }


def test_a_node_like_the_submitting_machine_has_no_fault(spec, tmp_path):
    assert node_check.look_around(spec) == []
    assert os.listdir(tmp_path / "exp") == ["probe"]


def test_each_difference_is_named(spec, tmp_path, monkeypatch):
    monkeypatch.setattr(node_check, "SHOWS_AFTER_S", 0)
    (tmp_path / "repository" / "a.py").unlink()
    (tmp_path / "rows.jsonl").write_text("other")
    (tmp_path / "exp" / "probe").unlink()
    assert node_check.look_around(spec | {"python": "/nowhere/python3"}) == [
        f"{tmp_path}/repository: holds none of its files (this repository)",
        f"{tmp_path}/rows.jsonl: other contents than on the submitting machine (the rows)",
        "/nowhere/python3: no program there (RELAX_PYTHON)",
        f"{tmp_path}/exp: does not show what the submitting machine wrote there (EXP_DIR)",
    ]
    (tmp_path / "rows.jsonl").unlink()
    assert f"{tmp_path}/rows.jsonl: No such file or directory (the rows)" in node_check.look_around(spec)


def test_a_gateway_is_the_one_that_was_seen(spec):
    ready = (200, {"ready": True, "service_epoch": "e1"}, {})
    with ScriptedGateway(get=[ready]) as gateway:
        assert node_check.gateway_fault({"url": gateway.url, "epoch": "e1"}) is None
        assert "another Gateway answers here" in node_check.gateway_fault({"url": gateway.url, "epoch": "e2"})
        gateway.script["get"] = [503]
        assert node_check.gateway_fault({"url": gateway.url, "epoch": "e1"}).endswith("/readyz: answered 503")
    assert "/readyz: not reached: " in node_check.gateway_fault({"url": gateway.url, "epoch": "e1"})


# --- the trial that calls back -------------------------------------------------------------


def played(spec, gateway):
    return node_check.play_trials(spec | {"gateways": [{"url": gateway.url, "epoch": "e"}]}, "127.0.0.1")


def test_a_callback_address_that_is_not_allowed_is_named_with_its_cure(spec):
    with ScriptedGateway(create=[fault(400, "callback_not_allowed")]) as gateway:
        [fault_line], _ = played(spec, gateway)
    assert "do not cover the trainer's address 127.0.0.1" in fault_line
    assert "add 127.0.0.1/32 to NEMO_GYM_CALLBACK_ALLOWED_NETWORKS, then make gym-up" in fault_line


def test_a_model_that_was_not_called_is_named(spec):
    lost = snapshot("failed", None, {"code": "agent_error", "type": "endpoint_unreachable"})
    with ScriptedGateway(get=[lost]) as gateway:
        [line], _ = played(spec, gateway)
    assert "does not get to the model at http://127.0.0.1:" in line and "endpoint_unreachable" in line
    # A reward without a call was not earned through this way.
    with ScriptedGateway(get=[snapshot()]) as gateway:
        assert played(spec, gateway)[0]


def test_a_port_in_use_is_said_and_another_tried(spec):
    with socket.socket() as other, ScriptedGateway(create=[fault(400, "callback_not_allowed")]) as gateway:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        _, [note] = played(spec | {"api_port": port}, gateway)
    assert note == f"port {port} (RELAX_API_PORT) on 127.0.0.1: Address already in use; tried another"
