"""A few lines of the fault matrix, small, on the shared graph (`make faults` runs all of them at full size)."""

from dataclasses import replace

import pytest

from proofs.fault_load import Policy
from proofs.fault_matrix import FAULTS
from proofs.fault_run import suffer
from proofs.rig import free_block

pytestmark = pytest.mark.slow
TRIALS = 8
LASTS_S = 3
# Faults that no other test of the chain injects, and that leave the graph whole.
NAMES = ("kill-head", "kill-ray", "kill-policy")


@pytest.fixture(scope="module")
def policy(graph_started, tmp_path_factory):
    endpoint = Policy(free_block(), tmp_path_factory.mktemp("policy") / "files")
    endpoint.start()
    yield endpoint
    endpoint.end()


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_costs_no_trial_its_verdict(graph, policy, example_rows, tmp_path, name):
    fault = FAULTS[name]
    kept = {server: graph.pid(server) for server in ("gateway", "agent", "resource")}
    shorter = replace(fault, lasts_s=min(LASTS_S, fault.lasts_s))
    line = suffer(shorter, graph, policy, tmp_path / "load", example_rows, TRIALS)
    assert line["held"], line["broken"]
    assert sum(line["ended"].values()) == TRIALS
    assert {server: graph.pid(server) for server in kept} == kept
    if name != "kill-policy":
        assert line["was_down"] and line["ended"] == {"rewarded": TRIALS}
