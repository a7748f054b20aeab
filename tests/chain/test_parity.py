"""The environment with our patches and without: the same tool outputs, byte for byte, and the same rewards."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from inputs.rows import read_rows
from policy.model_api import function_call, message
from proofs.unpatched import take_back
from servers import tree
from support import outcomes, unpatched_environment
from support.outcomes import play, truth_of
from support.task_rows import SHARED_DATA

# Episodes of the shipped rows: five for each, and one of odd calls.
EXAMPLES = 26
ODD_CALLS = [
    ["company_directory_find_email_address", {"name": "carlos"}],
    ["company_directory_find_email_address", {"name": ""}],
    ["company_directory_find_email_address", {}],
    ["email_search_emails", {"query": "Carlos update"}],
    ["email_search_emails", {"query": "", "date_min": "2023-11-01", "date_max": None}],
    ["email_search_emails", {"query": ["a"]}],
    ["email_get_email_information_by_id", {"email_id": "00000057", "field": "body"}],
    ["email_get_email_information_by_id", {"email_id": "nothing", "field": "body"}],
    ["email_get_email_information_by_id", {"email_id": 57, "field": "body"}],
    ["email_reply_email", {"email_id": "00000057", "body": "caf\u00e9 \U0001f600"}],
    ["email_send_email", {"recipient": "nobody", "subject": 1, "body": None}],
    ["email_delete_email", {"email_id": "00000057"}],
    ["email_delete_email", {"email_id": "00000057"}],
    ["calendar_search_events", {"query": "sync"}],
    ["calendar_create_event", {"event_name": "x", "duration": "abc"}],
    ["calendar_update_event", {"event_id": "00000252", "field": "event_name", "new_value": 5}],
    ["analytics_create_plot", {"time_min": "2023-10-01", "time_max": "2023-11-01", "value_to_plot": "x"}],
    ["analytics_total_visits_count", {"time_min": "2023-10-01", "time_max": "2023-10-03"}],
    ["project_management_create_task", {"task_name": "t", "list_name": "Backlog", "board": "Design"}],
    ["project_management_search_tasks", {"task_name": "e", "list_name": "completed"}],
    ["customer_relationship_manager_search_customers", {"status": "Lead"}],
    ["customer_relationship_manager_update_customer", {"customer_id": "00000095", "field": "status", "new_value": 7}],
    ["customer_relationship_manager_delete_customer", {"customer_id": "00000009"}],
    ["no_such_tool", {"a": 1}],
    ["email_search_emails", {"no_such_parameter": 1}],
]


@pytest.fixture(scope="module")
def pristine_tree(tmp_path_factory):
    """The Workplace Assistant as released: a copy of ours with the patches taken back, proved by hash."""
    folder = tmp_path_factory.mktemp("pristine")
    take_back(tree.patch_files(), folder)
    unpatched_environment.assert_as_released(folder)
    return folder


def episodes_of(example_rows):
    """The ground truth of each row, the same with a call missing, doubled and in another order, and odd calls."""
    episodes = []
    for row in example_rows:
        truth = truth_of(row)
        variants = (truth, truth[:-1], truth * 2, truth[::-1], [*ODD_CALLS[:4], *truth])
        episodes += [{"row": row, "calls": calls} for calls in variants]
    return [*episodes, {"row": example_rows[0], "calls": ODD_CALLS}]


@pytest.fixture(scope="module")
def played(pristine_tree, example_rows):
    """(patched, pristine) of all episodes; after the first EXAMPLES come those of other rows, where there are some."""
    episodes = episodes_of(example_rows)
    if SHARED_DATA.is_dir():
        others = read_rows(SHARED_DATA / "workbench_dev.jsonl")[::15]
        episodes += [{"row": row, "calls": truth_of(row)} for row in others]
        episodes += [{"row": row, "calls": []} for row in others[::4]]
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(play, [tree.installed_tree(), pristine_tree], [episodes] * 2))


def assert_same(patched, pristine):
    for index, (ours, theirs) in enumerate(zip(patched, pristine, strict=True)):
        assert ours == theirs, f"episode {index}"


def test_example_rows_and_odd_calls_give_the_same_bytes_and_rewards(played):
    patched, pristine = played
    assert_same(patched[:EXAMPLES], pristine[:EXAMPLES])
    rewards = [episode["reward"] for episode in patched[:EXAMPLES]]
    assert rewards[:25:5] == [1.0] * 5 and 0.0 in rewards


@pytest.mark.shared_data
def test_other_rows_give_the_same_bytes_and_rewards(played):
    patched, pristine = played
    assert len(patched) > EXAMPLES
    assert_same(patched[EXAMPLES:], pristine[EXAMPLES:])


def test_the_agent_hands_tool_outputs_on_as_they_are(graph, models, played):
    odd = [function_call(name, json.dumps(arguments)) for name, arguments in ODD_CALLS]
    policy = models.script(odd[:12], odd[12:24], [*odd[24:], message("Done.")], [message("Done.")])
    snapshot = graph.finish(policy)
    pristine = played[1][EXAMPLES - 1]
    assert policy.calls[-1].outputs == [text for _, text in pristine["outputs"]]
    assert snapshot["reward"] == pristine["reward"]


@pytest.mark.parametrize("name", ["example", pytest.param("workbench", marks=pytest.mark.shared_data)])
def test_the_local_graph_gives_the_bytes_and_rewards_of_the_environment(graph, name):
    outcomes.assert_same_on_graph(graph.settings, name)
