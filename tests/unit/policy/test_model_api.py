"""The model API: where it listens, what it refuses, how the ground truth is spread, and branches of a history."""

import pytest

from policy import model_api
from proofs.rig import Server
from support.http_server import nobody


def test_it_listens_where_it_is_told():
    url = nobody()
    api = model_api.ModelAPI("127.0.0.1", model_api.noop, int(url.rpartition(":")[2]))
    api.stop()
    assert api.base_url == f"{url}/agentic_api"


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([], "input is not"),
        (None, "input is not"),
        ([{"type": "image"}], "items of type 'image'"),
        ([{"type": "function_call_output", "output": ""}], "without output"),
    ],
)
def test_a_history_the_trainer_would_not_understand_is_refused(items, words):
    api = model_api.ModelAPI("127.0.0.1", model_api.noop)
    server = Server(api.base_url, {"Authorization": f"Bearer {api.open({}).id}"})
    answer = server.post("/v1/responses", json={"input": items})
    api.stop()
    assert answer.status_code == 400 and words in answer.json()["error"]["message"]


@pytest.mark.parametrize(("count", "sizes"), [(0, []), (1, [1]), (5, [1] * 5), (6, [1, 1, 1, 1, 2]), (12, None)])
def test_calls_are_spread_in_order_over_five_turns_at_most(count, sizes):
    parts = model_api.spread(list(range(count)))
    assert [call for part in parts for call in part] == list(range(count))
    lengths = sorted(map(len, parts))
    assert len(parts) <= 5 and (lengths == sizes if sizes is not None else lengths[-1] - lengths[0] <= 1)


def test_a_history_that_does_not_extend_the_last_one_is_a_branch():
    session, first = model_api.Session({}), [{"role": "user", "content": "a"}]
    session.take(first)
    session.take([*first, {"role": "assistant", "content": "b"}])
    assert session.branches == 0
    session.take([{"role": "user", "content": "other"}])
    assert session.branches == 1
