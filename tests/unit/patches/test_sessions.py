"""The session table that the first patch adds to the resource server."""

from types import SimpleNamespace

import pytest

sessions = pytest.importorskip(
    "resources_servers.workplace_assistant.sessions", reason="the installed nemo-gym is not patched: make setup"
)

AGE_S = 100


@pytest.fixture
def clock():
    return SimpleNamespace(now=0.0)


@pytest.fixture
def table(clock, monkeypatch):
    """A table of which at the end is checked that what it holds by session and by rollout agrees, in order of time."""
    monkeypatch.setenv("GYM_SESSION_MAX_AGE_S", str(AGE_S))
    table = sessions.Sessions(lambda: clock.now)
    yield table
    by_rollout = {rollout: session for session, (_, rollout, _) in table._open.items() if rollout is not None}
    assert table._session_of == by_rollout
    for moments in ([used for used, _, _ in table._open.values()], list(table._ended.values())):
        assert moments == sorted(moments)


def test_a_session_serves_its_own_tools_until_its_rollout_ends(table):
    table.open("s1", "r1", "tools-1")
    table.open("s2", "r2", "tools-2")
    assert (table.use("s1"), table.use("s2"), table.use("s3")) == ("tools-1", "tools-2", None)
    assert table.count() == 2 and not table.is_clean("r1")
    table.end_session("s1")
    assert table.is_clean("r1") and table.use("s1") is None and table.use("s2") == "tools-2"
    table.end_rollout("r2")
    assert table.is_clean("r2") and table.use("s2") is None and table.count() == 0


def test_a_rollout_that_ended_never_opens_again(table):
    table.open("s1", "verified", "tools")
    table.end_session("s1")
    table.end_rollout("cleaned-before-it-came")
    for rollout in ("verified", "cleaned-before-it-came"):
        with pytest.raises(sessions.RolloutEnded):
            table.open("s2", rollout, "tools")
        assert table.is_clean(rollout)
    assert table.count() == 0


def test_ends_may_be_said_twice_and_of_nobody(table):
    table.end_session("unknown")
    table.end_rollout("unknown")
    table.open("s1", "r1", "tools")
    for _ in range(2):
        table.end_session("s1")
        table.end_rollout("r1")
    assert table.count() == 0 and table.is_clean("r1")


def test_seeding_again_leaves_one_state(table):
    table.open("s1", "r1", "old")
    table.open("s1", "r1", "new")
    assert table.count() == 1 and table.use("s1") == "new"
    table.open("s2", "r1", "newest")
    assert table.count() == 1 and table.use("s1") is None and table.use("s2") == "newest"
    table.open("s2", "r2", "another rollout's")
    assert table.is_clean("r1") and not table.is_clean("r2")


def test_a_session_without_a_rollout_works_as_upstream(table):
    table.open("s1", None, "a")
    table.open("s2", None, "b")
    assert (table.use("s1"), table.use("s2"), table.count()) == ("a", "b", 2)
    table.end_session("s1")
    table.open("s1", None, "again")
    assert table.use("s1") == "again" and not table._ended


def test_what_nobody_used_for_its_age_leaves_in_order_of_use(table, clock):
    for number in range(5):
        clock.now = number * 10.0
        table.open(f"s{number}", f"r{number}", number)
    clock.now = 60.0
    table.use("s0")
    clock.now = 10 + AGE_S
    assert table.count() == 5, "exactly its age is not beyond it"
    clock.now = 20 + AGE_S + 1.0
    assert table.count() == 3
    assert table.is_clean("r1") and table.is_clean("r2") and table.use("s0") == 0
    clock.now = 1000.0
    assert table.count() == 0
    assert all(table.is_clean(f"r{number}") for number in range(5))


def test_opening_expires_too_so_that_memory_is_bounded_without_anybody_asking(table, clock):
    for number in range(10_000):
        clock.now = float(number)
        table.open(f"s{number}", f"r{number}", number)
        assert len(table._open) <= AGE_S + 1 and len(table._ended) <= AGE_S + 1


def test_an_expired_rollout_stays_ended_for_its_age_again(table, clock):
    table.open("s1", "r1", "tools")
    clock.now = AGE_S + 1.0
    assert table.count() == 0
    with pytest.raises(sessions.RolloutEnded):
        table.open("s1", "r1", "tools")
    clock.now += AGE_S + 1.0
    assert table.count() == 0
    assert not table._ended


def test_without_a_variable_nothing_expires(clock, monkeypatch):
    monkeypatch.delenv("GYM_SESSION_MAX_AGE_S", raising=False)
    table = sessions.Sessions(lambda: clock.now)
    table.open("s1", "r1", "tools")
    clock.now = 1e12
    assert table.count() == 1


def test_each_start_has_an_epoch_of_its_own():
    assert sessions.Sessions().epoch != sessions.Sessions().epoch
