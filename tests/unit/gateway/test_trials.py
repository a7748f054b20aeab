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

pytestmark = pytest.mark.anyio

SECRET = "bearer-that-nobody-may-see"
LIMITS = {"WORKPLACE_ASSISTANT_MAX_CONCURRENCY": 4, "GATEWAY_QUEUE_LIMIT": 3, "GATEWAY_RETENTION_S": 3600}
ENDED = {"completed", "truncated", "aborted", "failed"}
COMPLETED, ABORTED = ("completed", 1.0, None), ("aborted", None, "aborted")
EXPIRED, TOO_LATE = ("aborted", None, "lease_expired"), ("truncated", None, "deadline_exceeded")
FAILED = ("failed", None, "agent_error")


def request(number, digest="d", deadline_s=600, lease_s=60, keeps_trajectory=False):
    endpoint = Endpoint("http://h/v1/responses", "m", {"Authorization": SECRET}, (SECRET,))
    return TrialRequest(
        f"relax-{number}", digest, {"task": number}, endpoint, {}, deadline_s, lease_s, keeps_trajectory
    )


class MadeUpEnvironment:
    """Its one pair: runs rollouts as `script[task]` says, a coroutine function of (environment, rollout id)
    to an Outcome."""

    def __init__(self, bench):
        self.bench = bench
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


async def complete_with_items(environment, rollout_id):
    return Outcome(Status.COMPLETED, 1.0, {}, output=[*ITEMS, {"type": "message"}])


async def hang(environment, rollout_id):
    await asyncio.sleep(1000)


async def break_down(environment, rollout_id):
    raise RuntimeError("a fault of our own")


async def fail(environment, rollout_id):
    return failed("agent_error", "run_failed", "why")


def calling(body, then=complete):
    """A rollout with one model call, which ends as `then` does."""

    async def script(environment, rollout_id):
        await environment.bench.trials.model_call(rollout_id, body)
        return await then(environment, rollout_id)

    return script


class MadeUpModel:
    """Does what a call's body says: raise, be a coroutine function, or be the answer or hold it."""

    async def forward(self, endpoint, call_params, body, deadline):
        assert endpoint.headers["Authorization"] == SECRET
        if isinstance(body, tuple):
            raise body[0](*body[1:])
        if asyncio.iscoroutinefunction(body):
            return await body()
        return body.get("answer", body)


def tasks():
    """The tasks of all trials."""
    return {task for task in asyncio.all_tasks() if task.get_coro().cr_code.co_filename == module.__file__}


