"""The trials of a Gateway with a made-up environment: every ending, every race, and nothing left of any."""

import asyncio
import contextlib
import gc
import random
import sqlite3
import time
from types import SimpleNamespace

import pytest

from gateway import trials as module
from gateway.environment import STARTS, Unreached
from gateway.model_calls import EndpointFault, TooManyCalls
from gateway.payload import ApiError, Endpoint, TrialRequest
from gateway.store import Store
from gateway.trial import Fault, Outcome, Status, failed
from gateway.trials import Trials

SECRET = "bearer-that-nobody-may-see"
LIMITS = {"WORKPLACE_ASSISTANT_MAX_CONCURRENCY": 4, "GATEWAY_QUEUE_LIMIT": 3, "GATEWAY_RETENTION_S": 3600}
ENDED = {"completed", "truncated", "aborted", "failed"}


def request(number, digest="d", deadline_s=600, lease_s=60, keeps_trajectory=False):
    endpoint = Endpoint("http://h/v1/responses", "m", {"Authorization": SECRET}, (SECRET,))
    return TrialRequest(
        f"relax-{number}", digest, {"task": number}, endpoint, {}, deadline_s, lease_s, keeps_trajectory
    )


class MadeUpEnvironment:
    """Its one pair: runs rollouts as `script[task]` says, a coroutine function of (environment, rollout id)
    to an Outcome."""

    def __init__(self):
        self.pairs, self.trials, self.starts = [self], 0, asyncio.Semaphore(STARTS)
        self.ready, self.script, self.unclean = asyncio.Event(), {}, None
        self.ready.set()
        self.state, self.runs, self.most, self.cleaned = {}, [], 0, []

    async def choose(self):
        await self.ready.wait()
        return self

    async def run(self, rollout_id, run_request):
        task = run_request["task"]
        self.runs.append(task)
        self.state[rollout_id] = task
        self.most = max(self.most, len(self.state))
        try:
            outcome = await self.script.get(task, complete)(self, rollout_id)
        except Unreached:
            del self.state[rollout_id]
            raise
        del self.state[rollout_id]
        return outcome

    async def clean(self, rollout_id, asked_first):
        await asyncio.sleep(0)
        if self.unclean:
            return self.unclean
        assert asked_first or rollout_id not in self.state
        self.state.pop(rollout_id, None)
        self.cleaned.append(rollout_id)


async def complete(environment, rollout_id):
    await asyncio.sleep(0)
    return Outcome(Status.COMPLETED, 1.0, {"tool_calls": 1})


async def hang(environment, rollout_id):
    await asyncio.sleep(1000)


async def break_down(environment, rollout_id):
    raise RuntimeError("a fault of our own")


async def fail(environment, rollout_id):
    return failed("agent_error", "run_failed", "why")


class MadeUpModel:
    async def forward(self, endpoint, call_params, body, deadline):
        assert endpoint.headers["Authorization"] == SECRET
        if isinstance(body, tuple):
            raise body[0](*body[1:])
        if asyncio.iscoroutinefunction(body):
            return await body()
        return body


class Bench:
    """Trials on a store in `folder`, with a made-up environment and model."""

    def __init__(self, folder, limits):
        self.store, self.environment = Store(folder / "trials.sqlite"), MadeUpEnvironment()
        self.trials = Trials(SimpleNamespace(**LIMITS | limits), self.store, MadeUpModel())

    async def __aenter__(self):
        await self.trials.start(self.environment)
        return self

    async def __aexit__(self, kind, *_):
        if kind is None:
            await self.trials.stop()
            await self.check_nothing_is_left()
        self.store.close()

    async def check_nothing_is_left(self):
        while self.trials._tasks:  # cancelled, and soon gone
            await asyncio.sleep(0.001)
        assert not self.trials.live and not self.trials._by_rollout
        assert self.environment.trials == 0 and self.environment.starts._value == STARTS
        assert self.trials._slots._value == self.trials.settings.WORKPLACE_ASSISTANT_MAX_CONCURRENCY

    async def create(self, number, script=None, **more):
        if script:
            self.environment.script[number] = script
        return await self.trials.create(request(number, **more))

    async def until(self, number, *statuses):
        while (shown := await self.trials.show(f"relax-{number}"))["status"] not in (statuses or ENDED):
            await asyncio.sleep(0.002)
        return shown

    def rollout(self, number):
        return self.trials.live[f"relax-{number}"].rollout_id

    def break_store(self, *names):
        """Let the store fail at `names`, as a full disk does. Returns what heals it."""
        healthy = {name: getattr(self.store, name) for name in names}

        async def broken(*_):
            await asyncio.sleep(0)
            raise sqlite3.OperationalError("database or disk is full")

        for name in names:
            setattr(self.store, name, broken)
        return lambda: [setattr(self.store, name, work) for name, work in healthy.items()]


