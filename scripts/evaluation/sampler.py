"""The samples of an evaluation: each is a trial at a Gateway, EVAL_CONCURRENCY of them at once.

Guarantees:
- Every sample comes back exactly once, with its reward and whole trajectory, or with the reason why it has none. A
  fault of the endpoint or the environment is never a reward.
- Threads are daemons: `stop` asks the Gateways to end what runs, and waits a few seconds at most.
"""

import queue
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from common.failure import Failure, printable
from common.files import in_words
from common.settings import Settings
from gateway import launch, trial_request
from gateway.client import ClientError, Gateway, GaveUp, Trial, Unfit
from inputs import rows
from inputs.rows import Row
from policy.endpoint import Endpoint, as_policy
from policy.model_api import ModelAPI

KEPT = "what was done is kept, and the same command does the rest"
STOP_S = 3
NAME_LENGTH = 200


class Sampler:
    """Runs samples against `endpoint`; the Gateways at `settings.gateway_urls` call the model API at `host`."""

    def __init__(self, settings: Settings, endpoint: Endpoint, host: str) -> None:
        self.settings, self.endpoint = settings, endpoint
        with in_words(host, "; the model API of the evaluation cannot listen there"):
            self.api = ModelAPI(host, self._policy)
        self._jobs, self._results, self._live = queue.SimpleQueue(), queue.SimpleQueue(), {}
        self.stopping, self.waiting, self._lock = False, 0, threading.Lock()

    def _policy(self, session, body):
        left = session.opened + self.settings.NEMO_GYM_DEADLINE_S - time.monotonic()
        answer = as_policy(self.endpoint, body, self.settings.EVAL_TRIES, session.ended, left, self._limited)
        session.models.add(printable(answer["model"])[:NAME_LENGTH])
        return answer

    def _limited(self, begins: bool) -> None:
        """Count the model calls that wait for a rate limit, for the progress line."""
        with self._lock:
            self.waiting += 1 if begins else -1

    def run(self, jobs: Sequence[tuple[int, int, Row, int]]) -> Iterator[dict[str, Any]]:
        """Yield the sample of each job (row index, line, row, repeat) as it ends. Raises Failure if none can be run."""
        for job in jobs:
            self._jobs.put(job)
        for _ in range(min(self.settings.EVAL_CONCURRENCY, len(jobs))):
            threading.Thread(target=self._work, daemon=True).start()
        for _ in jobs:
            result = self._results.get()
            if isinstance(result, BaseException):
                raise result
            yield result

    def _work(self):
        while not self.stopping:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            try:
                self._results.put(self.sample(*job))
            except BaseException as error:  # handed to the thread that waits for results
                self._results.put(error)
                return

    def sample(self, index: int, line: int, row: Row, repeat: int) -> dict[str, Any]:
        """Run a sample to its end: its line of the evaluation. Raises Failure for what another try will not cure."""
        session = self.api.open(row)
        url = trial_request.gateway_of(self.settings.gateway_urls, session.id)
        began = time.monotonic()
        try:
            place = rows.place(self.settings.rows_path(), line, row)
            launched = launch.session(secrets.token_hex(16), self.api.base_url, session.id, str(row["id"]), mode="eval")
            payload = trial_request.create_payload(self.settings, launched, row) | {"metadata": {"trajectory": True}}
            snapshot, kept = self._trial(Gateway(self.settings, url), payload, place)
        finally:
            self.api.close(session)
        return self._line(index, row, repeat, snapshot, kept, session) | {"seconds": round(time.monotonic() - began, 3)}

    def _trial(self, gateway: Gateway, payload: dict[str, Any], place: str) -> tuple[Any, dict[str, Any]]:
        """(terminal snapshot, trajectory) of a trial. Raises Failure for a Gateway that is not there or refuses."""
        trial = self._live[payload["request_id"]] = Trial(gateway, payload)
        try:
            snapshot = trial.finish()
            kept = {}
            if artifact := snapshot.get("artifact_ref"):
                kept = gateway.insist(lambda: gateway.exchange("GET", artifact))
        except GaveUp as fault:
            if not gateway.answered:
                raise Failure(f"{gateway.url.geturl()}: {fault}; {KEPT}") from None
            trial.abort()
            error = {"code": "gateway_lost", "cause": str(fault)}
            return {"request_id": payload["request_id"], "status": "failed", "error": error}, {}
        except Unfit as fault:
            raise Failure(f"{place}: {gateway.url.geturl()}: {fault}") from None
        except ClientError as fault:
            raise Failure(f"{gateway.url.geturl()}: {fault}") from None
        finally:
            self._live.pop(payload["request_id"], None)
        if snapshot.get("reward") is not None and not kept:
            raise Failure(f"{gateway.url.geturl()}: kept no trajectory; `make gym-up` starts the present Gateway")
        return snapshot, kept

    def _line(
        self, index: int, row: Row, repeat: int, snapshot: Any, kept: dict[str, Any], session: Any
    ) -> dict[str, Any]:
        error = snapshot.get("error")
        if error and session.fault and str(error.get("type")).startswith("endpoint_"):
            # The Gateway saw the evaluation's own model API fail; the session knows what the endpoint did.
            error = error | {"type": f"endpoint_{session.fault.kind}", "cause": session.fault.message}
        metrics = snapshot.get("metrics") or {}
        counted = {name: metrics[name] for name in ("input_tokens", "output_tokens") if name in metrics}
        line = {
            "row": index,
            "row_id": row["id"],
            "category": row["category"],
            "repeat": repeat,
            "request_id": snapshot["request_id"],
            "status": snapshot["status"],
            "error": error,
        }
        if snapshot.get("reward") is None:
            return line
        shown = {"reward": snapshot["reward"], "metrics": metrics, "usage": counted or None}
        shown |= {"models_reported": sorted(filter(None, session.models))}
        return line | shown | {"input": kept["input"], "ground_truth": row["ground_truth"], "output": kept["output"]}

    def stop(self) -> None:
        """Ask the Gateways to end what runs, for STOP_S at most."""
        self.stopping = True
        aborts = [threading.Thread(target=trial.abort, daemon=True) for trial in list(self._live.values())]
        for abort in aborts:
            abort.start()
        end = time.monotonic() + STOP_S
        for abort in aborts:
            abort.join(max(0, end - time.monotonic()))
        self.api.stop()
