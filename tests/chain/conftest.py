"""The graph of these tests: started once, shared by all of them, and ended when they fail, too.

Its Gateway listens on every interface, so that tests can call from beyond loopback. A token guards it.
`test_stop.py` ends the graph and runs last.
"""

import signal
import sys
from pathlib import Path

import pytest

from inputs import rows
from proofs.rig import CONCURRENCY, PAIRS, QUEUE, Graph, own_address
from support.scripted_model import ScriptedModel
from support.task_rows import EXAMPLE

LAST = ("test_secrets.py", "test_stop.py")


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.chain)
            # The first test starts the graph, which takes minutes on a busy machine.
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(480))
    items.sort(key=lambda item: LAST.index(item.path.name) if item.path.name in LAST else -1)


def pytest_terminal_summary(terminalreporter):
    """Print what tests measured (`record_property("said", line)`)."""
    for report in terminalreporter.getreports("passed"):
        for name, line in report.user_properties:
            if name == "said" and report.when == "call":
                terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def example_rows():
    return rows.read_rows(EXAMPLE)


@pytest.fixture(scope="session")
def models():
    with ScriptedModel() as model:
        yield model


@pytest.fixture(scope="session")
def graph_started(tmp_path_factory, example_rows):
    networks = ["10.0.0.0/8", "198.51.100.0/24", "2001:db8::/32"]
    graph = Graph(
        tmp_path_factory.mktemp("chain") / "run",
        example_rows[0],
        GYM_BIND_HOST="0.0.0.0" if own_address() else "127.0.0.1",
        WORKPLACE_ASSISTANT_MAX_CONCURRENCY=str(CONCURRENCY),
        GATEWAY_QUEUE_LIMIT=str(QUEUE),
        GYM_REPLICAS=str(len(PAIRS)),
        NEMO_GYM_CALLBACK_ALLOWED_NETWORKS=",".join(networks),
        GATEWAY_MODEL_BACKOFF_S="0.1",
        GYM_START_TIMEOUT_S="400",
        GATEWAY_MAX_ANSWER_BYTES=str(1 << 20),
    )
    # A time limit over the whole run sends SIGTERM, which would otherwise leave the graph behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        graph.up()
        yield graph
    finally:
        result = graph.stop()
        print(result.stdout, result.stderr, file=sys.stderr)


@pytest.fixture
def graph(graph_started):
    """The graph, ready and without a live trial."""
    graph_started.wait_ready()
    graph_started.wait_released()
    return graph_started