@pytest.fixture
def bench(tmp_path):
    """Run `async work(bench)` on a fresh bench; what it leaves is checked."""

    def run(work, **limits):
        async def main():
            async with asyncio.timeout(60), Bench(tmp_path, limits) as made:
                return await work(made)

        return asyncio.run(main())

    return run


async def refused(work, status, code):
    with pytest.raises(ApiError) as error:
        await work
    assert (error.value.status, error.value.code) == (status, code)
    return error.value


def ending(shown):
    return shown["status"], shown["reward"], (shown["error"] or {}).get("code")


# --- endings -------------------------------------------------------------------------------


def test_a_trial_runs_to_its_reward_and_its_state_is_cleaned(bench):
    async def work(b):
        assert (await b.create(1))["status"] == "queued"
        shown = await b.until(1)
        assert ending(shown) == ("completed", 1.0, None)
        assert shown["metrics"] == {"tool_calls": 1, "model_calls": 0}
        assert len(b.environment.cleaned) == 1 and b.trials.ended_count == 1
        assert await b.trials.show("relax-1", 60) == shown

    bench(work)


@pytest.mark.parametrize(
    ("script", "more", "expected"),
    [
        (complete, {}, ("completed", 1.0, None)),
        (fail, {}, ("failed", None, "agent_error")),
        (break_down, {}, ("failed", None, "agent_error")),
        (hang, {"deadline_s": 0.1}, ("truncated", None, "deadline_exceeded")),
        (hang, {"lease_s": 0.1}, ("aborted", None, "lease_expired")),
    ],
)
def test_every_ending_frees_everything(bench, script, more, expected):
    async def work(b):
        await b.create(1, script, **more)
        assert ending(await b.trials.show("relax-1", 10)) == expected
        assert not b.environment.state and not b.trials.live

    bench(work)


def test_an_abort_ends_a_running_trial_once_its_state_is_gone(bench):
    async def work(b):
        await b.create(1, hang)
        await b.until(1, "running")
        assert (await b.trials.abort("relax-1"))["status"] == "running"
        assert b.environment.state
        shown = await b.trials.show("relax-1", 10)
        assert ending(shown) == ("aborted", None, "aborted") and not b.environment.state
        assert await b.trials.abort("relax-1") == shown

    bench(work)


def test_an_abort_in_the_queue_starts_nothing(bench):
    async def work(b):
        await b.create(1, hang)
        await b.create(2)
        await b.until(1, "running")
        await b.trials.abort("relax-2")
        assert ending(await b.until(2)) == ("aborted", None, "aborted")
        assert b.environment.runs == [1] and not b.environment.cleaned
        await b.create(3)
        await b.trials.abort("relax-1")
        assert ending(await b.until(3)) == ("completed", 1.0, None)

    bench(work, WORKPLACE_ASSISTANT_MAX_CONCURRENCY=1)


def test_time_runs_in_the_queue_too(bench):
    async def work(b):
        await b.create(1, hang)
        await b.create(2, deadline_s=0.1)
        await b.create(3, lease_s=0.1)
        assert ending(await b.until(2)) == ("truncated", None, "deadline_exceeded")
        assert ending(await b.until(3)) == ("aborted", None, "lease_expired")
        assert b.environment.runs == [1]

    bench(work, WORKPLACE_ASSISTANT_MAX_CONCURRENCY=1)


def test_renewals_keep_a_trial_alive_and_do_nothing_for_an_ended_or_unknown_one(bench):
    async def work(b):
        await b.create(1, hang, lease_s=0.5)
        for _ in range(20):
            await asyncio.sleep(0.05)
            await b.trials.renew("relax-1")
        assert (await b.trials.show("relax-1"))["status"] == "running"
        shown = await b.trials.show("relax-1", 10)
        assert ending(shown) == ("aborted", None, "lease_expired")
        await b.trials.renew("relax-1")
        assert await b.trials.show("relax-1") == shown
        await refused(b.trials.renew("relax-2"), 404, "trial_unknown")
        await refused(b.trials.abort("relax-2"), 404, "trial_unknown")
        await refused(b.trials.show("relax-2", 60), 404, "trial_unknown")

    bench(work)