class Bench:
    """Trials on a store in `folder`, with a made-up environment and model."""

    def __init__(self, folder, limits):
        self.store, self.environment = Store(folder / "trials.sqlite"), MadeUpEnvironment(self)
        self.trials = Trials(SimpleNamespace(**LIMITS | limits), self.store, MadeUpModel())

    async def __aenter__(self):
        await self.trials.start(self.environment)
        return self

    async def __aexit__(self, *_):
        try:
            async with asyncio.timeout(20):
                await self.check_nothing_is_left()
        finally:
            self.store.close()

    async def check_nothing_is_left(self):
        """Every slot and start is free once all trials have ended, and every task is gone after the stop."""
        vars(self.store).pop("insert", None)
        self.environment.unclean = None
        self.environment.ready.set()
        if not self.trials.stopping:
            for request_id in list(self.trials.live):
                await self.trials.abort(request_id)
            while self.trials.live:
                await asyncio.sleep(0.001)
            again = range(-min(self.trials.settings.WORKPLACE_ASSISTANT_MAX_CONCURRENCY, STARTS), 0)
            for number in again:
                await self.create(number, hang)
            for number in again:
                await self.until(number, "running")
            await self.trials.stop()
        assert not self.trials.live and self.environment.trials == 0
        for _ in range(STARTS):
            await self.environment.starts.acquire()
        while tasks():
            await asyncio.sleep(0.001)

    async def kill(self):
        """End it as a kill does: nothing gets the time to clean up."""
        killed = tasks()
        for task in killed:
            task.cancel()
        self.store.close()
        await asyncio.gather(*killed, return_exceptions=True)

    async def create(self, number, script=None, **more):
        if script:
            self.environment.script[number] = script
        return await self.trials.create(request(number, **more))

    async def until(self, number, *statuses):
        while (shown := await self.trials.show(f"relax-{number}"))["status"] not in (statuses or ENDED):
            await asyncio.sleep(0.002)
        return shown

    async def run(self, number, *script, **more):
        await self.create(number, *script, **more)
        return await self.until(number)

    async def ending(self, number):
        return ending(await self.until(number))

    def rollout(self, number):
        return self.trials.live[f"relax-{number}"].rollout_id

    def break_store(self, *names):
        """Let the store fail at `names`, as a full disk does. Returns what heals it."""

        async def broken(*_):
            await asyncio.sleep(0)
            raise sqlite3.OperationalError("database or disk is full")

        vars(self.store).update(dict.fromkeys(names, broken))
        return lambda: [vars(self.store).pop(name) for name in names]

    def hold(self, name):
        """Let the store's `name` wait for the event that is returned."""
        go_on, method = asyncio.Event(), getattr(self.store, name)

        async def held(*values):
            await go_on.wait()
            return await method(*values)

        setattr(self.store, name, held)
        return go_on


@pytest.fixture
async def bench(request, tmp_path, monkeypatch):
    """A fresh bench; what its test leaves is checked."""
    monkeypatch.setattr(module, "TICK_S", 0.02)
    monkeypatch.setattr(module, "RETENTION_EVERY_S", 0.05)
    async with Bench(tmp_path, getattr(request, "param", {})) as fresh:
        yield fresh


def limits(**changes):
    return pytest.mark.parametrize("bench", [changes], indirect=True, ids=["limits"])


one_at_a_time = limits(WORKPLACE_ASSISTANT_MAX_CONCURRENCY=1)


async def refused(work, status, code):
    with pytest.raises(ApiError) as error:
        await work
    assert (error.value.status, error.value.code) == (status, code)
    return error.value


def ending(shown):
    return shown["status"], shown["reward"], (shown["error"] or {}).get("code")


# --- endings -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "more", "expected"),
    [
        (complete, {}, COMPLETED),
        (fail, {}, FAILED),
        (break_down, {}, FAILED),
        (hang, {"deadline_s": 0.1}, TOO_LATE),
        (hang, {"lease_s": 0.1}, EXPIRED),
    ],
)
async def test_every_ending_is_shown_and_frees_everything(bench, script, more, expected):
    assert (await bench.create(1, script, **more))["status"] == "queued"
    shown = await bench.trials.show("relax-1", 10)
    assert ending(shown) == expected
    assert shown["metrics"] == ({"tool_calls": 1, "model_calls": 0} if script is complete else {})
    assert not bench.environment.state and not bench.trials.live
    assert len(bench.environment.cleaned) == bench.trials.ended_count == 1
    assert await bench.trials.show("relax-1", 60) == shown


async def test_an_abort_ends_a_running_trial_once_its_state_is_gone(bench):
    await bench.create(1, hang)
    await bench.until(1, "running")
    assert (await bench.trials.abort("relax-1"))["status"] == "running"
    assert bench.environment.state
    shown = await bench.trials.show("relax-1", 10)
    assert ending(shown) == ABORTED and not bench.environment.state
    assert await bench.trials.abort("relax-1") == shown


@one_at_a_time
async def test_a_trial_that_ends_in_the_queue_starts_nothing_and_holds_up_nobody(bench):
    await bench.create(1, hang)
    await bench.create(2)
    await bench.create(3, deadline_s=0.1)
    await bench.create(4, lease_s=0.1)
    await bench.until(1, "running")
    await bench.trials.abort("relax-2")
    assert [await bench.ending(number) for number in (2, 3, 4)] == [ABORTED, TOO_LATE, EXPIRED]
    assert bench.environment.runs == [1] and not bench.environment.cleaned
    await bench.create(5)
    await bench.trials.abort("relax-1")
    assert await bench.ending(5) == COMPLETED


