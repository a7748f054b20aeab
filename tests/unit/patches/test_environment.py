"""The patched environment gives what the unpatched one gives: every tool output and every reward.

Both run the same calls in one process: sequences drawn by hypothesis, and recorded runs with
known rewards where ../shared/data has them.
"""

import contextlib
import io
import json
import os
import re
import warnings

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from resources_servers.workplace_assistant import utils as patched

from support import odd_actions, unpatched_environment
from support.task_rows import SHARED_DATA

SEQUENCES = int(os.environ.get("ENVIRONMENT_SEQUENCES", "2000"))
MODULES = re.compile(rb"[\w.]+\.workplace_assistant_tools\.(fast_)?")
TOOLKITS = ["email", "calendar", "analytics", "project_management", "customer_relationship_manager"]


@pytest.fixture(scope="module")
def unpatched(tmp_path_factory):
    with warnings.catch_warnings():
        # What pandas says about upstream's code; it says less where ours is in its place.
        warnings.simplefilter("ignore")
        yield unpatched_environment.load(tmp_path_factory.mktemp("unpatched"))


def outputs(utils, actions):
    """What a live session answers to each call, as the resource server words it."""
    tool_env = utils.get_tools(TOOLKITS)
    return [answer(tool_env, action["name"], action["arguments"]) for action in actions]


def answer(tool_env, name, text):
    try:
        arguments = {key: value for key, value in json.loads(text).items() if value is not None}
    except (ValueError, AttributeError):
        return "not sent on"
    try:
        return repr(tool_env["functions"][name](**arguments))
    except Exception as error:
        return f"Error executing tool '{name}': {error}"


def verdict(utils, predicted, ground_truth):
    """(is_correct or what it raised, the lines it printed, module names aside)."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(printed):
        try:
            result = utils.is_correct(predicted, ground_truth, None)
        except Exception as error:
            result = repr(error)
        printed.flush()
    return result, MODULES.sub(b"", printed.buffer.getvalue()).splitlines()


def assert_same(unpatched, actions, other):
    assert outputs(patched, actions) == outputs(unpatched, actions)
    (result, printed), (expected, lines) = verdict(patched, actions, other), verdict(unpatched, actions, other)
    assert result == expected
    # The faults of calls that only read are left out; the others are printed as they were, in their order.
    rest = iter(lines)
    assert all(line in rest for line in printed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
# Without shrinking, which takes minutes here: a failing sequence has six calls at most.
@settings(
    max_examples=SEQUENCES,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_the_same_outputs_and_rewards_for_drawn_actions(unpatched, data):
    actions = data.draw(odd_actions.sequences)
    assert_same(unpatched, actions, data.draw(odd_actions.variants(actions)))


def read_lines(name):
    return [json.loads(line) for line in (SHARED_DATA / name).open()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.shared_data
def test_the_same_outputs_and_the_recorded_rewards_for_recorded_runs(unpatched):
    truths = {row["id"]: row["ground_truth"] for row in read_lines("workbench_dev.jsonl")}
    for run in read_lines("workbench_traces_dev.jsonl"):
        actions, ground_truth = run["actions"], truths[run["task_id"]]
        assert verdict(patched, actions, ground_truth)[0] == run["reward"]
        assert verdict(patched, ground_truth, ground_truth)[0]
        assert outputs(patched, actions) == outputs(unpatched, actions)


def test_states_are_apart_and_the_pristine_rows_stay(unpatched):
    first, second = patched.get_tools(TOOLKITS), patched.get_tools(TOOLKITS)
    delete = {"email_id": odd_actions.IDS["email_id"][0]}
    assert first["functions"]["email_delete_email"](**delete) == "Email deleted successfully."
    assert second["functions"]["email_delete_email"](**delete) == "Email deleted successfully."
    found = second["functions"]["calendar_search_events"]("sync")
    found["events"][0].clear()
    assert repr(second["functions"]["calendar_search_events"]("sync")) == repr(
        unpatched.get_tools(TOOLKITS)["functions"]["calendar_search_events"]("sync")
    )
