"""The durable record: what survives, who may read it, and what is never in it."""

import asyncio
import json
import sqlite3
import stat

import pytest

from gateway.store import Store, Unreadable

SNAPSHOT = {"status": "completed", "reward": 1.0}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "trials.sqlite"


def with_store(path, work):
    """Run `await work(store)` on a fresh store at `path` and close it."""

    async def run():
        store = Store(path)
        try:
            return await work(store)
        finally:
            store.close()

    return asyncio.run(run())


def test_only_the_owner_may_read_any_of_its_files(path):
    async def work(store):
        await store.insert("a", "digest", "rollout", 1.0)
        files = list(path.parent.glob("trials.sqlite*"))
        assert len(files) > 1, "WAL keeps files beside the database"
        return {file.name: stat.S_IMODE(file.stat().st_mode) for file in files}

    assert set(with_store(path, work).values()) == {0o600}


def test_it_writes_ahead(path):
    async def work(store):
        return await store._run("PRAGMA journal_mode")

    assert with_store(path, work) == [("wal",)]


def test_a_trial_goes_in_once_and_comes_out_as_it_ended(path):
    async def work(store):
        assert await store.find("a") is None
        await store.insert("a", "digest", "rollout", 1.0)
        assert await store.find("a") == ("digest", None)
        with pytest.raises(sqlite3.IntegrityError):
            await store.insert("a", "other", "other", 2.0)
        assert await store.unfinished() == [("a", "rollout")]
        assert await store.count() == 0
        await store.finish("a", SNAPSHOT, 3.0)
        assert await store.find("a") == ("digest", SNAPSHOT)
        assert await store.unfinished() == []
        assert await store.count() == 1

    with_store(path, work)


def test_the_first_end_stays(path):
    async def work(store):
        await store.insert("a", "digest", "rollout", 1.0)
        await asyncio.gather(*(store.finish("a", {"end": n}, float(n)) for n in range(20)))
        return await store.find("a")

    assert with_store(path, work) == ("digest", {"end": 0})


def test_what_it_returned_from_is_there_after_the_process(path):
    async def write(store):
        await store.insert("done", "digest", "rollout-1", 1.0)
        await store.finish("done", SNAPSHOT, 2.0)
        await store.insert("open", "digest", "rollout-2", 1.0)
        # As a kill leaves it: the connection is never closed.
        return sqlite3.connect(path).execute("SELECT count(*) FROM trials").fetchone()

    async def read(store):
        return await store.find("done"), await store.unfinished()

    assert with_store(path, write) == (2,)
    assert with_store(path, read) == (("digest", SNAPSHOT), [("open", "rollout-2")])


def test_the_salt_is_the_same_after_a_restart_and_another_in_another_file(path, tmp_path):
    async def salt(store):
        return store.salt

    first, second = with_store(path, salt), with_store(path, salt)
    assert first == second != with_store(tmp_path / "other.sqlite", salt)
    assert len(first) == 32


def test_retention_forgets_what_ended_before_and_nothing_that_runs(path):
    async def work(store):
        for number in range(10):
            await store.insert(f"ended-{number}", "digest", f"rollout-{number}", 0.0)
            await store.finish(f"ended-{number}", SNAPSHOT, float(number))
        await store.insert("running", "digest", "rollout", 0.0)
        assert await store.drop_before(4.0) == 4
        assert await store.drop_before(4.0) == 0
        assert await store.count() == 6
        assert await store.find("ended-3") is None
        assert await store.find("ended-4") is not None
        assert await store.unfinished() == [("running", "rollout")]

    with_store(path, work)


def test_it_holds_only_what_it_was_given(path):
    async def work(store):
        await store.insert("a", "digest", "rollout", 1.0)
        await store.finish("a", SNAPSHOT, 2.0)
        return await store._run("SELECT * FROM trials")

    assert with_store(path, work) == [("a", "digest", "rollout", 1.0, 2.0, json.dumps(SNAPSHOT))]


def test_a_trajectory_is_kept_once_packed_and_goes_with_its_record(path):
    async def work(store):
        for name in ("a", "b"):
            await store.insert(name, "digest", f"rollout-{name}", 0.0)
            await store.keep_trajectory(name, {"output": [{"said": name * 10_000}]})
        await store.keep_trajectory("a", {"output": []})
        assert await store.trajectory("a") == {"output": [{"said": "a" * 10_000}]}
        assert (await store._run("SELECT max(length(packed)) FROM trajectories"))[0][0] < 200
        await store.finish("a", SNAPSHOT, 1.0)
        assert await store.drop_before(2.0) == 1
        assert await store.trajectory("a") is None and await store.trajectory("b")

    with_store(path, work)


def test_a_file_that_was_open_to_others_is_closed_to_them(path):
    for name in ("trials.sqlite", "trials.sqlite-wal"):
        (path.parent / name).touch()
        (path.parent / name).chmod(0o644)

    async def work(store):
        await store.insert("a", "digest", "rollout", 1.0)
        return {stat.S_IMODE(file.stat().st_mode) for file in path.parent.glob("trials.sqlite*")}

    assert with_store(path, work) == {0o600}


async def nothing(store):
    return None


@pytest.mark.parametrize("damage", ["other", "inside"])
def test_a_damaged_file_is_refused_and_left_as_it_is(path, damage):
    async def fill(store):
        for number in range(200):
            await store.insert(f"relax-{number}", "digest" * 20, "rollout", 1.0)

    with_store(path, fill)
    data = path.read_bytes()
    data = b"no database" * 100 if damage == "other" else data[:4096] + b"\xff" * 4096 + data[8192:]
    path.write_bytes(data)
    with pytest.raises(Unreadable, match=str(path)):
        with_store(path, nothing)
    assert path.read_bytes() == data
