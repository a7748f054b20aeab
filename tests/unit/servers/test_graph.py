"""A graph before it runs: its backend, its fingerprint, its pairs and their ports, and the turn to start it."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from common import settings as variables
from common.failure import Failure
from servers import container, graph


def load(**overrides):
    return variables.load(overrides, environment={}, dotenv=Path(os.devnull))


# --- backend -------------------------------------------------------------------------------


def test_without_an_engine_docker_is_refused_and_auto_takes_local_and_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(Failure, match=r"^no Docker engine answers at unix://.*systemctl start docker.*"):
        graph.choose_backend(load(GYM_BACKEND="docker"))
    chosen, why = graph.choose_backend(load(GYM_BACKEND="auto"))
    assert chosen.name == "local" and why.startswith("GYM_BACKEND=auto: no Docker engine answers")


def test_local_does_not_ask_for_an_engine(monkeypatch):
    monkeypatch.setattr(container, "connect", lambda *_: pytest.fail("asked"))
    assert graph.choose_backend(load(GYM_BACKEND="local"))[0].name == "local"


# --- fingerprint ---------------------------------------------------------------------------


def test_a_token_in_a_file_makes_the_same_graph_as_in_the_environment(tmp_path):
    (tmp_path / "token").write_text("one\n")
    from_file = load(GATEWAY_TOKEN_FILE=str(tmp_path / "token"))
    fingerprint = graph.graph_fingerprint(from_file)
    assert fingerprint == graph.graph_fingerprint(load(GATEWAY_TOKEN="one"))
    (tmp_path / "token").write_text("two\n")
    assert fingerprint != graph.graph_fingerprint(from_file)
    (tmp_path / "token").unlink()
    with pytest.raises(Failure, match="No such file"):
        graph.graph_fingerprint(from_file)


def test_another_number_of_pairs_is_another_graph_and_the_same_one_is_not():
    def fingerprint(number):
        return graph.graph_fingerprint(load(GYM_REPLICAS=number))

    assert fingerprint("1") != fingerprint("2")
    assert fingerprint("0") == fingerprint(str(load().replicas))


# --- pairs and their ports -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "quota", "expected"),
    [
        (1, "max 100000", 1), (2, "max 100000", 1), (8, "max 100000", 7), (256, "max 100000", variables.MOST_REPLICAS),
        (64, "400000 100000", 3), (64, "50000 100000", 1), (4, None, 3),
    ],
)  # fmt: skip
def test_by_default_one_core_is_left_to_all_the_rest(monkeypatch, cores, quota, expected):
    def read_text():
        if quota is None:
            raise FileNotFoundError
        return quota

    given = load()
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr(variables, "Path", lambda path: SimpleNamespace(read_text=read_text))
    assert given.replicas == expected


def test_the_most_pairs_have_ports_of_their_own_below_rays():
    ports = load(GYM_REPLICAS=str(variables.MOST_REPLICAS)).servers()
    assert len(ports) == len(set(ports.values())) == 5 + 2 * (variables.MOST_REPLICAS - 1)
    assert (ports["agent_2"], ports["resource_2"], max(ports.values())) == (29005, 29006, 29038)
    assert variables.declared()["GYM_REPLICAS"].bounds == f"0..{variables.MOST_REPLICAS}"
    assert load(GYM_REPLICAS="1").servers() == {name: 29000 + n for name, n in variables.PORT_OFFSETS.items()}


# --- start ---------------------------------------------------------------------------------


def test_a_second_start_waits_for_the_first(tmp_path):
    settings, stage = SimpleNamespace(RUN_DIR=tmp_path / "run"), SimpleNamespace(detail=lambda text: None)
    entered = threading.Event()

    def second():
        with graph.only_start(settings, stage):
            entered.set()

    waiting = threading.Thread(target=second, daemon=True)
    with graph.only_start(settings, stage):
        waiting.start()
        assert not entered.wait(0.3)
    assert entered.wait(10)
