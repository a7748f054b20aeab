"""Counters of the Gateway in Prometheus text, with names that begin with `gateway_`."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.recent import Recent
from gateway.trial import Outcome

LATENCIES_S = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800)


class Metrics:
    """What was counted since this Gateway started; the gauges are set by whoever asks for the text."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.recent = Recent()
        self._ended = Counter("gateway_trials_ended", "Ended trials", ["status", "code"], registry=registry)
        self._rewards = Counter("gateway_rewards", "Rewards given", ["reward"], registry=registry)
        self._faults = Counter("gateway_endpoint_faults", "Faults of model endpoints", ["kind"], registry=registry)
        self._queue, self._trial, self._call = (
            Histogram(f"gateway_{name}_seconds", text, buckets=LATENCIES_S, registry=registry)
            for name, text in (
                ("queue", "Time from creation to start"),
                ("trial", "Time from creation to end"),
                ("model_call", "Time of a model call"),
            )
        )
        self._gauges = {
            name: Gauge(f"gateway_{name}", text, registry=registry)
            for name, text in (
                ("active_trials", "Trials that have not ended"),
                ("queued_trials", "Trials that wait for a slot"),
                ("open_sessions", "Sessions open in the resource server (-1: it does not answer)"),
                ("ready", "1 if the graph takes and runs trials"),
            )
        }

    def started(self, waited_s: float) -> None:
        self._queue.observe(waited_s)
        self.recent.started(waited_s)

    def called(self, took_s: float) -> None:
        self._call.observe(took_s)
        self.recent.called(took_s)

    def faulted(self, kind: str) -> None:
        self._faults.labels(kind).inc()

    def ended(self, outcome: Outcome, took_s: float, category: object) -> None:
        self._trial.observe(took_s)
        self.recent.ended(outcome, took_s, category)
        self._ended.labels(outcome.status.value, outcome.fault.code if outcome.fault else "").inc()
        if outcome.reward is not None:
            self._rewards.labels(f"{outcome.reward:g}").inc()

    def text(self, **gauges: float) -> bytes:
        """Prometheus text; `gauges` are the present values by name."""
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return generate_latest(self.registry)