async def test_renewals_keep_a_trial_alive_and_do_nothing_for_an_ended_or_unknown_one(bench):
    await bench.create(1, hang, lease_s=0.5)
    for _ in range(20):
        await asyncio.sleep(0.05)
        await bench.trials.renew("relax-1")
    assert (await bench.trials.show("relax-1"))["status"] == "running"
    shown = await bench.trials.show("relax-1", 10)
    assert ending(shown) == EXPIRED
    await bench.trials.renew("relax-1")
    assert await bench.trials.show("relax-1") == shown
    for asked in (bench.trials.renew, bench.trials.abort, bench.trials.show):
        await refused(asked("relax-2"), 404, "trial_unknown")
    await refused(bench.trials.show("relax-2", 60), 404, "trial_unknown")


async def test_a_long_poll_answers_at_the_end_or_in_time(bench):
    await bench.create(1, hang)
    began = time.monotonic()
    assert (await bench.trials.show("relax-1", 0.2))["status"] == "running"
    assert 0.2 <= time.monotonic() - began < 5
    polls = [asyncio.create_task(bench.trials.show("relax-1", 60)) for _ in range(20)]
    await asyncio.sleep(0)
    await bench.trials.abort("relax-1")
    assert set(map(ending, await asyncio.gather(*polls))) == {ABORTED}


async def test_without_proof_a_trial_is_failed_and_cleaning_goes_on(bench):
    bench.environment.unclean = Fault("cleanup_unverified", None, "state is left")
    shown = await bench.run(1)
    assert ending(shown) == ("failed", None, "cleanup_unverified")
    assert shown["error"]["cause"] == "after completed: state is left"
    await bench.create(2, hang)
    await bench.until(2, "running")
    await bench.trials.abort("relax-2")
    assert (await bench.until(2))["error"]["cause"] == "after aborted: state is left"
    bench.environment.unclean = None
    while len(bench.environment.cleaned) < 2:
        await asyncio.sleep(0.01)
    assert not bench.environment.state


@one_at_a_time
async def test_a_lost_server_ends_what_runs_and_nothing_that_waits(bench):
    await bench.create(1, hang)
    await bench.create(2)
    await bench.until(1, "running")
    lost = failed("agent_error", "resource_server_lost", "GET http://h: refused")
    bench.trials.settle_lost(MadeUpEnvironment(bench), lost)
    await asyncio.sleep(0.05)
    assert (await bench.trials.show("relax-1"))["status"] == "running", "another pair was lost"
    bench.trials.settle_lost(bench.environment, lost)
    assert (await bench.until(1))["error"]["type"] == "resource_server_lost"
    assert await bench.ending(2) == COMPLETED


async def test_trials_wait_for_servers_that_are_not_ready(bench):
    bench.environment.ready.clear()
    await bench.create(1)
    await asyncio.sleep(0.05)
    assert (await bench.trials.show("relax-1"))["status"] == "queued" and not bench.environment.runs
    bench.environment.ready.set()
    assert await bench.ending(1) == COMPLETED


@pytest.mark.parametrize(("pairs_left", "expected", "runs"), [(True, COMPLETED, 2), (False, TOO_LATE, 1)])
async def test_a_trial_whose_agent_was_not_reached_runs_on_another_pair_if_there_is_one(
    bench, pairs_left, expected, runs
):
    async def unreached(environment, rollout_id):
        if pairs_left:
            environment.script[1] = complete
        else:
            environment.ready.clear()
            environment.unclean = Fault("cleanup_failed")  # which nobody asks for
        raise Unreached

    assert ending(await bench.run(1, unreached, deadline_s=0.5)) == expected
    assert bench.environment.runs == [1] * runs


