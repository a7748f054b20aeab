"""The text of a rollout as Responses items: what the trainer's dump holds, taken apart by the tags of Qwen's format."""

import pytest

from policy import transcript
from support.report_runs import message


def test_a_transcript_gives_its_items_back_and_calls_meet_their_results():
    calls = '<tool_call>\n{"name": "a", "arguments": {"x": "é"}}\n</tool_call>\n'
    calls += '<tool_call>\n{"name": "b", "arguments": "{"}\n</tool_call>\n'
    results = '<tool_response>\n{"output":"</tool_response> <tool_call>"}\n</tool_response>\n'
    results += "<tool_response>\ntwo\n</tool_response>\n"
    text = f"<think>\nhm\n</think>\nI look.\n{calls}{results}Done."
    assert transcript.paired(transcript.items(text)) == [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        message("I look."),
        {"type": "function_call", "name": "a", "arguments": '{"x": "é"}', "call_id": "call_1"},
        {"type": "function_call", "name": "b", "arguments": "{", "call_id": "call_2"},
        {"type": "function_call_output", "output": '{"output":"</tool_response> <tool_call>"}', "call_id": "call_1"},
        {"type": "function_call_output", "output": "two", "call_id": "call_2"},
        message("Done."),
    ]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("", []),
        ("<|im_start|>assistant\nHello<|im_end|>\n", ["message"]),
        ("<tool_call>\nno JSON\n</tool_call>", ["function_call"]),
        ("<tool_call>\n[1]\n</tool_call>", ["function_call"]),
        ("<tool_call>\n{\"name\": \"a\"", ["function_call"]),
        ("<think>\ncut off", ["reasoning"]),
        ("</tool_call> alone", ["message"]),
    ],
)  # fmt: skip
def test_any_text_gives_items(text, kinds):
    assert [item["type"] for item in transcript.items(text)] == kinds
