"""The scripted policy of the whole-trial check: what it lets pass and what it names."""

import pytest

import verify_trial
from inputs import rows
from servers.verifier import FOUND, REPLIED

TOOLS = [{"type": "function", "name": name} for name in ("email_search_emails", "email_reply_email")]
PROMPT = [{"role": "system", "content": "Today"}, {"role": "user", "content": "Reply to Carlos"}]
ROW = {rows.WRAPPER: {"input": PROMPT, "tools": TOOLS}}


def played(*turns, tools=TOOLS):
    """The policy after model calls with these histories: each a function of (history, last answer)."""
    policy, history, answer = verify_trial.ScriptedPolicy(ROW), [dict(item, type="message") for item in PROMPT], None
    for turn in turns:
        history = turn(history, answer)
        answer = policy(None, {"input": history, "tools": tools})["output"][0]
    return policy


def start(history, _):
    return history


def output(text):
    def turn(history, answer):
        return [*history, answer, {"type": "function_call_output", "call_id": answer["call_id"], "output": text}]

    return turn


FULL = [start, output(f'{{"email_id": "{FOUND}"}}'), output(REPLIED)]


def test_the_right_history_passes_and_is_answered_to_the_end():
    policy = played(*FULL)
    assert policy.fault is None and len(policy.inputs) == 3
    assert "call 1 does not offer the row's tools" in played(start, tools=TOOLS[:1]).fault


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([lambda history, _: history[1:]], "call 1 does not hold the row's prompt"),
        ([start, lambda history, _: history], "call 2 does not hold the tool call"),
        ([start, lambda history, answer: output(FOUND)(history[1:], answer)], "call 2 does not extend the history"),
        ([start, lambda history, answer: output(FOUND)(history, answer | {"arguments": "{}"})], "call 2 does not hold"),
        ([start, output("nothing found"), output(REPLIED)], "call 2 does not hold the output of email_search_emails"),
        ([*FULL, start], "call 4 came after the closing message"),
    ],
)
def test_the_first_fault_is_named(turns, words):
    assert words in played(*turns).fault


@pytest.mark.parametrize("status", ["failed", "truncated"])
def test_a_trial_that_did_not_complete_is_no_pass(status):
    snapshot = {"status": status, "reward": 1.0, "metrics": {}, "error": {"code": "agent_error"}}
    with pytest.raises((verify_trial.Failure, verify_trial.ClientError), match="agent_error"):
        verify_trial.judge(played(*FULL), snapshot)