@limits(WORKPLACE_ASSISTANT_MAX_CONCURRENCY=STARTS + 5)
async def test_a_crowd_begins_a_few_at_a_time_and_then_runs_all_at_once(bench):
    """Until its model is called a rollout is one of STARTS; those behind it are neither running nor lost."""
    crowd = STARTS + 5
    for number in range(crowd):
        await bench.create(number, hang)
    await bench.until(STARTS - 1, "running")
    await asyncio.sleep(0.05)
    assert len(bench.environment.runs) == STARTS and bench.trials.queued() == 5
    for rollout_id, number in list(bench.environment.state.items()):
        if number != 0:
            await bench.trials.model_call(rollout_id, {"output": []})
    await bench.until(crowd - 1, "running")
    assert len(bench.environment.runs) == crowd and bench.trials.queued() == 0


# --- admission -----------------------------------------------------------------------------


async def test_a_full_queue_turns_new_trials_away_before_and_after_their_payload_is_looked_at(bench):
    await bench.run(0)
    await bench.trials.admit("relax-8")
    for number in range(1, 8):
        await bench.create(number, hang)
    for known in ("relax-0", "relax-1", "relax-7"):
        await bench.trials.admit(known)
    assert (await bench.create(7))["status"] == "queued", "a twin of one that waits is no new one"
    refusals = [await refused(bench.trials.admit("relax-8"), 429, "queue_full") for _ in range(40)]
    refusals.append(await refused(bench.create(8), 429, "queue_full"))
    waits = {int(error.headers["Retry-After"]) for error in refusals}
    assert min(waits) > 0 and len(waits) > 1, "who is refused at one moment comes back at several"
    await bench.trials.abort("relax-7")
    await bench.until(7)
    await bench.trials.admit("relax-8")
    await bench.create(8, hang)
    assert len(bench.environment.runs) == 1 + 4 and bench.trials.queued() == 3


@pytest.mark.parametrize(("bench", "taken"), [({}, 4 + 3), ({"GATEWAY_QUEUE_LIMIT": 0}, 4)], indirect=["bench"])
async def test_slots_and_queue_are_bounded_in_a_burst_too(bench, taken):
    answers = await asyncio.gather(*(bench.create(n, hang) for n in range(200)), return_exceptions=True)
    assert sum(isinstance(answer, dict) for answer in answers) == taken
    assert {answer.code for answer in answers if not isinstance(answer, dict)} == {"queue_full"}


@pytest.mark.parametrize("script", [complete, hang])
async def test_duplicates_created_at_once_start_once(bench, script):
    assert len(await asyncio.gather(*(bench.create(1, script) for _ in range(50)))) == 50
    if script is hang:
        await bench.until(1, "running")
        await bench.trials.abort("relax-1")
    await bench.until(1)
    assert bench.environment.runs == [1] and bench.trials.ended_count == 1
    assert await bench.create(1) == await bench.trials.show("relax-1")


async def test_another_payload_under_a_known_id_is_a_409_while_it_runs_and_after(bench):
    await bench.create(1, hang)
    await bench.until(1, "running")
    await refused(bench.create(1, digest="other"), 409, "payload_differs")
    await bench.trials.abort("relax-1")
    await bench.until(1)
    await refused(bench.create(1, digest="other"), 409, "payload_differs")
    assert not bench.trials.live and bench.environment.runs == [1]


async def test_creates_and_aborts_race_into_one_end(bench):
    async def abort(number):
        with contextlib.suppress(ApiError):
            await bench.trials.abort(f"relax-{number}")

    for number in range(100):
        await asyncio.gather(*(bench.create(number) for _ in range(3)), *(abort(number) for _ in range(3)))
        final = await bench.until(number)
        assert await bench.until(number) == final
    assert len(bench.environment.runs) == len(set(bench.environment.runs))