def test_a_long_poll_answers_at_the_end_or_in_time(bench):
    async def work(b):
        await b.create(1, hang)
        began = time.monotonic()
        assert (await b.trials.show("relax-1", 0.2))["status"] == "running"
        assert 0.2 <= time.monotonic() - began < 5
        polls = [asyncio.create_task(b.trials.show("relax-1", 60)) for _ in range(20)]
        await asyncio.sleep(0)
        await b.trials.abort("relax-1")
        shown = await asyncio.gather(*polls)
        assert {ending(each) for each in shown} == {("aborted", None, "aborted")}

    bench(work)


def test_without_proof_a_trial_is_failed_and_cleaning_goes_on(bench):
    async def work(b):
        b.environment.unclean = Fault("cleanup_unverified", None, "state is left")
        await b.create(1)
        shown = await b.until(1)
        assert ending(shown) == ("failed", None, "cleanup_unverified")
        assert shown["error"]["cause"] == "after completed: state is left"
        await b.create(2, hang)
        await b.until(2, "running")
        await b.trials.abort("relax-2")
        assert (await b.until(2))["error"]["cause"] == "after aborted: state is left"
        b.environment.unclean = None
        while len(b.environment.cleaned) < 2:
            await asyncio.sleep(0.01)
        assert not b.environment.state

    bench(work)


def test_a_lost_server_ends_what_runs_and_nothing_that_waits(bench):
    async def work(b):
        await b.create(1, hang)
        await b.create(2)
        await b.until(1, "running")
        lost = failed("agent_error", "resource_server_lost", "GET http://h: refused")
        b.trials.settle_lost(MadeUpEnvironment(), lost)
        await asyncio.sleep(0.05)
        assert (await b.trials.show("relax-1"))["status"] == "running", "another pair was lost"
        b.trials.settle_lost(b.environment, lost)
        shown = await b.until(1)
        assert shown["error"]["type"] == "resource_server_lost"
        assert ending(await b.until(2)) == ("completed", 1.0, None)

    bench(work, WORKPLACE_ASSISTANT_MAX_CONCURRENCY=1)


def test_trials_wait_for_servers_that_are_not_ready(bench):
    async def work(b):
        b.environment.ready.clear()
        await b.create(1)
        await asyncio.sleep(0.05)
        assert (await b.trials.show("relax-1"))["status"] == "queued" and not b.environment.runs
        b.environment.ready.set()
        assert ending(await b.until(1)) == ("completed", 1.0, None)

    bench(work)


def test_a_trial_whose_agent_was_not_reached_runs_on_another_pair(bench):
    async def unreached(environment, rollout_id):
        environment.script[1] = complete
        raise Unreached

    async def work(b):
        await b.create(1, unreached)
        assert ending(await b.until(1)) == ("completed", 1.0, None)
        assert b.environment.runs == [1, 1]

    bench(work)


def test_a_trial_that_no_pair_takes_ends_in_time_without_any_clean_up(bench):
    async def unreached(environment, rollout_id):
        environment.ready.clear()
        environment.unclean = Fault("cleanup_failed")
        raise Unreached

    async def work(b):
        await b.create(1, unreached, deadline_s=0.3)
        assert ending(await b.until(1)) == ("truncated", None, "deadline_exceeded")

    bench(work)


def test_a_crowd_begins_a_few_at_a_time_and_then_runs_all_at_once(bench):
    """Until its model is called a rollout is one of STARTS; those behind it are neither running nor lost."""
    crowd = STARTS + 5

    async def work(b):
        for number in range(crowd):
            await b.create(number, hang)
        await b.until(STARTS - 1, "running")
        await asyncio.sleep(0.05)
        assert len(b.environment.runs) == STARTS and b.trials.queued() == 5
        for rollout_id, number in list(b.environment.state.items()):
            if number != 0:
                await b.trials.model_call(rollout_id, {"output": []})
        await b.until(crowd - 1, "running")
        assert len(b.environment.runs) == crowd and b.trials.queued() == 0
        await b.trials.abort("relax-0")
        await b.until(0)

    bench(work, WORKPLACE_ASSISTANT_MAX_CONCURRENCY=crowd)


# --- admission -----------------------------------------------------------------------------


def test_a_full_queue_is_a_429_and_the_others_run(bench):
    async def work(b):
        for number in range(7):
            await b.create(number, hang)
        error = await refused(b.create(7), 429, "queue_full")
        assert int(error.headers["Retry-After"]) > 0
        assert (await b.create(6))["status"] == "queued", "a twin of one that waits is no new one"
        await b.trials.abort("relax-6")
        await b.until(6)
        await b.create(7, hang)
        assert len(b.environment.runs) == 4 and b.trials.queued() == 3

    bench(work)


