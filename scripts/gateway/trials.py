"""The trials this Gateway runs: admission, queue, leases and deadlines, the race for the end, clean-up.

Each live trial has one task that owns it from admission to its terminal state. Whatever else may end a trial (abort,
lease, deadline, a lost server, a fault of its model calls) only calls `settle`, which cancels what the trial does and
so wakes that task; the first outcome wins.

Guarantees:
- A trial takes a slot before the agent hears of it, and gives it back after its state is proved gone.
- The endpoint's credentials leave memory with the live trial.
- Ended trials live in the store alone.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import random
import secrets
import sqlite3
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from common.settings import Settings
from gateway.environment import Environment, Pair, Unreached
from gateway.metrics import Metrics
from gateway.model_calls import ModelCalls, TooManyCalls
from gateway.payload import ApiError, TrialRequest
from gateway.store import Store
from gateway.trial import Fault, Outcome, Status, Trial, aborted, failed
from policy.answers import closing
from policy.replies import EndpointFault, PolicyFault

if TYPE_CHECKING:
    from gateway.trial_request import Snapshot

TICK_S = 0.2
# The janitor counts as dead if its last tick is older.
TICK_LATE_S = 5
RETENTION_EVERY_S = 10
# A range, so that a crowd refused at one moment does not come back at one moment.
RETRY_AFTER_S = (2, 10)
_NO_ITEMS = {"tool_calls": 0, "tool_outputs": 0, "assistant_messages": 0, "model_output_items": 0}


class Live:
    """A trial that has not ended: its state, what it runs, and the events that others wait for."""

    def __init__(self, request: TrialRequest, now: float, created: float) -> None:
        self.request, self.created = request, created
        self.trial = Trial(request.request_id, now, request.deadline_s, request.lease_s)
        self.rollout_id = secrets.token_hex(16)
        self.stored, self.settled, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.tasks: set[asyncio.Task] = set()  # cancelled by its end
        self.callbacks, self.tokens = 0, {"input_tokens": 0, "output_tokens": 0}
        self.reached_environment = False
        self.policy_fault: Fault | None = None  # what the endpoint said the policy could not do
        self.prompt_items: int | None = None
        self.history: list[Any] | None = None
        self.pair: Pair | None = None  # runs it, from its start to its end
        self.begins: Pair | None = None  # the pair, until the rollout's first model call

    def place(self, pair: Pair | None) -> None:
        """Give the trial to a pair, or to none."""
        self.has_begun()
        if self.pair:
            self.pair.trials -= 1
        if pair:
            pair.trials += 1
        self.pair = pair

    def has_begun(self) -> None:
        """Give the start slot back: this rollout has reached its first model call."""
        if self.begins:
            self.begins.starts.release()
            self.begins = None

    def settle(self, outcome: Outcome) -> None:
        if self.trial.settle(outcome):
            self.settled.set()
            for task in self.tasks:
                task.cancel()

    async def result_of(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What the coroutine returns or raises; CancelledError once something else settles the trial."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        if self.trial.settled:
            task.cancel()
        return (await asyncio.gather(task, return_exceptions=True))[0]

    def explained(self, outcome: Outcome) -> Outcome:
        """A truncated outcome with what the policy could not do, where the endpoint said it."""
        if self.policy_fault and outcome.status is Status.TRUNCATED:
            return dataclasses.replace(outcome, fault=self.policy_fault)
        return outcome

    def note(self, body: dict[str, Any], answer: dict[str, Any] | None = None) -> None:
        """Remember what a model call was sent and what it answered, if the trial asked for its trajectory."""
        if self.request.keeps_trajectory:
            sent = body["input"]
            self.prompt_items = len(sent) if self.prompt_items is None else self.prompt_items
            self.history = [*sent, *answer["output"]] if answer else sent

    def trajectory(self) -> dict[str, Any] | None:
        """The prompt and all items after it: the agent's, or without a verdict the model calls'. None if not kept."""
        if not self.request.keeps_trajectory or self.history is None:
            return None
        outcome = self.trial.outcome
        output = self.history[self.prompt_items :] if outcome is None or outcome.output is None else outcome.output
        return {"input": self.history[: self.prompt_items], "output": output}

    def counts(self) -> dict[str, int]:
        return {"model_calls": self.callbacks} | {name: count for name, count in self.tokens.items() if count}


class Trials:
    """All trials. Call `start` once inside the loop, `stop` at the end."""

    environment: Environment  # set by `start`: each needs the other

    def __init__(
        self, settings: Settings, store: Store, model_calls: ModelCalls, clock: Callable[[], float] | None = None
    ) -> None:
        self.settings, self.store, self.model_calls = settings, store, model_calls
        self.clock = clock or asyncio.get_running_loop().time
        self._epoch = time.time() - self.clock()
        self.live: dict[str, Live] = {}
        self._by_rollout: dict[str, Live] = {}
        self._tasks: set[asyncio.Task] = set()
        self._slots = asyncio.Semaphore(settings.WORKPLACE_ASSISTANT_MAX_CONCURRENCY)
        self.metrics = Metrics()
        self.ended_count, self._last_tick, self.stopping = 0, self.clock(), False
        # request id -> (snapshot, end, trajectory) that the store has not taken yet
        self._unsaved: dict[str, tuple[Snapshot, float, dict[str, Any] | None]] = {}

    # --- life cycle ------------------------------------------------------------------------

    async def start(self, environment: Environment) -> None:
        self.environment = environment
        for request_id, rollout_id in await self.store.unfinished():
            snapshot = self._interrupted(request_id)
            await self.store.finish(request_id, snapshot, self.wall())
            for pair in environment.pairs:  # the former Gateway alone knew which of them ran it
                self._spawn(self._clean_orphan(pair, rollout_id))
        self.ended_count = await self.store.count()
        self._spawn(self._janitor())

    def _interrupted(self, request_id: str) -> Snapshot:
        trial = Trial(request_id, 0, 0, 0)
        trial.settle(failed("gateway_restarted", None, "the Gateway ended while the trial ran"))
        trial.release()
        return trial.snapshot()

    async def _clean_orphan(self, pair: Pair, rollout_id: str) -> None:
        """Clean up until it is proved: after an end without proof, or with a former Gateway, no state may be left."""
        await pair.ready.wait()
        while await pair.clean(rollout_id, asked_first=True):
            await asyncio.sleep(1)

    async def stop(self) -> None:
        """End every live trial with `service_shutdown`, clean-up included."""
        self.stopping = True
        ending = list(self.live.values())
        for live in ending:
            live.settle(failed("service_shutdown"))
        await asyncio.gather(*(live.ended.wait() for live in ending))
        for task in list(self._tasks):
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- what clients ask for --------------------------------------------------------------

    async def admit(self, request_id: str) -> None:
        """Raise ApiError 429 for an unknown trial while the queue is full, before its payload is checked.

        Otherwise a refused crowd that comes back would keep the Gateway busy with its payloads.
        """
        if self._is_full() and request_id not in self.live and await self._find(request_id) is None:
            raise self._queue_full()

    def _is_full(self) -> bool:
        return len(self.live) >= self.settings.WORKPLACE_ASSISTANT_MAX_CONCURRENCY + self.settings.GATEWAY_QUEUE_LIMIT

    def _queue_full(self) -> ApiError:
        retry_after = str(random.randint(*RETRY_AFTER_S))
        return ApiError(429, "queue_full", "the queue is full", headers={"Retry-After": retry_after})

    async def create(self, request: TrialRequest) -> Snapshot:
        """Take a trial, or find it taken. Returns its snapshot. Raises ApiError 409, 429 or 503."""
        # Otherwise the INSERT itself tells whether the id is taken.
        ask_first = request.request_id in self.live or self.stopping or self._is_full()
        if ask_first and (known := await self._known(request)):
            return known
        if self.stopping:
            raise ApiError(503, "service_shutdown", "the Gateway is ending", headers={"Retry-After": "5"})
        if self._is_full():
            raise self._queue_full()
        live = Live(request, self.clock(), self.wall())
        self.live[request.request_id] = live
        try:
            await self.store.insert(request.request_id, request.digest, live.rollout_id, live.created)
        except sqlite3.Error as error:
            self.live.pop(request.request_id, None)
            live.ended.set()
            live.stored.set()
            if known := await self._known(request):  # it has ended
                return known
            if isinstance(error, sqlite3.IntegrityError):  # and was dropped meanwhile
                return await self.create(request)
            raise ApiError(503, "store_unavailable", f"the trial store takes no writes: {error}") from None
        live.stored.set()
        self._by_rollout[live.rollout_id] = live
        self._spawn(self._own(live))
        return live.trial.snapshot()

    async def _live(self, request_id: str) -> Live | None:
        """The trial, if it has not ended; waits for a trial that is being inserted, which may prove to have ended."""
        while (live := self.live.get(request_id)) and not live.stored.is_set():
            await live.stored.wait()
        return live

    async def _known(self, request: TrialRequest) -> Snapshot | None:
        """The snapshot of the trial with this id, if there is one. Raises ApiError 409 if its payload differs."""
        if live := await self._live(request.request_id):
            digest, snapshot = live.request.digest, live.trial.snapshot()
        elif record := await self._find(request.request_id):
            digest, snapshot = record
        elif request.request_id in self.live:  # a twin was admitted while the store was asked
            return await self._known(request)
        else:
            return None
        if digest != request.digest:
            raise ApiError(409, "payload_differs", "this request_id was used with another payload", "request_id")
        return snapshot

    async def _find(self, request_id: str) -> tuple[str, Snapshot] | None:
        """(digest, snapshot) of an ended trial, or None."""
        try:
            record = await self.store.find(request_id)
        except sqlite3.Error as error:
            raise ApiError(503, "store_unavailable", f"the trial store cannot be read: {error}") from None
        if record is None:
            return None
        snapshot = self._unsaved[request_id][0] if request_id in self._unsaved else record[1]
        return (record[0], snapshot) if snapshot else None

    async def show(self, request_id: str, wait_s: float = 0) -> Snapshot:
        """Snapshot, at the terminal state or after `wait_s`. Raises ApiError 404."""
        live = await self._live(request_id)
        if live and wait_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await live.ended.wait()
        if live:
            return live.trial.snapshot()
        record = await self._find(request_id)
        if record is None:
            raise ApiError(404, "trial_unknown", "no trial by this id; it may have been dropped after its retention")
        return record[1]

    async def trajectory(self, request_id: str) -> dict[str, Any]:
        """What a trial's model and tools answered. Raises ApiError 404 if it was not kept."""
        snapshot = await self.show(request_id)
        try:
            kept = self._unsaved.get(request_id, (None,))[-1] or await self.store.trajectory(request_id)
        except sqlite3.Error as error:
            raise ApiError(503, "store_unavailable", f"the trial store cannot be read: {error}") from None
        if not snapshot["artifact_ref"] or not kept:
            message = "an ended trial has one if its metadata asked for it and its model was called"
            raise ApiError(404, "trajectory_unknown", message)
        shown = {name: snapshot[name] for name in ("request_id", "status", "reward", "metrics", "error")}
        return shown | kept

    async def renew(self, request_id: str) -> None:
        if live := await self._live(request_id):
            live.trial.renew(self.clock())
        else:
            await self.show(request_id)

    async def abort(self, request_id: str) -> Snapshot:
        if live := await self._live(request_id):
            live.settle(aborted())
        return await self.show(request_id)

    # --- one trial -------------------------------------------------------------------------

    async def _own(self, live: Live) -> None:
        """The trial's one task: run it until something settles it, clean up, make it terminal."""
        result = await live.result_of(self._run(live))
        if not live.trial.settled:
            live.settle(_outcome(result))
        try:
            await self._end(live, await self._clean(live))
        finally:
            live.place(None)
            if live.reached_environment:
                self._slots.release()

    async def _run(self, live: Live) -> Outcome:
        """Wait for a slot and ready servers, then have the agent run the trial."""
        await self._slots.acquire()
        # From here on `_own` gives the slot back, even if this task is cancelled at its next step.
        live.reached_environment = True
        pair = await self._place(live)
        if not live.trial.start():
            return aborted()
        self.metrics.started(self.wall() - live.created)
        while True:
            try:
                return live.explained(await pair.run(live.rollout_id, live.request.run_request))
            except Unreached:
                pair = await self._place(live)

    async def _place(self, live: Live) -> Pair:
        """Give the trial to a ready pair once that has a start slot."""
        while True:
            live.place(None)
            pair = await self.environment.choose()
            live.place(pair)
            await pair.starts.acquire()
            live.begins = pair
            if pair.ready.is_set():
                return pair

    async def _clean(self, live: Live) -> Fault | None:
        """Prove the trial's state gone: None, or the Fault. No exception may keep a trial live."""
        try:
            return await self._prove_clean(live)
        except Exception as error:
            traceback.print_exc()
            return Fault("cleanup_failed", type(error).__name__, "a fault of the Gateway; its log tells more")

    async def _prove_clean(self, live: Live) -> Fault | None:
        outcome = live.trial.outcome
        if live.trial.status is Status.QUEUED or live.pair is None or outcome is None:
            return None
        if outcome.fault and outcome.fault.type == "resource_server_lost":
            # The state is gone with the process, but the agent may still seed the next process.
            self._spawn(self._clean_orphan(live.pair, live.rollout_id))
            return None
        unclean = await live.pair.clean(live.rollout_id, asked_first=outcome.status is not Status.COMPLETED)
        if unclean:
            self._spawn(self._clean_orphan(live.pair, live.rollout_id))
        return unclean

    async def _end(self, live: Live, unclean: Fault | None) -> None:
        # Release a copy, and show it once it is saved: an end that somebody has seen must survive a kill.
        trial, trajectory = copy.copy(live.trial), live.trajectory()
        trial.release(unclean)
        trial.artifact_ref = f"/v1/trials/{trial.request_id}/trajectory" if trajectory else None
        assert trial.outcome is not None
        if trial.outcome.reward is not None:
            trial.outcome.metrics.update(live.counts())
        snapshot, ended = trial.snapshot(), self.wall()
        self._unsaved[live.request.request_id] = (snapshot, ended, trajectory)
        await self._save(live.request.request_id)
        self.ended_count += 1
        self.metrics.ended(trial.outcome, ended - live.created, live.request.run_request.get("category"))
        self._by_rollout.pop(live.rollout_id, None)
        del self.live[live.request.request_id]
        live.trial = trial
        del live.request  # and the credentials in it
        live.ended.set()

    async def _save(self, request_id: str) -> None:
        if request_id not in self._unsaved:  # the trial's own task saved it while the janitor saved others
            return
        snapshot, ended, trajectory = self._unsaved[request_id]
        try:
            if trajectory:
                await self.store.keep_trajectory(request_id, trajectory)
            await self.store.finish(request_id, snapshot, ended)
        except sqlite3.Error:
            return  # it stays in memory until the janitor tries again
        self._unsaved.pop(request_id, None)

    # --- model calls of the agent ----------------------------------------------------------

    async def model_call(self, rollout_id: str, body: dict[str, Any]) -> dict[str, Any]:
        """Forward a model call of a live rollout; its answer. Raises ApiError 410 once the rollout has ended."""
        live = self._by_rollout.get(rollout_id)
        if live is None or live.trial.settled or live.trial.status is not Status.RUNNING:
            raise ApiError(410, "rollout_ended", "this rollout has ended")
        live.has_begun()
        live.callbacks += 1
        began = time.monotonic()
        answer = await live.result_of(self._forward(live, body))
        self.metrics.called(time.monotonic() - began)
        if live.trial.settled:
            raise ApiError(410, "rollout_ended", "this rollout has ended")
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _forward(self, live: Live, body: dict[str, Any]) -> dict[str, Any] | None:
        """Forward a call; a fault settles the trial: truncated if the policy's, failed if the endpoint's."""
        request = live.request
        live.note(body)
        try:
            answer = await self.model_calls.forward(request.endpoint, request.call_params, body, live.trial.deadline)
        except TooManyCalls as error:
            live.settle(Outcome(Status.TRUNCATED, 0.0, dict(_NO_ITEMS), Fault("too_many_calls", None, str(error))))
        except EndpointFault as fault:
            self.metrics.faulted(fault.kind)
            live.settle(failed("agent_error", f"endpoint_{fault.kind}", request.endpoint.redact(str(fault))))
        except PolicyFault as fault:
            # The agent ends its loop on it, and the actions so far are graded.
            live.policy_fault = Fault("response_incomplete", fault.reason, request.endpoint.redact(str(fault)))
            return closing()
        except TimeoutError:
            # The janitor settles the trial at the same deadline.
            await live.settled.wait()
        else:
            live.note(body, answer)
            for name in live.tokens:
                live.tokens[name] += (answer.get("usage") or {}).get(name, 0)
            return answer

    # --- time ------------------------------------------------------------------------------

    def wall(self) -> float:
        """Seconds since the epoch, without the jumps of the machine's clock, which could make results look old."""
        return self._epoch + self.clock()

    async def _janitor(self) -> None:
        """End trials that are due, drop old ones, save those that could not be saved."""
        next_purge = 0
        while True:
            now, last = self.clock(), self._last_tick
            self._last_tick = now
            for live in list(self.live.values()):
                # While this process was stopped (by a paused machine, say) renewals could not arrive.
                if now - last > TICK_LATE_S:
                    live.trial.excuse(now - last)
                if outcome := live.trial.due(now):
                    live.settle(outcome)
            if now >= next_purge:
                next_purge = now + min(RETENTION_EVERY_S, self.settings.GATEWAY_RETENTION_S)
                await self._purge()
            await asyncio.sleep(TICK_S)

    async def _purge(self) -> None:
        for request_id in list(self._unsaved):
            await self._save(request_id)
        try:
            # In two steps: trials end while the store works.
            dropped = await self.store.drop_before(self.wall() - self.settings.GATEWAY_RETENTION_S)
            self.ended_count -= dropped
        except sqlite3.Error:
            return  # the disk may be full; the next round tries again

    def settle_lost(self, pair: Pair, outcome: Outcome) -> None:
        """Settle the trials that run on a pair whose rollouts are gone."""
        for live in list(self.live.values()):
            if live.pair is pair and live.trial.status is Status.RUNNING:
                live.settle(outcome)

    # --- what health shows -----------------------------------------------------------------

    def queued(self) -> int:
        return sum(live.trial.status is Status.QUEUED for live in self.live.values())

    @property
    def janitor_healthy(self) -> bool:
        return self.clock() - self._last_tick < TICK_LATE_S


def _outcome(result: Any) -> Outcome:
    """Outcome of a run; a fault of our own code counts as the infrastructure's, not the policy's."""
    if isinstance(result, BaseException):
        return failed("agent_error", "gateway_fault", f"{type(result).__name__}: {result}")
    return result