# --- model calls ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "expected", "kind"),
    [
        ({"usage": {"input_tokens": 3, "output_tokens": 4}}, COMPLETED, None),
        ({"usage": None}, COMPLETED, None),
        ((TooManyCalls, "17 tool calls"), ("truncated", 0.0, "too_many_calls"), None),
        ((EndpointFault, "status", "http://h answered 400"), FAILED, "endpoint_status"),
        ((EndpointFault, "unreachable", "http://h"), FAILED, "endpoint_unreachable"),
    ],
)
async def test_who_is_at_fault_decides_between_a_reward_and_none(bench, body, expected, kind):
    shown = await bench.run(1, calling(body))
    assert ending(shown) == expected
    assert (shown["error"] or {}).get("type") == kind
    if expected == COMPLETED:
        assert shown["metrics"] == {"tool_calls": 1, "model_calls": 1, **(body["usage"] or {})}


async def test_a_model_call_of_an_ended_or_unknown_rollout_is_a_410(bench):
    await refused(bench.trials.model_call("nobody", {}), 410, "rollout_ended")
    await bench.create(1, hang)
    rollout = bench.rollout(1)
    await bench.until(1, "running")
    assert await bench.trials.model_call(rollout, {"output": []}) == {"output": []}
    await bench.trials.abort("relax-1")
    await refused(bench.trials.model_call(rollout, {}), 410, "rollout_ended")
    await bench.until(1)
    await refused(bench.trials.model_call(rollout, {}), 410, "rollout_ended")


async def call_for_ever():
    await asyncio.sleep(1000)


async def call_too_late():
    raise TimeoutError


@pytest.mark.parametrize(
    ("body", "more"), [(call_for_ever, {}), (call_too_late, {"deadline_s": 0.2}), (call_for_ever, {"lease_s": 0.2})]
)
async def test_the_end_of_a_trial_ends_its_model_calls(bench, body, more):
    await bench.create(1, hang, **more)
    await bench.until(1, "running")
    call = asyncio.create_task(bench.trials.model_call(bench.rollout(1), body))
    await asyncio.sleep(0.01)
    if not more:
        await bench.trials.abort("relax-1")
    await refused(call, 410, "rollout_ended")
    assert (await bench.until(1))["reward"] is None


# --- trajectories --------------------------------------------------------------------------

PROMPT, ITEMS = [{"role": "user"}], [{"type": "function_call"}]
CALL = {"input": PROMPT, "answer": {"output": ITEMS}}


@pytest.mark.parametrize(
    ("then", "output"),
    [(complete_with_items, [*ITEMS, {"type": "message"}]), (hang, ITEMS), (fail, ITEMS)],
)
async def test_a_trajectory_is_kept_for_whom_it_was_asked(bench, then, output):
    for number, wanted in ((1, True), (2, False)):
        await bench.create(number, calling(CALL, then), keeps_trajectory=wanted, deadline_s=0.5)
    polled = await bench.trials.show("relax-1", 60)
    found = await bench.trials.trajectory("relax-1")
    assert (found["input"], found["output"], found["reward"]) == (PROMPT, output, polled["reward"])
    assert polled["artifact_ref"] == "/v1/trials/relax-1/trajectory"
    assert await bench.trials.show("relax-1") == polled
    assert (await bench.until(2))["artifact_ref"] is None and await bench.store.trajectory("relax-2") is None
    assert (await bench.run(3, keeps_trajectory=True))["artifact_ref"] is None, "its model was never called"
    for number, code in ((2, "trajectory_unknown"), (3, "trajectory_unknown"), (4, "trial_unknown")):
        await refused(bench.trials.trajectory(f"relax-{number}"), 404, code)


