"""Servers that die (field cases E2, E12, E13): their trials end in time with a reason, and the graph heals itself."""

import threading
import time

import pytest

from proofs.rig import PAIRS, SECRET_PREFIX, eventually, secret
from support.scripted_model import DONE, call
from support.session import Sample
from support.task_rows import session_input

pytestmark = pytest.mark.slow
# The contract's two seconds, and what a busy machine may add.
NOT_READY_S = 2 + 1.5
SEARCH = call("email_search_emails", query="carlos")


def assert_lost(snapshot, url):
    assert (snapshot["status"], snapshot["reward"]) == ("failed", None), snapshot
    assert url in snapshot["error"]["cause"], snapshot


def wait_seen(graph, servers):
    """Wait until /readyz shows just these servers down."""

    def seen():
        return {name for name, server in graph.health()[1]["servers"].items() if not server["up"]} == set(servers)

    eventually(seen, NOT_READY_S, 0.05)


def wait_all_up(graph):
    def all_up():
        servers = graph.health()[1].get("servers", {})
        return servers and all(server["up"] for server in servers.values())

    eventually(all_up, 120, 0.2)


def in_mid_trial(graph, models, count=4, released=None):
    """Start trials that make a tool call and then wait for their model, equally many on each pair. Returns ids."""
    released = released or models.released
    policies = [
        models.policy(lambda call: SEARCH if call.turn == 0 else released.wait(100) and DONE) for _ in range(count)
    ]
    ids = [graph.start(graph.payload(policy, deadline_s=60)) for policy in policies]
    eventually(lambda: all(len(policy.calls) == 2 for policy in policies), 40)
    return ids


@pytest.mark.parametrize("server", ["resource", "agent_2"])
def test_e2_and_e12_a_killed_server_ends_its_own_trials_and_comes_back_alone(graph, models, example_rows, server):
    others = {name: graph.pid(name) for name in graph.settings.servers() if name not in (server, "callbacks")}
    epoch, released = graph.health()[1]["service_epoch"], threading.Event()
    ids = in_mid_trial(graph, models, released=released)
    killed, began = graph.kill(server), time.monotonic()
    wait_seen(graph, [server])
    assert graph.health()[0] == 200
    # A trial that is created now runs on the other pair.
    meanwhile = graph.payload(models.oracle(example_rows[0]))
    assert graph.wait(graph.start(meanwhile))["reward"] == 1.0
    released.set()
    ended = [graph.wait(request_id) for request_id in ids]
    lost = [snapshot for snapshot in ended if snapshot["status"] != "completed"]
    assert len(lost) == len(ids) / len(PAIRS), ended
    for snapshot in lost:
        assert_lost(snapshot, graph.settings.local_url(server))
    assert time.monotonic() - began < 45, "the trials ended, but later than their deadlines allow"
    wait_all_up(graph)
    graph.wait_released()
    assert {name: graph.pid(name) for name in others} == others and graph.pid(server) != killed
    assert graph.health()[1]["service_epoch"] == epoch


def test_e2_without_any_pair_the_graph_is_not_ready_and_trials_wait(graph, models, example_rows):
    ids, resources = in_mid_trial(graph, models), [resource for _, resource in PAIRS]
    for server in resources:
        graph.kill(server)
    wait_seen(graph, resources)
    assert graph.health()[0] == 503
    for request_id in ids:
        assert_lost(graph.wait(request_id), "http://127.0.0.1:")
    waiting = graph.start(graph.payload(models.oracle(example_rows[0]), deadline_s=120))
    graph.wait_ready()
    assert graph.wait(waiting)["reward"] == 1.0
    wait_all_up(graph)
    graph.wait_released()


def client(graph, policy, folder, row):
    """A session client that runs a trial of the row."""
    variables = {"GATEWAY_TOKEN": graph.token, "RELAX_SESSION_ID": secret(), "RELAX_BASE_URL": policy.base_url}
    variables |= {"NEMO_GYM_LEASE_S": "60", "NEMO_GYM_DEADLINE_S": "120"}
    return Sample(folder, session_input(row)).start(graph.url, **variables)


def test_e13_a_killed_gateway_keeps_results_ends_what_ran_and_is_ridden_out(graph, models, example_rows, tmp_path):
    finished = graph.payload(models.oracle(example_rows[0]))
    result = graph.wait(graph.start(finished))
    running, epoch = in_mid_trial(graph, models, 2), graph.health()[1]["service_epoch"]
    hanging = models.hanging()
    caught = client(graph, hanging, tmp_path / "caught", example_rows[0])

    eventually(lambda: hanging.calls, 40)
    assert graph.open_sessions() == 3
    graph.kill("gateway")
    late = client(graph, models.oracle(example_rows[0]), tmp_path / "late", example_rows[0])
    graph.wait_ready()
    assert graph.health()[1]["service_epoch"] != epoch
    assert graph.show(finished["request_id"]).json() == result
    assert graph.create(finished).json() == result
    for request_id in running:
        snapshot = graph.show(request_id).json()
        assert (snapshot["status"], snapshot["reward"]) == ("failed", None)
        assert snapshot["error"]["code"] == "gateway_restarted"
    status, errors, _ = caught.end(150)
    assert status == 1 and "gateway_restarted" in errors and SECRET_PREFIX not in errors
    assert len(errors.splitlines()) == 1
    status, errors, output = late.end(150)
    assert (status, errors, output["reward"]) == (0, "", 1.0)
    graph.wait_released(30)
