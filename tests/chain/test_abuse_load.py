"""Many trials, many aborts, many clients: nothing is lost, run twice or left behind, and memory stays flat."""

import asyncio
import time

import aiohttp
import pytest
from test_leaks import MEGABYTE, descriptors, resident

from proofs.rig import CONCURRENCY, QUEUE, eventually
from support.abuse import size
from support.scripted_model import DONE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
# Idle connections between the servers come and go; a leak would be hundreds.
IDLE_CONNECTIONS = 30
GROWTH_BYTES = 40 * MEGABYTE
PATIENCE_S = 120


def instant(models):
    """A policy that closes at once, and keeps nothing of its calls but their number."""
    count = []

    def close(model_call):
        policy.calls.clear()
        count.append(1)
        return DONE

    policy = models.policy(close)
    return policy, count


class Crowd:
    """Clients of the trial protocol, all in one loop. Counts what the Gateway refused."""

    def __init__(self, graph, at_once):
        self.graph, self.places = graph, asyncio.Semaphore(at_once)
        self.refused, self.untimed = 0, 0

    async def ask(self, method, path, **options):
        """(status, headers, JSON) of a request, sent again when the queue is full."""
        while True:
            async with self.web.request(method, self.graph.url + path, **options) as answer:
                if answer.status != 429:
                    return answer.status, answer.headers, await answer.json(content_type=None)
                self.refused += 1
                self.untimed += not answer.headers.get("Retry-After", "").isdecimal()
                wait_s = float(answer.headers.get("Retry-After", 1))
            await asyncio.sleep(wait_s)

    async def trial(self, policy, then=None, **changes):
        """Run one trial to its end; `then(request_id)` comes between. Returns its snapshot."""
        async with self.places:
            payload = self.graph.payload(policy, deadline_s=600, **changes)
            status, _, snapshot = await self.ask("POST", "/v1/trials", json=payload)
            assert status == 202, snapshot
            path = f"/v1/trials/{payload['request_id']}"
            if then:
                await then(path)
            while snapshot["status"] in ("queued", "running"):
                _, _, snapshot = await self.ask("GET", f"{path}?wait_s=30")
            return snapshot

    async def _all(self, makers):
        headers = {"Authorization": f"Bearer {self.graph.token}"}
        async with aiohttp.ClientSession(
            headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=PATIENCE_S)
        ) as self.web:
            return await asyncio.gather(*(maker(self) for maker in makers))


def crowd(graph, makers, at_once):
    """Run `maker(crowd)` for each maker, `at_once` of them together. Returns (results, the Crowd)."""

    async def main():
        made = Crowd(graph, at_once)
        return await made._all(makers), made

    return asyncio.run(main())


def counts(snapshots):
    found = [(snapshot["status"], (snapshot["error"] or {}).get("code")) for snapshot in snapshots]
    return {kind: found.count(kind) for kind in set(found)}


def test_a_soak_of_short_trials_leaves_memory_and_descriptors_flat(graph, models, record_property):
    total = size("ABUSE_TRIALS")
    pids = {name: graph.pid(name) for name in ("gateway", "resource", "agent")}
    policy, calls = instant(models)

    def soak(count):
        snapshots, _ = crowd(graph, [lambda one: one.trial(policy)] * count, CONCURRENCY + QUEUE)
        assert counts(snapshots) == {("completed", None): count}
        graph.wait_released()

    soak(max(20, total // 10))
    files = {name: descriptors(pid) for name, pid in pids.items()}
    memory = {name: resident(pid) for name, pid in pids.items()}
    began, before = time.monotonic(), len(calls)
    soak(total)
    seconds = time.monotonic() - began
    assert len(calls) - before == total, "a trial was run twice or not at all"
    growth = {name: resident(pid) - memory[name] for name, pid in pids.items()}
    shown = {name: f"{bytes_ / MEGABYTE:+.1f} MB" for name, bytes_ in growth.items()}
    record_property("said", f"soak: {total} trials, {total / seconds:.0f} a second, memory {shown}")
    assert all(bytes_ < GROWTH_BYTES for bytes_ in growth.values()), shown

    def descriptors_are_back():
        return all(descriptors(pid) <= files[name] + IDLE_CONNECTIONS for name, pid in pids.items())

    eventually(descriptors_are_back, 40)
    assert {name: graph.pid(name) for name in pids} == pids


def test_an_abort_storm_ends_every_trial_once(graph, models, record_property):
    policy = models.hanging()

    def storm(one):
        async def abort(path):
            answers = await asyncio.gather(*(one.ask("POST", f"{path}/abort") for _ in range(3)))
            assert [status for status, _, _ in answers] == [202] * 3

        return one.trial(policy, then=abort)

    began = time.monotonic()
    snapshots, _ = crowd(graph, [storm] * size("ABUSE_ABORTS"), CONCURRENCY + QUEUE)
    record_property("said", f"abort storm: {len(snapshots)} trials in {time.monotonic() - began:.0f} s")
    assert counts(snapshots) == {("aborted", "aborted"): len(snapshots)}
    graph.wait_released()


def test_leases_that_nobody_renews_expire_under_load(graph, models):
    """Half of the trials are forgotten by their clients; they end, and the other half is none the worse."""
    hanging, (policy, _) = models.hanging(), instant(models)
    count = size("ABUSE_ABORTS") // 2
    forgotten = [lambda one: one.trial(hanging, lease_s=0.5)] * count
    kept = [lambda one: one.trial(policy)] * count
    snapshots, _ = crowd(
        graph, [maker for pair in zip(forgotten, kept, strict=True) for maker in pair], CONCURRENCY + QUEUE
    )
    assert counts(snapshots) == {("aborted", "lease_expired"): count, ("completed", None): count}
    graph.wait_released()


def test_more_clients_than_the_queue_holds_are_told_when_to_come_back(graph, models, record_property):
    policy, calls = instant(models)
    count = size("ABUSE_CLIENTS")
    snapshots, seen = crowd(graph, [lambda one: one.trial(policy)] * count, count)
    record_property("said", f"{count} clients at once: {seen.refused} refusals with Retry-After, all trials run")
    assert counts(snapshots) == {("completed", None): count}
    assert len(calls) == count, "a trial was run twice or not at all"
    assert seen.refused > 0 and seen.untimed == 0
    graph.wait_released()
