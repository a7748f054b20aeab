"""The launch of one session client: what the trainer would give it, as a session and as variables.

Guarantees:
- a session names its input and output in the session's own folder, as the trainer does
- the variables hold all that the session client reads of a launch, and nothing else
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inputs import rows

if TYPE_CHECKING:
    from gateway.trial_request import Session

PREFIX = "RELAX_"


def task_of(row: rows.Row) -> dict[str, Any]:
    """The session input that the trainer makes of a raw row."""
    relax = rows.to_relax(row)
    prompt = relax["input"]
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    return {"messages": messages, "metadata": relax["metadata"]}


def session(folder: Path | str, base_url: str, session_id: str, group: str, mode: str = "train") -> Session:
    """A session with its files in `folder`; any name will do for a session that no process serves."""
    return {
        "INPUT_JSON": f"{folder}/input.json",
        "OUTPUT_JSON": f"{folder}/output.json",
        "SESSION_IO_DIR": str(folder),
        "BASE_URL": base_url,
        "SESSION_ID": session_id,
        "ROLLOUT_MODE": mode,
        "GROUP_ID": group,
    }


def prepare(session: Session, task: Mapping[str, Any]) -> dict[str, str]:
    """Write the task where the session client reads it: the client's variables."""
    Path(session["INPUT_JSON"]).write_text(json.dumps(task), encoding="utf-8")
    return {f"{PREFIX}{name}": str(text) for name, text in session.items()}
