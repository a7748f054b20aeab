"""The looks at a node where the network decides: a real Gateway, and a node that has addresses of its own.

Of the environment there is only as much as calls the model once, as the agent would.
"""

import json
import sys

import httpx
import pytest

from common.settings import ROOT
from proofs.rig import free_block, own_address, secret
from support.namespace import COVERED, Namespace
from support.scripted_environment import RESPONSE, gateway_alone


@pytest.fixture(scope="module")
def node():
    if not own_address():
        pytest.skip("the Gateway listens on loopback alone, where this machine has no other address")
    with Namespace() as namespace:
        yield namespace


@pytest.fixture(scope="module")
def gateway(node, tmp_path_factory, example_rows):
    changes = {"GATEWAY_TOKEN": secret(), "GYM_BIND_HOST": "0.0.0.0", "GATEWAY_MODEL_TRIES": "1"}
    changes |= {"NEMO_GYM_CALLBACK_ALLOWED_NETWORKS": f"{COVERED}.0/24"}
    with gateway_alone(tmp_path_factory.mktemp("network"), example_rows[0], **changes) as gateway:
        gateway.pairs[0].run = lambda body: call_model(gateway, body)
        yield gateway


def call_model(gateway, body):
    """What the agent would do with a run: one model call, then a reward."""
    url = f"{gateway.settings.local_url('callbacks')}/v1/responses"
    call = {"input": body["responses_create_params"]["input"], "metadata": body["responses_create_params"]["metadata"]}
    answer = httpx.post(url, json=call, trust_env=False, timeout=60)
    return (200, body | {"reward": 0.0, "response": RESPONSE}) if answer.status_code == 200 else (500, {})


def gateway_of(gateway, node):
    url = f"http://{node.here}:{gateway.settings.port('gateway')}"
    return {"url": url, "epoch": gateway.health()[1]["service_epoch"]}


def played(gateway, node, tmp_path, address, port=0, token=None):
    """The faults that a trial found which was played from the node with the model at `address`."""
    (tmp_path / "token").write_text(token or gateway.token)
    (tmp_path / "rows.jsonl").write_text(json.dumps(gateway.row) + "\n")
    variables = {"NEMO_GYM_DEADLINE_S": "20", "NEMO_GYM_LEASE_S": "10", "NEMO_GYM_MAX_RETRIES": "2"}
    variables |= {"GATEWAY_TOKEN_FILE": str(tmp_path / "token")}
    spec = {"root": str(ROOT), "python": sys.executable, "rows": str(tmp_path / "rows.jsonl"), "probe": "probe"}
    spec |= {"gateways": [gateway_of(gateway, node)], "api_port": port, "variables": variables}
    return node.call("play_trials", spec, address)


def test_a_node_reaches_the_gateway_and_is_reached(gateway, node, tmp_path):
    assert node.call("gateway_fault", gateway_of(gateway, node)) is None
    faults, [note] = played(gateway, node, tmp_path, node.there)
    assert not faults and f"called the model at http://{node.there}:" in note


def test_an_address_that_the_callback_networks_do_not_cover_is_named(gateway, node, tmp_path):
    [fault], _ = played(gateway, node, tmp_path, node.stray)
    assert f"its callback networks do not cover the trainer's address {node.stray}" in fault
    assert f"add {node.stray}/32 to NEMO_GYM_CALLBACK_ALLOWED_NETWORKS, then make gym-up" in fault


def test_a_wrong_token_is_named(gateway, node, tmp_path):
    [fault], _ = played(gateway, node, tmp_path, node.there, token=secret())
    assert fault.startswith(f"{gateway_of(gateway, node)['url']}: ") and "the Gateway answered 401" in fault


def test_a_firewall_before_the_model_is_named(gateway, node, tmp_path):
    port = free_block()
    node.refuse("INPUT", "--dport", str(port))
    [fault], _ = played(gateway, node, tmp_path, node.there, port)
    assert f"the Gym's machine does not get to the model at http://{node.there}:{port}/agentic_api" in fault


def test_a_gateway_that_one_node_does_not_reach_is_named(gateway, node):
    seen = gateway_of(gateway, node)
    node.refuse("OUTPUT", "--dport", str(gateway.settings.port("gateway")))
    assert node.call("gateway_fault", seen) == f"{seen['url']}/readyz: not reached: [Errno 111] Connection refused"
    assert gateway.health()[0] == 200