def test_a_full_queue_turns_new_trials_away_before_their_payload_is_looked_at(bench):
    async def work(b):
        await b.create(0)
        await b.until(0)
        await b.trials.admit("relax-9")
        for number in range(1, 8):
            await b.create(number, hang)
        for known in ("relax-0", "relax-1", "relax-7"):
            await b.trials.admit(known)
        waits = {
            (await refused(b.trials.admit("relax-9"), 429, "queue_full")).headers["Retry-After"] for _ in range(40)
        }
        assert len(waits) > 1, "who is refused at one moment comes back at several"
        await b.trials.abort("relax-7")
        await b.until(7)
        await b.trials.admit("relax-9")

    bench(work)


def test_the_queue_is_bounded_in_a_burst_too(bench):
    async def work(b):
        answers = await asyncio.gather(*(b.create(n, hang) for n in range(200)), return_exceptions=True)
        accepted = [answer for answer in answers if isinstance(answer, dict)]
        assert len(accepted) == 4 + 3
        assert {answer.code for answer in answers if not isinstance(answer, dict)} == {"queue_full"}

    bench(work)


def test_without_a_queue_as_many_as_there_are_slots_are_taken(bench):
    async def work(b):
        answers = await asyncio.gather(*(b.create(n, hang) for n in range(10)), return_exceptions=True)
        assert sum(isinstance(answer, dict) for answer in answers) == 4

    bench(work, GATEWAY_QUEUE_LIMIT=0)


@pytest.mark.parametrize("script", [complete, hang])
def test_duplicates_created_at_once_start_once(bench, script):
    async def work(b):
        shown = await asyncio.gather(*(b.create(1, script) for _ in range(50)))
        assert len(shown) == 50
        if script is hang:
            await b.until(1, "running")
            await b.trials.abort("relax-1")
        await b.until(1)
        assert b.environment.runs == [1] and b.trials.ended_count == 1
        assert await b.create(1) == await b.trials.show("relax-1")

    bench(work)


def test_another_payload_under_a_known_id_is_a_409_while_it_runs_and_after(bench):
    async def work(b):
        await b.create(1, hang)
        await b.until(1, "running")
        await refused(b.create(1, digest="other"), 409, "payload_differs")
        await b.trials.abort("relax-1")
        await b.until(1)
        await refused(b.create(1, digest="other"), 409, "payload_differs")
        assert b.environment.runs == [1]

    bench(work)


def test_creates_and_aborts_race_into_one_end(bench):
    async def work(b):
        for number in range(100):
            creates = [b.create(number) for _ in range(3)]
            aborts = [quietly(b.trials.abort(f"relax-{number}")) for _ in range(3)]
            await asyncio.gather(*creates, *aborts)
            final = await b.until(number)
            assert await b.until(number) == final
        assert len(b.environment.runs) == len(set(b.environment.runs))

    bench(work)


async def quietly(work):
    with contextlib.suppress(ApiError):
        return await work


# --- model calls ---------------------------------------------------------------------------


def calling(body):
    async def script(environment, rollout_id):
        await environment.bench.trials.model_call(rollout_id, body)
        return await complete(environment, rollout_id)

    return script


@pytest.mark.parametrize(
    ("body", "expected", "kind"),
    [
        ({"usage": {"input_tokens": 3, "output_tokens": 4}}, ("completed", 1.0, None), None),
        ({"usage": None}, ("completed", 1.0, None), None),
        ((TooManyCalls, "17 tool calls"), ("truncated", 0.0, "too_many_calls"), None),
        ((EndpointFault, "status", "http://h answered 400"), ("failed", None, "agent_error"), "endpoint_status"),
        ((EndpointFault, "unreachable", "http://h"), ("failed", None, "agent_error"), "endpoint_unreachable"),
    ],
)
def test_who_is_at_fault_decides_between_a_reward_and_none(bench, body, expected, kind):
    async def work(b):
        b.environment.bench = b
        await b.create(1, calling(body))
        shown = await b.until(1)
        assert ending(shown) == expected
        assert (shown["error"] or {}).get("type") == kind
        if expected[0] == "completed":
            tokens = body["usage"] or {}
            assert shown["metrics"] == {"tool_calls": 1, "model_calls": 1, **tokens}

    bench(work)