async def test_a_trajectory_that_could_not_be_saved_is_served_from_memory_and_saved_later(bench):
    heal = bench.break_store("keep_trajectory")
    await bench.run(1, calling(CALL, complete_with_items), keeps_trajectory=True)
    assert (await bench.trials.trajectory("relax-1"))["output"][-1] == {"type": "message"}
    heal()
    while await bench.store.trajectory("relax-1") is None:
        await asyncio.sleep(0.01)
    assert (await bench.trials.trajectory("relax-1"))["input"] == PROMPT


# --- stores that fail, or are slow ---------------------------------------------------------


async def test_a_store_that_takes_no_writes_starts_nothing_and_no_twin_is_told_otherwise(bench):
    heal = bench.break_store("insert")
    errors = await asyncio.gather(*(refused(bench.create(1), 503, "store_unavailable") for _ in range(3)))
    assert all("disk is full" in error.message for error in errors)
    assert not bench.trials.live and not bench.environment.runs
    await refused(bench.trials.show("relax-1"), 404, "trial_unknown")
    heal()
    assert ending(await bench.run(1)) == COMPLETED and bench.environment.runs == [1]


async def test_a_known_trial_needs_a_store_that_can_be_read_but_none_that_takes_writes(bench):
    await bench.run(1)
    heal = bench.break_store("find")
    await refused(bench.trials.show("relax-1"), 503, "store_unavailable")
    await refused(bench.create(1), 503, "store_unavailable")
    heal()
    bench.break_store("insert")
    assert (await bench.create(1))["status"] == "completed" and bench.environment.runs == [1]


async def test_stopping_while_the_store_refuses_a_new_trial_comes_to_an_end(bench):
    bench.break_store("insert")
    go_on = bench.hold("insert")
    creating = asyncio.create_task(bench.create(1))
    while "relax-1" not in bench.trials.live:
        await asyncio.sleep(0.001)
    stopping = asyncio.create_task(bench.trials.stop())
    await asyncio.sleep(0.01)
    go_on.set()
    await refused(creating, 503, "store_unavailable")
    await asyncio.wait_for(stopping, 5)


async def test_a_result_that_could_not_be_saved_is_served_and_saved_later_once(bench):
    heal = bench.break_store("finish", "drop_before")
    shown = await bench.run(1)
    assert ending(shown) == COMPLETED and await bench.store.find("relax-1") == ("d", None)
    assert await bench.create(1) == shown == await bench.trials.show("relax-1", 1)
    await refused(bench.create(1, digest="other"), 409, "payload_differs")
    assert bench.trials.janitor_healthy
    heal()
    finish, finished = bench.store.finish, []
    bench.store.finish = lambda *values: finished.append(values) or finish(*values)
    while await bench.store.find("relax-1") != ("d", shown):
        await asyncio.sleep(0.01)
    await asyncio.sleep(3 * module.RETENTION_EVERY_S)
    assert len(finished) == 1 and bench.environment.runs == [1]


async def test_an_end_is_shown_only_once_it_would_survive_a_kill(bench):
    go_on = bench.hold("finish")
    await bench.create(1)
    while not bench.environment.cleaned:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    for shown in (await bench.trials.show("relax-1", 0.05), await bench.create(1), await bench.trials.abort("relax-1")):
        assert ending(shown) == ("running", None, None)
    go_on.set()
    assert ending(await bench.trials.show("relax-1", 10)) == COMPLETED
    assert (await bench.store.find("relax-1"))[1]["status"] == "completed"


@limits(GATEWAY_QUEUE_LIMIT=1000)
async def test_the_janitor_outlives_a_store_that_is_slow(bench, monkeypatch):
    """Its round over unsaved ends meets those that their own tasks are just saving."""
    monkeypatch.setattr(module, "RETENTION_EVERY_S", 0.01)
    finish = bench.store.finish

    async def slowly(*values):
        await asyncio.sleep(random.random() / 20)
        await finish(*values)

    bench.store.finish = slowly
    await asyncio.gather(*(bench.create(number) for number in range(200)))
    for number in range(200):
        await bench.until(number)
    await bench.create(200, hang, deadline_s=0.05)
    assert ending(await bench.trials.show("relax-200", 10)) == TOO_LATE
    assert await bench.store.count() == bench.trials.ended_count == 201


