"""The durable record: what survives, who may read it, and what is never in it."""

import asyncio
import sqlite3
import stat

import pytest

from gateway.store import Store, Unreadable

pytestmark = pytest.mark.anyio

SNAPSHOT = {"status": "completed", "reward": 1.0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trials.sqlite"


@pytest.fixture
async def store(path):
    opened = Store(path)
    yield opened
    opened.close()


@pytest.mark.parametrize("before", [(), ("trials.sqlite", "trials.sqlite-wal")], ids=["fresh", "open to others"])
async def test_only_the_owner_may_read_any_of_its_files(path, before):
    for name in before:
        (path.parent / name).touch()
        (path.parent / name).chmod(0o644)
    store = Store(path)
    await store.insert("a", "digest", "rollout", 1.0)
    modes = [stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("trials.sqlite*")]
    assert set(modes) == {0o600} and len(modes) > 1, "it writes ahead, into files beside the database"
    store.close()


async def test_a_trial_goes_in_once_and_comes_out_as_it_first_ended(store):
    assert await store.find("a") is None
    await store.insert("a", "digest", "rollout", 1.0)
    assert await store.find("a") == ("digest", None)
    with pytest.raises(sqlite3.IntegrityError):
        await store.insert("a", "other", "other", 2.0)
    assert await store.unfinished() == [("a", "rollout")] and await store.count() == 0
    await asyncio.gather(*(store.finish("a", SNAPSHOT | {"end": n}, float(n)) for n in range(20)))
    assert await store.find("a") == ("digest", SNAPSHOT | {"end": 0})
    assert await store.unfinished() == [] and await store.count() == 1


async def test_what_it_returned_from_is_there_after_the_process_and_nothing_else_is(path):
    store = Store(path)
    await store.insert("done", "digest", "rollout-1", 1.0)
    await store.finish("done", SNAPSHOT, 2.0)
    await store.insert("open", "digest", "rollout-2", 1.0)
    # As a kill leaves it: the connection is not closed.
    rows = sqlite3.connect(path).execute("SELECT * FROM trials").fetchall()
    ended = '{"status": "completed", "reward": 1.0}'
    assert rows == [("done", "digest", "rollout-1", 1.0, 2.0, ended), ("open", "digest", "rollout-2", 1.0, None, None)]
    again = Store(path)
    assert (await again.find("done"), await again.unfinished()) == (("digest", SNAPSHOT), [("open", "rollout-2")])
    for each in (store, again):
        each.close()


async def test_the_salt_is_the_same_after_a_restart_and_another_in_another_file(path, tmp_path):
    stores = [Store(path), Store(path), Store(tmp_path / "other.sqlite")]
    first, second, other = (store.salt for store in stores)
    assert first == second != other and len(first) == 32
    for store in stores:
        store.close()


async def test_retention_forgets_what_ended_before_and_nothing_that_runs(store):
    for number in range(10):
        await store.insert(f"ended-{number}", "digest", f"rollout-{number}", 0.0)
        await store.finish(f"ended-{number}", SNAPSHOT, float(number))
    await store.insert("running", "digest", "rollout", 0.0)
    assert [await store.drop_before(4.0) for _ in range(2)] == [4, 0]
    assert await store.count() == 6
    assert await store.find("ended-3") is None
    assert await store.find("ended-4") is not None
    assert await store.unfinished() == [("running", "rollout")]


async def test_a_trajectory_is_kept_once_packed_and_goes_with_its_record(store, path):
    for name in ("a", "b"):
        await store.insert(name, "digest", f"rollout-{name}", 0.0)
        await store.keep_trajectory(name, {"output": [{"said": name * 10_000}]})
    await store.keep_trajectory("a", {"output": []})
    assert await store.trajectory("a") == {"output": [{"said": "a" * 10_000}]}
    assert sqlite3.connect(path).execute("SELECT max(length(packed)) FROM trajectories").fetchone()[0] < 200
    await store.finish("a", SNAPSHOT, 1.0)
    assert await store.drop_before(2.0) == 1
    assert await store.trajectory("a") is None and await store.trajectory("b")


@pytest.mark.parametrize("damage", ["other", "inside"])
async def test_a_damaged_file_is_refused_and_left_as_it_is(path, damage):
    store = Store(path)
    for number in range(200):
        await store.insert(f"relax-{number}", "digest" * 20, "rollout", 1.0)
    store.close()
    data = path.read_bytes()
    data = b"no database" * 100 if damage == "other" else data[:4096] + b"\xff" * 4096 + data[8192:]
    path.write_bytes(data)
    with pytest.raises(Unreadable, match=str(path)):
        Store(path)
    assert path.read_bytes() == data