def test_a_model_call_of_an_ended_or_unknown_rollout_is_a_410(bench):
    async def work(b):
        await refused(b.trials.model_call("nobody", {}), 410, "rollout_ended")
        await refused(b.trials.model_call(None, {}), 410, "rollout_ended")
        await b.create(1, hang)
        rollout = b.rollout(1)
        await b.until(1, "running")
        assert await b.trials.model_call(rollout, {"output": []}) == {"output": []}
        await b.trials.abort("relax-1")
        await refused(b.trials.model_call(rollout, {}), 410, "rollout_ended")
        await b.until(1)
        await refused(b.trials.model_call(rollout, {}), 410, "rollout_ended")

    bench(work)


def test_the_end_of_a_trial_ends_its_model_calls(bench):
    async def forever():
        await asyncio.sleep(1000)

    async def too_late():
        raise TimeoutError

    async def work(b):
        kinds = [(forever, {}), (too_late, {"deadline_s": 0.2}), (forever, {"lease_s": 0.2})]
        for number, (body, more) in enumerate(kinds):
            await b.create(number, hang, **more)
            await b.until(number, "running")
            call = asyncio.create_task(b.trials.model_call(b.rollout(number), body))
            await asyncio.sleep(0.01)
            if not more:
                await b.trials.abort(f"relax-{number}")
            await refused(call, 410, "rollout_ended")
            assert (await b.until(number))["reward"] is None

    bench(work)


# --- trajectories --------------------------------------------------------------------------

ASKED = {"input": [{"role": "user"}]}
SAID = {"output": [{"type": "function_call"}]}


def saying(then):
    """A rollout with one model call, which ends as `then` does."""

    async def script(environment, rollout_id):
        await environment.bench.trials.model_call(rollout_id, ASKED | {"answer": SAID})
        return await then(environment, rollout_id)

    return script


async def with_items(environment, rollout_id):
    return Outcome(Status.COMPLETED, 1.0, {}, output=[*SAID["output"], {"type": "message"}])


def answering(b):
    async def forward(endpoint, call_params, body, deadline):
        return body["answer"]

    b.environment.bench, b.trials.model_calls.forward = b, forward


@pytest.mark.parametrize(
    ("then", "output"),
    [(with_items, [*SAID["output"], {"type": "message"}]), (hang, SAID["output"]), (fail, SAID["output"])],
)
def test_a_trajectory_is_kept_for_whom_it_was_asked(bench, then, output):
    async def work(b):
        answering(b)
        for number, wanted in ((1, True), (2, False)):
            await b.create(number, saying(then), keeps_trajectory=wanted, deadline_s=0.5)
        polled = await b.trials.show("relax-1", 60)
        found = await b.trials.trajectory("relax-1")
        assert (found["input"], found["output"], found["reward"]) == (ASKED["input"], output, polled["reward"])
        assert polled["artifact_ref"] == "/v1/trials/relax-1/trajectory"
        assert await b.trials.show("relax-1") == polled
        assert (await b.until(2))["artifact_ref"] is None
        await refused(b.trials.trajectory("relax-2"), 404, "trajectory_unknown")
        await refused(b.trials.trajectory("relax-3"), 404, "trial_unknown")
        assert len(await b.store._run("SELECT * FROM trajectories")) == 1

    bench(work)


def test_a_trial_whose_model_was_never_called_has_no_trajectory(bench):
    async def work(b):
        await b.create(1, complete, keeps_trajectory=True)
        assert (await b.until(1))["artifact_ref"] is None
        await refused(b.trials.trajectory("relax-1"), 404, "trajectory_unknown")

    bench(work)


def test_a_trajectory_that_could_not_be_saved_is_served_from_memory(bench):
    async def work(b):
        answering(b)
        heal = b.break_store("keep_trajectory")
        await b.create(1, saying(with_items), keeps_trajectory=True)
        await b.until(1)
        assert (await b.trials.trajectory("relax-1"))["output"][-1] == {"type": "message"}
        heal()
        await b.trials._purge()
        assert not b.trials._unsaved and (await b.trials.trajectory("relax-1"))["input"] == ASKED["input"]

    bench(work)


# --- stores that fail ----------------------------------------------------------------------


def test_a_store_that_takes_no_writes_starts_nothing(bench):
    async def work(b):
        heal = b.break_store("insert")
        error = await refused(b.create(1), 503, "store_unavailable")
        assert "disk is full" in error.message
        assert not b.trials.live and not b.environment.runs
        await refused(b.trials.show("relax-1"), 404, "trial_unknown")
        heal()
        await b.create(1)
        assert ending(await b.until(1)) == ("completed", 1.0, None)

    bench(work)