@limits(GATEWAY_RETENTION_S=0.2)
async def test_retention_drops_ended_trials_and_counts_them_out(bench):
    for number in range(4):
        await bench.create(number)
    await bench.create(4, hang)
    while bench.trials.ended_count or len(bench.environment.runs) < 5:
        await asyncio.sleep(0.01)
    await refused(bench.trials.show("relax-0"), 404, "trial_unknown")
    assert (await bench.trials.show("relax-4"))["status"] == "running"


@pytest.mark.parametrize("asked", ["show", "abort", "renew"])
async def test_a_trial_that_has_ended_never_looks_live_while_it_is_created_again(bench, asked):
    await bench.run(1)
    go_on = bench.hold("insert")
    again = asyncio.create_task(bench.create(1))
    while "relax-1" not in bench.trials.live:
        await asyncio.sleep(0.001)
    waits = {"wait_s": 60} if asked == "show" else {}
    asking = asyncio.create_task(getattr(bench.trials, asked)("relax-1", **waits))
    await asyncio.sleep(0.01)
    go_on.set()
    answer = await asyncio.wait_for(asking, 5)
    assert answer is None if asked == "renew" else answer["status"] == "completed"
    assert (await again)["status"] == "completed" and not bench.trials.live
    assert bench.environment.runs == [1]


async def test_repeats_of_an_ended_trial_at_one_moment_are_all_told_its_end(bench):
    await bench.run(1)
    find, insert, gates = bench.store.find, bench.store.insert, {}

    async def in_turn(name, call, *values):
        await gates.setdefault(name, asyncio.Event()).wait()
        return await call(*values)

    inserts = iter(range(9))
    bench.store.find = lambda *values: in_turn("find", find, *values)
    bench.store.insert = lambda *values: in_turn(next(inserts), insert, *values)
    first = asyncio.create_task(bench.create(1))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(work) for work in (bench.create(1), bench.trials.show("relax-1", 5))]
    await asyncio.sleep(0.01)
    gates[0].set()  # the first is told that the store knows it, and asks what it knows
    await asyncio.sleep(0.02)
    other_payload = asyncio.create_task(refused(bench.create(1, digest="other"), 409, "payload_differs"))
    await asyncio.sleep(0.02)
    for name in ("find", 1, 2, 3):
        gates.setdefault(name, asyncio.Event()).set()
    answers = await asyncio.gather(first, *others)
    await other_payload
    assert [answer["status"] for answer in answers] == ["completed"] * 3
    assert not bench.trials.live and bench.environment.runs == [1]


async def test_a_repeat_of_a_trial_that_is_dropped_at_that_moment_is_a_new_one(bench):
    await bench.run(1)

    async def too_late(*values):
        del bench.store.find
        await bench.store.drop_before(time.time() + 60)
        return await bench.store.find(*values)

    bench.store.find = too_late
    assert (await bench.create(1))["status"] == "queued"
    assert (await bench.until(1))["status"] == "completed" and bench.environment.runs == [1, 1]


# --- starts and stops ----------------------------------------------------------------------


async def test_stopping_settles_everything_and_cleans_up(bench):
    for number in range(7):
        await bench.create(number, hang)
    await bench.until(0, "running")
    await bench.trials.stop()
    for number in range(7):
        assert ending(await bench.trials.show(f"relax-{number}")) == ("failed", None, "service_shutdown")
    assert not bench.environment.state
    await refused(bench.create(8), 503, "service_shutdown")


