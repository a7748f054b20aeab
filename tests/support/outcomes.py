"""Tool outputs, byte for byte, and rewards of the ground truth of task rows.

They come from a graph, by trials, or from the environment's code in a process of its own. Each backend is compared
with the code, so that no test needs two graphs.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from gateway import launch, trial_request
from gateway.client import Gateway, Trial
from inputs import rows
from policy import model_api
from servers.tree import installed_tree
from support.task_rows import EXAMPLE, SHARED_DATA, session_input

# Rows that every backend plays: the first so many of each file.
COMPARED = {
    "example": (EXAMPLE, 5),
    "workbench": (SHARED_DATA / "workbench_dev.jsonl", 50),
}
AT_ONCE = 8


@cache
def compared():
    """{name: [(row, (its outputs, its reward) in the environment)]} of the files that are there."""
    known = {name: rows.read_rows(path, count) for name, (path, count) in COMPARED.items() if path.exists()}
    # All at once: a process takes seconds to import the environment.
    given = iter(of_environment([row for task_rows in known.values() for row in task_rows]))
    return {name: [(row, next(given)) for row in task_rows] for name, task_rows in known.items()}


def play(tree, episodes):
    """What an application from `tree` gives for the episodes, as play_actions.py has both."""
    result = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("play_actions.py")), str(tree)],
        input=json.dumps(episodes),
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    # The verifier prints of its own.
    answer = json.loads(result.stdout.splitlines()[-1])
    assert Path(answer["file"]).is_relative_to(tree), "another tree was played"
    return answer["played"]


def truth_of(row):
    return [[call["name"], json.loads(call["arguments"])] for call in row["ground_truth"]]


def of_environment(task_rows):
    """[(outputs, reward)] that the installed environment gives for the rows, without a graph."""
    played = play(installed_tree(), [{"row": row, "calls": truth_of(row)} for row in task_rows])
    return [([text for _, text in episode["outputs"]], episode["reward"]) for episode in played]


def of_graph(settings, task_rows):
    """[(outputs, reward)] that the graph gives for the rows, each one trial."""
    seen = {}

    def policy(session, body):
        items = body["input"]
        seen[session.id] = [item["output"] for item in items if item.get("type") == "function_call_output"]
        return model_api.oracle(session, body)

    server = model_api.ModelAPI("127.0.0.1", policy)

    def trial(row):
        task = session_input(row)
        session = launch.session("unused", server.base_url, server.open(task).id, "parity", "eval")
        payload = trial_request.create_payload(settings, session, task)
        snapshot = Trial(Gateway(settings), payload).finish()
        return seen.get(session["SESSION_ID"]), snapshot["reward"]

    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(trial, task_rows))
    finally:
        server.stop()


def assert_same_on_graph(settings, name):
    """The rows of COMPARED[name] give on the graph what they give in the environment, and all earn 1."""
    task_rows, expected = zip(*compared()[name], strict=True)
    assert len(expected) == COMPARED[name][1]
    for number, (ours, theirs) in enumerate(zip(of_graph(settings, task_rows), expected, strict=True), 1):
        assert ours == theirs, f"row {number} of {name}"
    assert all(reward == 1.0 for _, reward in expected)
    assert [len(outputs) for outputs, _ in expected] == [len(row["ground_truth"]) for row in task_rows]