def test_a_store_that_cannot_be_read_is_a_503(bench):
    async def work(b):
        await b.create(1, complete)
        await b.until(1)
        heal = b.break_store("find")
        await refused(b.trials.show("relax-1"), 503, "store_unavailable")
        await refused(b.create(1), 503, "store_unavailable")
        heal()
        assert (await b.create(1))["status"] == "completed" and b.environment.runs == [1]

    bench(work)


def test_stopping_while_the_store_refuses_a_new_trial_comes_to_an_end(bench):
    async def work(b):
        held = asyncio.Event()

        async def slowly_broken(*_):
            await held.wait()
            raise sqlite3.OperationalError("disk I/O error")

        b.store.insert = slowly_broken
        creating = asyncio.create_task(b.create(1))
        while "relax-1" not in b.trials.live:
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(b.trials.stop())
        await asyncio.sleep(0.01)
        held.set()
        await refused(creating, 503, "store_unavailable")
        async with asyncio.timeout(5):
            await stopping

    bench(work)


def test_a_result_that_could_not_be_saved_is_served_and_saved_later(bench, monkeypatch):
    monkeypatch.setattr(module, "RETENTION_EVERY_S", 0.05)

    async def work(b):
        heal = b.break_store("finish", "drop_before")
        await b.create(1)
        shown = await b.until(1)
        assert ending(shown) == ("completed", 1.0, None)
        assert (await b.store.find("relax-1")) == ("d", None)
        assert await b.create(1) == shown and await b.trials.show("relax-1", 1) == shown
        await refused(b.create(1, digest="other"), 409, "payload_differs")
        assert b.trials.janitor_healthy
        heal()
        while (await b.store.find("relax-1")) != ("d", shown):
            await asyncio.sleep(0.01)
        assert not b.trials._unsaved and b.environment.runs == [1]

    bench(work)


def test_an_end_is_shown_only_once_it_would_survive_a_kill(bench):
    async def work(b):
        finish, held = b.store.finish, asyncio.Event()

        async def slowly(*values):
            await held.wait()
            await finish(*values)

        b.store.finish = slowly
        await b.create(1)
        while not b.environment.cleaned:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        for shown in (await b.trials.show("relax-1", 0.05), await b.create(1), await b.trials.abort("relax-1")):
            assert ending(shown) == ("running", None, None)
        held.set()
        assert ending(await b.trials.show("relax-1", 10)) == ("completed", 1.0, None)
        assert (await b.store.find("relax-1"))[1]["status"] == "completed"

    bench(work)


def test_the_janitor_outlives_a_store_that_is_slow(bench, monkeypatch):
    """Its round over unsaved ends meets those that their own tasks are just saving."""
    monkeypatch.setattr(module, "RETENTION_EVERY_S", 0.01)
    monkeypatch.setattr(module, "TICK_S", 0.01)

    async def work(b):
        finish = b.store.finish

        async def slowly(*values):
            await asyncio.sleep(random.random() / 20)
            await finish(*values)

        b.store.finish = slowly
        await asyncio.gather(*(b.create(number) for number in range(200)))
        for number in range(200):
            await b.until(number)
        await b.create(200, hang, deadline_s=0.05)
        assert ending(await b.trials.show("relax-200", 10)) == ("truncated", None, "deadline_exceeded")
        assert await b.store.count() == b.trials.ended_count == 201

    bench(work, GATEWAY_QUEUE_LIMIT=1000)


def test_retention_drops_ended_trials_and_counts_them_out(bench, monkeypatch):
    monkeypatch.setattr(module, "RETENTION_EVERY_S", 0.05)

    async def work(b):
        for number in range(4):
            await b.create(number)
        await b.create(4, hang)
        while b.trials.ended_count or len(b.environment.runs) < 5:
            await asyncio.sleep(0.01)
        await refused(b.trials.show("relax-0"), 404, "trial_unknown")
        assert (await b.trials.show("relax-4"))["status"] == "running"

    bench(work, GATEWAY_RETENTION_S=0.2)


# --- starts and stops ----------------------------------------------------------------------


def test_stopping_settles_everything_and_cleans_up(bench):
    async def work(b):
        for number in range(7):
            await b.create(number, hang)
        await b.until(0, "running")
        await b.trials.stop()
        for number in range(7):
            assert ending(await b.trials.show(f"relax-{number}")) == ("failed", None, "service_shutdown")
        assert not b.environment.state
        await refused(b.create(8), 503, "service_shutdown")

    bench(work)


