"""Many trials, many aborts, many clients: nothing is lost, run twice or left behind, and memory stays flat."""

import asyncio
import time
from collections import Counter

import aiohttp
import pytest

from proofs.rig import CONCURRENCY, QUEUE
from support.abuse import size
from support.footprint import MEGABYTE, Footprint
from support.scripted_model import DONE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def instant(models):
    """A policy that closes at once, and a list with one item for each of its calls."""
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


def crowd(graph, makers, at_once=CONCURRENCY + QUEUE):
    """Run `maker(crowd)` for each maker, `at_once` of them together. Returns (how they ended, the Crowd)."""

    async def main():
        clients, options = Crowd(graph, at_once), {"connector": aiohttp.TCPConnector(limit=0)}
        options |= {"headers": {"Authorization": f"Bearer {graph.token}"}, "timeout": aiohttp.ClientTimeout(total=120)}
        async with aiohttp.ClientSession(**options) as clients.web:
            snapshots = await asyncio.gather(*(maker(clients) for maker in makers))
        return Counter((snapshot["status"], (snapshot["error"] or {}).get("code")) for snapshot in snapshots), clients

    ended = asyncio.run(main())
    graph.wait_released()
    return ended


def test_a_soak_of_short_trials_leaves_memory_and_descriptors_flat(graph, models, record_property):
    total = size("ABUSE_TRIALS")
    policy, calls = instant(models)

    def soak(count):
        ended, _ = crowd(graph, [lambda client: client.trial(policy)] * count)
        assert ended == {("completed", None): count}

    soak(max(20, total // 10))
    before = Footprint(graph, ("gateway", "resource", "agent"))
    began, called = time.monotonic(), len(calls)
    soak(total)
    seconds = time.monotonic() - began
    assert len(calls) - called == total, "a trial was run twice or not at all"
    shown = {name: f"{grown / MEGABYTE:+.1f} MB" for name, grown in before.growth().items()}
    record_property("said", f"soak: {total} trials, {total / seconds:.0f} a second, memory {shown}")
    before.assert_kept(megabytes=40, connections=30, seconds=40)


def test_an_abort_storm_ends_every_trial_once(graph, models, record_property):
    policy, count = models.hanging(), size("ABUSE_ABORTS")

    def storm(client):
        async def abort(path):
            answers = await asyncio.gather(*(client.ask("POST", f"{path}/abort") for _ in range(3)))
            assert [status for status, _, _ in answers] == [202] * 3

        return client.trial(policy, then=abort)

    began = time.monotonic()
    ended, _ = crowd(graph, [storm] * count)
    record_property("said", f"abort storm: {count} trials in {time.monotonic() - began:.0f} s")
    assert ended == {("aborted", "aborted"): count}


def test_leases_that_nobody_renews_expire_under_load(graph, models):
    """Half of the trials are forgotten by their clients and end; the other half is none the worse."""
    hanging, (policy, _) = models.hanging(), instant(models)
    count = size("ABUSE_ABORTS") // 2
    makers = [lambda client: client.trial(hanging, lease_s=0.5), lambda client: client.trial(policy)] * count
    ended, _ = crowd(graph, makers)
    assert ended == {("aborted", "lease_expired"): count, ("completed", None): count}


def test_more_clients_than_the_queue_holds_are_told_when_to_come_back(graph, models, record_property):
    policy, calls = instant(models)
    count = size("ABUSE_CLIENTS")
    ended, clients = crowd(graph, [lambda client: client.trial(policy)] * count, count)
    record_property("said", f"{count} clients at once: {clients.refused} refusals with Retry-After, all trials run")
    assert ended == {("completed", None): count}
    assert len(calls) == count, "a trial was run twice or not at all"
    assert clients.refused > 0 and clients.untimed == 0
