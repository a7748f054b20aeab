"""What rows say of themselves: altered calls, steps, sizes, twins."""

import json

import pytest

from inputs import row_facts, rows
from support.task_rows import EXAMPLE, SHARED_DATA

ARGUMENTS = '{"event_id": "00000252", "field": "duration", "new_value": "30"}'
CALL = {"name": "calendar_update_event", "arguments": ARGUMENTS}


def row(*calls, prompt="Do it", tools=()):
    return {"responses_create_params": {"input": prompt, "tools": list(tools)}, "ground_truth": list(calls)}


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ("00000057", "00000058"),
        ("2023-11-29", "2023-11-20"),
        ("2023-12-01 13:00:00", "2023-12-01 13:00:01"),
        ("raj@atlas.com", "raj@atlas.com altered"),
        ("", " altered"),
        (57, "altered"),
        (None, "altered"),
    ],
)
def test_a_value_is_altered_into_a_text_that_is_another(value, other):
    assert row_facts.altered_text(value) == other
    assert str(value).casefold() != other.casefold()


def test_one_argument_of_a_call_and_of_its_repeats_is_altered():
    search = {"name": "email_search_emails", "arguments": "{}"}
    changed = row_facts.altered([CALL, search, CALL], 2)
    assert changed[1] == search and changed[0] == changed[2]
    assert json.loads(changed[0]["arguments"]) == json.loads(CALL["arguments"]) | {"event_id": "00000253"}
    assert row_facts.without([CALL, search, CALL], 0) == [search]


def test_every_tool_that_can_be_altered_is_one_of_the_environment_with_that_argument():
    example = rows.read_rows(EXAMPLE)[0]
    tools = {tool["name"]: tool["parameters"]["properties"] for tool in example[rows.WRAPPER]["tools"]}
    assert all(argument in tools[name] for name, argument in row_facts.ALTERED.items())
    # What is left only reads.
    verbs = ("get", "search", "find", "count")
    assert all(any(verb in name for verb in verbs) for name in tools.keys() - row_facts.ALTERED.keys())


def test_five_calls_fit_the_steps_and_six_do_not():
    assert row_facts.fits_steps(row()) and row_facts.fits_steps(row(*[CALL] * 5))
    assert not row_facts.fits_steps(row(*[CALL] * 6))


def test_tokens_are_bytes_of_tools_instructions_and_messages_over_the_ratio():
    tools, text = [{"type": "function", "name": "t"}], "é" * 38
    parts = [{"type": "input_text", "text": text}]
    length = len(json.dumps(tools)) + 2 * 38
    for prompt in (text, [{"role": "user", "content": text}], [{"role": "user", "content": parts}]):
        assert row_facts.prompt_tokens(row(prompt=prompt, tools=tools)) == -(-length * 10 // 38)


def test_twins_are_found_by_words_and_by_the_meaning_of_the_answer():
    other = CALL | {"arguments": '{"new_value": "30", "event_id": "00000252", "field": "DURATION"}'}
    variants = [row(CALL), row(other, prompt="do  IT."), row(prompt="Do it"), row(prompt="do it")]
    twins = row_facts.twins(zip("abcd", variants, strict=True))
    assert twins == [("b", "a", True), ("c", "a", False), ("d", "c", True)]


@pytest.mark.shared_data
def test_prompts_of_the_published_shape_are_estimated_near_what_was_counted():
    estimates = [row_facts.prompt_tokens(raw) for raw in rows.read_rows(SHARED_DATA / "workbench_dev.jsonl")]
    # Counted with Qwen's vocabulary and template: 4,198 to 4,323.
    assert 4198 <= min(estimates) < 4198 * 1.02 and 4323 <= max(estimates) < 4323 * 1.02