def test_after_a_restart_results_are_there_and_unfinished_trials_are_failed_and_cleaned(tmp_path):
    async def before():
        b = Bench(tmp_path, {})
        await b.trials.start(b.environment)
        await b.create(1)
        shown = await b.until(1)
        for number in range(2, 8):
            await b.create(number, hang)
        rollouts = {b.rollout(number) for number in range(2, 8)}
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # as a kill: nothing gets the time to clean up
        b.store.close()
        return shown, rollouts

    async def after(shown, rollouts):
        async with asyncio.timeout(20), Bench(tmp_path, {}) as b:
            assert await b.trials.show("relax-1") == shown
            for number in range(2, 8):
                late = await b.trials.show(f"relax-{number}", 60)
                assert ending(late) == ("failed", None, "gateway_restarted")
                assert await b.create(number) == late, "a repeated create finds the end, and starts nothing"
            await refused(b.create(2, digest="other"), 409, "payload_differs")
            while set(b.environment.cleaned) != rollouts:
                await asyncio.sleep(0.01)
            assert b.trials.ended_count == 7 and not b.environment.runs

    asyncio.run(after(*asyncio.run(before())))


def test_orphans_are_cleaned_once_the_servers_are_there(tmp_path):
    async def work():
        store = Store(tmp_path / "trials.sqlite")
        await store.insert("relax-1", "d", "rollout-1", 0.0)
        store.close()
        b = Bench(tmp_path, {})
        b.environment.ready.clear()
        async with asyncio.timeout(20), b:
            assert ending(await b.trials.show("relax-1")) == ("failed", None, "gateway_restarted")
            await asyncio.sleep(0.02)
            assert not b.environment.cleaned
            b.environment.ready.set()
            while b.environment.cleaned != ["rollout-1"]:
                await asyncio.sleep(0.01)

    asyncio.run(work())


# --- leaks ---------------------------------------------------------------------------------


def test_thousands_of_mixed_endings_leak_no_slot_no_task_and_no_secret(bench, tmp_path):
    chance = random.Random(7)
    scripts = [complete, fail, break_down, hang, calling({"usage": {}}), calling((EndpointFault, "status", "x"))]

    async def one(b, number):
        more = chance.choice([{}, {}, {"deadline_s": 0.05}, {"lease_s": 0.05}])
        script = chance.choice(scripts)
        await b.create(number, script, **more)
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        if script is hang and not more or chance.random() < 0.3:
            await b.trials.abort(f"relax-{number}")
        return (await b.trials.show(f"relax-{number}", 60))["status"]

    async def work(b):
        b.environment.bench = b
        statuses = []
        for batch in range(30):
            statuses += await asyncio.gather(*(one(b, batch * 100 + n) for n in range(100)))
        assert set(statuses) == {"completed", "failed", "aborted", "truncated"}
        assert b.environment.most <= 8
        assert not b.environment.state and not b.trials._unsaved
        await asyncio.sleep(0.01)
        assert len(b.trials._tasks) == 1, "the janitor alone"
        assert b.trials._slots._value == 8
        assert b.trials.ended_count == await b.store.count() == 3000
        gc.collect()
        kinds = [type(each) for each in gc.get_objects() if isinstance(each, (module.Live, TrialRequest))]
        assert kinds in ([], [module.Live]), "at most the one the janitor looked at last, without its request"

    bench(work, WORKPLACE_ASSISTANT_MAX_CONCURRENCY=8, GATEWAY_QUEUE_LIMIT=1000)
    for file in tmp_path.glob("trials.sqlite*"):
        assert SECRET.encode() not in file.read_bytes()


def test_a_twin_of_a_create_that_the_store_refuses_is_not_told_that_it_was_taken(bench):
    async def work(made):
        heal = made.break_store("insert")
        twins = await asyncio.gather(made.create(1), made.create(1), made.create(1), return_exceptions=True)
        assert [(type(answer), answer.status) for answer in twins] == [(ApiError, 503)] * 3
        heal()
        assert (await made.create(1))["status"] == "queued"
        await made.until(1)
        assert made.environment.runs == [1]

    bench(work)


