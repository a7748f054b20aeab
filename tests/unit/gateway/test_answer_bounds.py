"""Bounds on what is taken: items of an answer, token counts, depth; one start at a time."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

from gateway.model_calls import ITEMS_PER_CALL, MAX_TOKENS, EndpointFault, ModelCalls, TooManyCalls, complete
from servers import graph

SETTINGS = SimpleNamespace(GATEWAY_MAX_CALLS_PER_ANSWER=2)


def forward(answer):
    """What `forward` makes of an endpoint's parsed answer."""
    calls = ModelCalls(None, SETTINGS, lambda answer: None)
    calls._insist = lambda endpoint, request: asyncio.sleep(0, (200, b""))
    calls._parse = lambda endpoint, status, text: answer
    endpoint = SimpleNamespace(url="http://10.0.0.1:80/v1/responses", model="model")

    async def run():
        return await calls.forward(endpoint, {}, {"input": []}, asyncio.get_running_loop().time() + 5)

    return asyncio.run(run())


def test_as_many_items_as_allowed_pass_and_one_more_does_not():
    message = {"type": "message", "content": []}
    allowed = 2 * ITEMS_PER_CALL
    assert len(forward({"output": [dict(message) for _ in range(allowed)]})["output"]) == allowed
    with pytest.raises(TooManyCalls, match=f"{allowed + 1} items"):
        forward({"output": [dict(message) for _ in range(allowed + 1)]})


def test_an_answer_too_deep_to_be_written_again_is_the_endpoints_fault():
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(EndpointFault) as fault:
        forward({"output": [], "extra": deep})
    assert fault.value.kind == "schema"


@pytest.mark.parametrize(("count", "taken"), [(5, 5), (MAX_TOKENS, MAX_TOKENS), (2**63, 0), (True, 0), (-1, 0)])
def test_token_counts_are_numbers_that_can_be_stored(count, taken):
    assert complete({"output": [], "usage": {"input_tokens": count}})["usage"]["input_tokens"] == taken


def test_a_second_start_waits_for_the_first(tmp_path):
    settings, stage = SimpleNamespace(RUN_DIR=tmp_path / "run"), SimpleNamespace(detail=lambda text: None)
    entered = threading.Event()

    def second():
        with graph.only_start(settings, stage):
            entered.set()

    waiting = threading.Thread(target=second, daemon=True)
    with graph.only_start(settings, stage):
        waiting.start()
        assert not entered.wait(0.3)
    assert entered.wait(10)
