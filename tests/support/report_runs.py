"""Runs on disk for tests of reports: an evaluation of a few rows with text that means harm, and rollout dumps."""

import json

ALERT = "<img src=x onerror='window.harmed=1'><svg onload=window.harmed=1>"
HOSTILE = (
    f"</script><script>window.harmed=1</script>{ALERT}<!-- &lt;b&gt; \u2028\u2029 \u202edesrever\u202c \x00\x1b[31m"
)
SEARCH = ("email_search_emails", {"query": "report"})
DELETE = ("email_delete_email", {"email_id": "00000487"})
REPLY = ("email_reply_email", {"email_id": "00000057", "body": "Thanks."})
CATEGORY = "workplace_assistant_email"


def call(nth, name, arguments, result):
    """A call and its result, as Responses items."""
    arguments = arguments if isinstance(arguments, str) else json.dumps(arguments)
    item = {"type": "function_call", "call_id": f"c{nth}", "name": name, "arguments": arguments}
    return [item, {"type": "function_call_output", "call_id": f"c{nth}", "output": json.dumps({"output": result})}]


def message(text):
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content}


def truth(*calls):
    return [{"name": name, "arguments": json.dumps(arguments)} for name, arguments in calls]


def sample(row, repeat, reward, output, calls=(REPLY,), task="Reply to Carlos", **changes):
    """A line of rollouts.jsonl."""
    prompt = [{"role": "system", "content": "Today is Thursday."}, {"role": "user", "content": task}]
    fields = {"row": row, "row_id": 100 + row, "category": CATEGORY, "repeat": repeat, "request_id": f"relax-{row}"}
    fields |= {"status": "completed", "error": None, "reward": reward, "metrics": {"model_calls": 2}, "seconds": 1.5}
    fields |= {"usage": {"input_tokens": 10, "output_tokens": 5}, "input": prompt, "ground_truth": truth(*calls)}
    return fields | {"output": output} | changes


def failure(row, repeat, error, status="failed"):
    """A line of failures.jsonl."""
    fields = {"row": row, "row_id": 100 + row, "category": CATEGORY, "repeat": repeat, "request_id": "relax-f"}
    return fields | {"status": status, "error": error, "seconds": 9.0}


def right():
    return [*call(1, *SEARCH, "No emails found."), *call(2, *REPLY, "Email replied successfully."), message("Done.")]


def samples():
    """What the tests' evaluation holds: one of each ending."""
    emails = {"emails": [{"email_id": "1", "body": HOSTILE}], "pagination": {"page": 1}}
    deleted = [*call(1, *SEARCH, emails), *call(2, *DELETE, "Email deleted successfully."), message(HOSTILE)]
    malformed = call(1, "email_delete_email", '{"email_id": ', "Invalid JSON")
    unknown = call(1, HOSTILE, {HOSTILE: HOSTILE}, HOSTILE)
    other = {"category": HOSTILE}
    cut = {"status": "truncated", "error": {"code": "too_many_calls"}}
    return [
        sample(0, 0, 1.0, right()),
        sample(0, 1, 0.0, deleted),
        sample(1, 0, 0.0, [message("I shall not.")], task=HOSTILE, **other),
        sample(1, 1, 0.0, [*malformed, message("y" * 100_000)], task=HOSTILE, **other),
        sample(2, 0, 0.0, [{"type": "reasoning", "summary": [{"text": HOSTILE}]}, *unknown], calls=(DELETE,)),
        sample(2, 1, 0.0, [], calls=(DELETE,), **cut),
        sample(3, 0, 1.0, [message("Nothing to do.")], calls=()),
    ]


FAILED = [
    failure(3, 1, {"code": "deadline_exceeded"}, "truncated"),
    failure(4, 0, {"code": "agent_error", "cause": HOSTILE}),
]


def evaluation(folder, graded=None, failed=FAILED):
    """Write an evaluation's folder. Returns it."""
    folder.mkdir(parents=True)
    config = {"format": 1, "model": "tiny", "split": "validation", "repeats": 2, "sampling": {"temperature": 0.7}}
    (folder / "config.json").write_text(json.dumps(config))
    write_lines(folder / "rollouts.jsonl", samples() if graded is None else graded)
    write_lines(folder / "failures.jsonl", failed)
    return folder


def write_lines(path, items):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def dumped(**changes):
    """A line of a rollout dump, as the trainer writes it."""
    text = '<tool_call>\n{"name": "email_delete_email", "arguments": {"email_id": "00000487"}}\n</tool_call>\n'
    text += '<tool_response>\n{"output":"Email deleted successfully."}\n</tool_response>\nDone.'
    fields = {"rollout_id": 0, "sample_index": 0, "status": "completed", "reward": 0.0, "agent_turns": 2}
    tokens = {"prompt_token_count": 5, "response_token_count": 5, "total_token_count": 10}
    return fields | tokens | {"response": text} | changes