@pytest.mark.parametrize("asked", ["show", "abort", "renew"])
def test_a_trial_that_has_ended_never_looks_live_while_it_is_created_again(bench, asked):
    async def work(made):
        await made.create(1, complete)
        await made.until(1)
        held, insert = asyncio.Event(), made.store.insert

        async def slowly(*values):
            await held.wait()
            await insert(*values)

        made.store.insert = slowly
        again = asyncio.create_task(made.create(1))
        while "relax-1" not in made.trials.live:
            await asyncio.sleep(0.001)
        waits = {"wait_s": 60} if asked == "show" else {}
        asking = asyncio.create_task(getattr(made.trials, asked)("relax-1", **waits))
        await asyncio.sleep(0.01)
        held.set()
        answer = await asyncio.wait_for(asking, 5)
        assert answer is None if asked == "renew" else answer["status"] == "completed"
        assert (await again)["status"] == "completed" and not made.trials.live
        assert made.environment.runs == [1]

    bench(work)


def test_repeats_of_an_ended_trial_at_one_moment_are_all_told_its_end(bench):
    async def work(made):
        await made.create(1, complete)
        await made.until(1)
        find, insert, gates = made.store.find, made.store.insert, {}

        async def in_turn(name, call, *values):
            await gates.setdefault(name, asyncio.Event()).wait()
            return await call(*values)

        inserts = iter(range(9))
        made.store.find = lambda *values: in_turn("find", find, *values)
        made.store.insert = lambda *values: in_turn(next(inserts), insert, *values)
        first = asyncio.create_task(made.create(1))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(work) for work in (made.create(1), made.trials.show("relax-1", 5))]
        await asyncio.sleep(0.01)
        gates[0].set()  # the first is told that the store knows it, and asks what it knows
        await asyncio.sleep(0.02)
        other_payload = asyncio.create_task(refused(made.create(1, digest="other"), 409, "payload_differs"))
        await asyncio.sleep(0.02)
        gates["find"].set()
        for name in (1, 2, 3):
            gates.setdefault(name, asyncio.Event()).set()
        answers = await asyncio.gather(first, *others)
        await other_payload
        assert [answer["status"] for answer in answers] == ["completed"] * 3
        assert not made.trials.live and made.environment.runs == [1]

    bench(work)


def test_a_repeat_of_an_ended_trial_is_answered_by_a_store_that_takes_no_writes(bench):
    async def work(made):
        await made.create(1, complete)
        await made.until(1)
        heal = made.break_store("insert")
        assert (await made.create(1))["status"] == "completed"
        await refused(made.create(2), 503, "store_unavailable")
        heal()

    bench(work)


def test_a_repeat_of_a_trial_that_is_dropped_at_that_moment_is_a_new_one(bench):
    async def work(made):
        await made.create(1, complete)
        await made.until(1)
        find = made.store.find

        async def too_late(*values):
            made.store.find = find
            await made.store.drop_before(time.time() + 60)
            return await find(*values)

        made.store.find = too_late
        assert (await made.create(1))["status"] == "queued"
        assert (await made.until(1))["status"] == "completed" and made.environment.runs == [1, 1]

    bench(work)


def test_another_payload_under_the_id_of_a_trial_that_has_ended_is_refused(bench):
    async def work(made):
        await made.create(1, complete)
        await made.until(1)
        await refused(made.create(1, digest="other"), 409, "payload_differs")
        assert not made.trials.live and made.environment.runs == [1]

    bench(work)


@pytest.mark.parametrize("hours", [3, -3])
def test_a_jump_of_the_wall_clock_drops_no_result_and_ends_no_trial(bench, monkeypatch, hours):
    true_time = time.time

    async def work(made):
        await made.create(1)
        ended = await made.until(1)
        await made.create(2, hang)
        monkeypatch.setattr(time, "time", lambda: true_time() + hours * 3600)
        await made.trials._purge()
        assert await made.trials.show("relax-1") == ended
        assert (await made.until(2, "running"))["status"] == "running"
        await made.trials.abort("relax-2")
        await made.until(2)
        await made.trials._purge()
        assert (await made.trials.show("relax-2"))["status"] == "aborted"

    bench(work)


def test_a_gateway_that_was_stopped_blames_no_client_for_it_but_deadlines_hold(bench):
    async def work(made):
        clock = made.trials.clock
        await made.create(1, hang, lease_s=60, deadline_s=600)
        await made.create(2, hang, lease_s=60, deadline_s=100)
        await made.until(1, "running")
        made.trials.clock = lambda: clock() + 300
        assert ending(await made.until(2)) == ("truncated", None, "deadline_exceeded")
        assert (await made.trials.show("relax-1"))["status"] == "running"
        made.trials.clock = lambda: clock() + 300 + module.TICK_LATE_S - 1
        await asyncio.sleep(3 * module.TICK_S)
        assert (await made.trials.show("relax-1"))["status"] == "running"
        await made.trials.abort("relax-1")

    bench(work)