async def test_after_a_restart_results_are_there_and_unfinished_trials_are_failed_and_cleaned(tmp_path):
    before = Bench(tmp_path, {})
    await before.trials.start(before.environment)
    shown = await before.run(1)
    for number in range(2, 8):
        await before.create(number, hang)
    rollouts = {before.rollout(number) for number in range(2, 8)}
    await before.kill()
    after = Bench(tmp_path, {})
    after.environment.ready.clear()
    async with after:
        assert await after.trials.show("relax-1") == shown
        for number in range(2, 8):
            late = await after.trials.show(f"relax-{number}", 60)
            assert ending(late) == ("failed", None, "gateway_restarted")
            assert await after.create(number) == late, "a repeated create finds the end, and starts nothing"
        await refused(after.create(2, digest="other"), 409, "payload_differs")
        await asyncio.sleep(0.02)
        assert not after.environment.cleaned, "the servers are not there yet"
        after.environment.ready.set()
        while set(after.environment.cleaned) != rollouts:
            await asyncio.sleep(0.01)
        assert after.trials.ended_count == 7 and not after.environment.runs


# --- clocks --------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [3, -3])
async def test_a_jump_of_the_wall_clock_drops_no_result_and_ends_no_trial(bench, monkeypatch, hours):
    true_time = time.time
    ended = await bench.run(1)
    await bench.create(2, hang)
    monkeypatch.setattr(time, "time", lambda: true_time() + hours * 3600)
    await asyncio.sleep(3 * module.RETENTION_EVERY_S)
    assert await bench.trials.show("relax-1") == ended
    assert (await bench.until(2, "running"))["status"] == "running"
    await bench.trials.abort("relax-2")
    await bench.until(2)
    await asyncio.sleep(3 * module.RETENTION_EVERY_S)
    assert (await bench.trials.show("relax-2"))["status"] == "aborted"


async def test_a_gateway_that_was_stopped_blames_no_client_for_it_but_deadlines_hold(bench):
    clock = bench.trials.clock
    await bench.create(1, hang, lease_s=60, deadline_s=600)
    await bench.create(2, hang, lease_s=60, deadline_s=100)
    await bench.until(1, "running")
    bench.trials.clock = lambda: clock() + 300
    assert await bench.ending(2) == TOO_LATE
    assert (await bench.trials.show("relax-1"))["status"] == "running"
    bench.trials.clock = lambda: clock() + 300 + module.TICK_LATE_S - 1
    await asyncio.sleep(3 * module.TICK_S)
    assert (await bench.trials.show("relax-1"))["status"] == "running"


# --- leaks ---------------------------------------------------------------------------------


@limits(WORKPLACE_ASSISTANT_MAX_CONCURRENCY=8, GATEWAY_QUEUE_LIMIT=1000)
async def test_thousands_of_mixed_endings_leak_no_slot_no_task_and_no_secret(bench, tmp_path):
    chance = random.Random(7)
    scripts = [complete, fail, break_down, hang, calling({"usage": {}}), calling((EndpointFault, "status", "x"))]

    async def one(number):
        more = chance.choice([{}, {}, {"deadline_s": 0.05}, {"lease_s": 0.05}])
        script = chance.choice(scripts)
        await bench.create(number, script, **more)
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
        if script is hang and not more or chance.random() < 0.3:
            await bench.trials.abort(f"relax-{number}")
        return (await bench.trials.show(f"relax-{number}", 60))["status"]

    statuses = []
    for batch in range(30):
        statuses += await asyncio.gather(*(one(batch * 100 + n) for n in range(100)))
    assert set(statuses) == ENDED
    assert bench.environment.most <= 8 and not bench.environment.state
    await asyncio.sleep(0.01)
    assert len(tasks()) == 1, "the janitor alone"
    assert bench.trials.ended_count == await bench.store.count() == 3000
    gc.collect()
    kinds = [type(each) for each in gc.get_objects() if isinstance(each, (module.Live, TrialRequest))]
    assert kinds in ([], [module.Live]), "at most the one the janitor looked at last, without its request"
    for file in tmp_path.glob("trials.sqlite*"):
        assert SECRET.encode() not in file.read_bytes()
