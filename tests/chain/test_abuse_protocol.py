"""The trial protocol in any order of requests, against a model of what it promises."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from proofs.rig import ENDED, assert_error
from support.abuse import size
from support.scripted_model import DONE

ORDER = {"queued": 0, "running": 1} | dict.fromkeys(ENDED, 2)
MOST_LIVE = 10


class Protocol(RuleBasedStateMachine):
    """Knows the last snapshot of each trial; the Gateway may only move on from it."""

    graph = models = None
    trials = Bundle("trials")

    def __init__(self):
        super().__init__()
        self.payloads, self.seen, self.aborted, self.policies = {}, {}, set(), {}

    def live(self):
        return [request_id for request_id, seen in self.seen.items() if seen["status"] not in ENDED]

    def look(self, request_id, answer, status):
        """Keep a snapshot, which must follow from the one before."""
        assert answer.status_code == status, answer.text
        before, now = self.seen[request_id], answer.json()
        assert now["request_id"] == request_id
        assert ORDER[before["status"]] <= ORDER[now["status"]], (before, now)
        if before["status"] in ENDED:
            assert now == before
        if now["status"] == "aborted":
            assert request_id in self.aborted and now["reward"] is None
        if now["status"] == "completed":
            assert now["reward"] == 0.0 and now["error"] is None
        assert now["status"] != "failed", now
        self.seen[request_id] = now

    @rule(target=trials, hangs=st.booleans())
    def create(self, hangs):
        hangs = hangs and len(self.live()) < MOST_LIVE
        policy = self.models.hanging() if hangs else self.models.script(DONE)
        payload = self.graph.payload(policy)
        request_id = payload["request_id"]
        self.payloads[request_id], self.policies[request_id] = payload, policy
        self.seen[request_id] = {"status": "queued"}
        answer = self.graph.create(payload)
        if answer.status_code == 429:
            assert answer.headers["Retry-After"].isdecimal()
            assert_error(self.graph.show(request_id), 404, "trial_unknown")
            for live in self.live():
                self.abort(live)
            answer = self.graph.create(payload)
        self.look(request_id, answer, 202)
        return request_id

    @rule(request_id=trials)
    def create_again(self, request_id):
        self.look(request_id, self.graph.create(self.payloads[request_id]), 202)

    @rule(request_id=trials, deadline_s=st.integers(31, 60))
    def create_another(self, request_id, deadline_s):
        answer = self.graph.create(self.payloads[request_id] | {"deadline_s": deadline_s})
        assert_error(answer, 409, "payload_differs", "request_id")

    @rule(request_id=trials, wait_s=st.sampled_from([0, 0, 0.05]))
    def show(self, request_id, wait_s):
        self.look(request_id, self.graph.show(request_id, wait_s), 200)

    @rule(request_id=trials)
    def renew(self, request_id):
        answer = self.graph.http.post(f"/v1/trials/{request_id}/renew")
        assert (answer.status_code, answer.content) == (204, b"")

    @rule(request_id=trials)
    def abort(self, request_id):
        self.aborted.add(request_id)
        self.look(request_id, self.graph.http.post(f"/v1/trials/{request_id}/abort"), 202)

    @rule(request_id=trials)
    def abort_and_wait(self, request_id):
        self.abort(request_id)
        self.look(request_id, self.graph.show(request_id, wait_s=30), 200)
        assert self.seen[request_id]["status"] in ("aborted", "completed")

    @rule(action=st.sampled_from(["", "/renew", "/abort"]))
    def ask_for_nothing(self, action):
        method = "POST" if action else "GET"
        assert_error(self.graph.http.request(method, f"/v1/trials/never{action}"), 404, "trial_unknown")

    @invariant()
    def nothing_runs_twice(self):
        assert all(len(policy.calls) <= 1 for policy in self.policies.values())

    def teardown(self):
        for request_id in list(self.seen):
            if self.seen[request_id]["status"] not in ENDED:
                self.abort_and_wait(request_id)
        assert self.graph.health()[1]["active_trials"] == 0


@pytest.mark.slow
def test_any_order_of_requests_keeps_the_protocol(graph, models):
    Protocol.graph, Protocol.models = graph, models
    bounds = {"max_examples": size("ABUSE_EXAMPLES"), "stateful_step_count": 20, "deadline": None, "database": None}
    run_state_machine_as_test(Protocol, settings=settings(**bounds, suppress_health_check=list(HealthCheck)))
