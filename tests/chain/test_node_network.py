"""The looks at a node where the network decides, with a real Gateway and a node that has addresses of its own."""

import json

import pytest

from graph import free_block, own_address, secret
from namespace import Namespace
from settings import ROOT


@pytest.fixture(scope="module")
def node():
    if not own_address():
        pytest.skip("the graph listens on loopback alone, where this machine has no other address")
    with Namespace() as namespace:
        yield namespace


def gateway_of(graph, node):
    url = f"http://{node.here}:{graph.settings.port('gateway')}"
    return {"url": url, "epoch": graph.health()[1]["service_epoch"]}


def played(graph, node, tmp_path, address, port=0, token=None):
    """The faults that a trial found which was played from the node with the model at `address`."""
    (tmp_path / "token").write_text(token or graph.token)
    (tmp_path / "rows.jsonl").write_text(json.dumps(graph.row) + "\n")
    variables = {"NEMO_GYM_DEADLINE_S": "20", "NEMO_GYM_LEASE_S": "10", "NEMO_GYM_MAX_RETRIES": "2"}
    spec = {
        "root": str(ROOT),
        "rows": str(tmp_path / "rows.jsonl"),
        "probe": "probe",
        "gateways": [gateway_of(graph, node)],
        "api_port": port,
        "variables": variables | {"GATEWAY_TOKEN_FILE": str(tmp_path / "token")},
    }
    return node.call("play_trials", spec, address)


def test_a_node_reaches_the_gateway_and_is_reached(graph, node, tmp_path):
    assert node.call("gateway_fault", gateway_of(graph, node)) is None
    faults, [note] = played(graph, node, tmp_path, node.there)
    assert not faults and f"called the model at http://{node.there}:" in note
    graph.wait_released()


def test_an_address_that_the_callback_networks_do_not_cover_is_named(graph, node, tmp_path):
    [fault], _ = played(graph, node, tmp_path, node.stray)
    assert f"its callback networks do not cover the trainer's address {node.stray}" in fault
    assert f"add {node.stray}/32 to NEMO_GYM_CALLBACK_ALLOWED_NETWORKS, then make gym-up" in fault


def test_a_wrong_token_is_named(graph, node, tmp_path):
    [fault], _ = played(graph, node, tmp_path, node.there, token=secret())
    assert fault.startswith(f"{gateway_of(graph, node)['url']}: ") and "the Gateway answered 401" in fault


def test_a_firewall_before_the_model_is_named(graph, node, tmp_path):
    port = free_block()
    node.refuse("INPUT", "--dport", str(port))
    [fault], _ = played(graph, node, tmp_path, node.there, port)
    assert f"the Gym's machine does not get to the model at http://{node.there}:{port}/agentic_api" in fault
    graph.wait_released()


def test_a_gateway_that_one_node_does_not_reach_is_named(graph, node):
    gateway = gateway_of(graph, node)
    node.refuse("OUTPUT", "--dport", str(graph.settings.port("gateway")))
    assert (
        node.call("gateway_fault", gateway) == f"{gateway['url']}/readyz: not reached: [Errno 111] Connection refused"
    )
    assert graph.health()[0] == 200
