#!/usr/bin/env python3
"""Time the environment's parts in this process: seed, each tool, verification. Started by bench.py.

Guarantees:
- it prints one JSON object, {part: ms}, the medians of --repeats calls
- CPU time counts, so that what else the machine does leaves it as it is
- each call meets the state of a fresh session, which is made outside the timed part

  PYTHONPATH=scripts .venv/bin/python -m proofs.bench_parts --repeats 30
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

from resources_servers.workplace_assistant import utils

from common.settings import from_command_line
from common.terminal import run

TOOLKITS = ["email", "calendar", "analytics", "project_management", "customer_relationship_manager"]
DATES = {"time_min": "2023-10-01", "time_max": "2023-11-20"}
EVENT = {"event_name": "Sync", "participant_email": "luis.ortiz@atlas.com"}
TASK = {"task_name": "Fix it", "assigned_to_email": "leila.azizi@atlas.com", "list_name": "Backlog"}
CALLS = {
    "company_directory_find_email_address": {"name": "luis"},
    "email_get_email_information_by_id": {"email_id": "00000057", "field": "body"},
    "email_search_emails": {"query": "carlos task update", "date_min": "2023-10-01", "date_max": "2023-11-30"},
    "email_send_email": {"recipient": "a@example.com", "subject": "Hello", "body": "World"},
    "email_delete_email": {"email_id": "00000057"},
    "email_forward_email": {"email_id": "00000057", "recipient": "a@example.com"},
    "email_reply_email": {"email_id": "00000057", "body": "Thanks"},
    "calendar_get_event_information_by_id": {"event_id": "00000013", "field": "event_name"},
    "calendar_search_events": {"query": "sync"},
    "calendar_create_event": {**EVENT, "event_start": "2023-12-01 10:00:00", "duration": "30"},
    "calendar_delete_event": {"event_id": "00000013"},
    "calendar_update_event": {"event_id": "00000013", "field": "duration", "new_value": "45"},
    "analytics_engaged_users_count": DATES,
    "analytics_get_visitor_information_by_id": {"visitor_id": "0860"},
    "analytics_create_plot": {**DATES, "value_to_plot": "total_visits", "plot_type": "bar"},
    "analytics_traffic_source_count": {**DATES, "traffic_source": "direct"},
    "analytics_total_visits_count": DATES,
    "analytics_get_average_session_duration": DATES,
    "project_management_get_task_information_by_id": {"task_id": "00000149", "field": "board"},
    "project_management_search_tasks": {"task_name": "add", "board": "Front end"},
    "project_management_create_task": {**TASK, "due_date": "2023-12-01", "board": "Design"},
    "project_management_delete_task": {"task_id": "00000149"},
    "project_management_update_task": {"task_id": "00000149", "field": "board", "new_value": "Design"},
    "customer_relationship_manager_search_customers": {"status": "Lead", "follow_up_by_min": "2023-11-01"},
    "customer_relationship_manager_update_customer": {"customer_id": "00000189", "field": "status", "new_value": "Won"},
    "customer_relationship_manager_add_customer": {
        "customer_name": "Ada",
        "assigned_to_email": "lena.schmidt@atlas.com",
        "status": "Lead",
    },
    "customer_relationship_manager_delete_customer": {"customer_id": "00000189"},
}
TRIAL = ("email_search_emails", "email_reply_email")


def median_ms(work: Callable[[Any], Any], repeats: int, prepare: Callable[[], Any] = lambda: None) -> float:
    """Median CPU time of `work(prepare())`: only `work` is timed, and the first call does not count."""
    work(prepare())
    times = []
    for _ in range(repeats):
        subject = prepare()
        started = time.process_time()
        work(subject)
        times.append(time.process_time() - started)
    return round(statistics.median(times) * 1000, 4)


def parts(repeats: int) -> dict[str, float]:
    def session() -> dict[str, Any]:
        return utils.get_tools(TOOLKITS)

    medians = {"seed": median_ms(lambda _: session(), repeats)}
    for names, label in ((TRIAL, "verify search+reply"), (CALLS, "verify all 27 tools")):
        # Upstream's annotations call a list of calls a dictionary.
        played: Any = [{"name": name, "arguments": json.dumps(CALLS[name])} for name in names]
        medians[label] = median_ms(lambda _, played=played: utils.is_correct(played, played, ""), repeats)
    for name, arguments in CALLS.items():
        medians[name] = median_ms(
            lambda tools, name=name, arguments=arguments: tools["functions"][name](**arguments), repeats, session
        )
    return medians


def main() -> None:
    repeats = {"type": int, "default": 30, "metavar": "N", "help": "timed calls of each part [30]"}
    _, args = from_command_line(__doc__, options={"--repeats": repeats})
    # pandas warns about upstream's code.
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(None):
        medians = parts(args.repeats)
    print(json.dumps(medians))


if __name__ == "__main__":
    run(main)
