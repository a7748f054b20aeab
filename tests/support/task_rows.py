"""Task rows: those that ship, a small one, and where others and recorded runs may lie beside the clone."""

from pathlib import Path

from inputs import rows
from servers.tree import WORKPLACE, installed_tree

EXAMPLE = installed_tree() / WORKPLACE / "data" / "example.jsonl"
# Tests that need it skip where it is absent.
SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SMALL = {
    "id": 1,
    "category": "c",
    "environment_name": "workplace_assistant",
    "ground_truth": [],
    "responses_create_params": {"input": [{"role": "user", "content": "hello"}]},
}


def session_input(row):
    """What the trainer hands a session of the row."""
    relax = rows.to_relax(row)
    return {"messages": relax["input"], "metadata": relax["metadata"]}
