"""A verifier in small: grades calls as the resource server does, on a state of its own, with faults on demand.

Deletions of ids of eight digits count once, whatever their order; other calls that change the state
count by their arguments without letter case; all else changes nothing. `faults` maps a row's id
to "broken" (always 0), "blind" (arguments do not matter), "odd" (a reward of 0.5) or an HTTP status.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from inputs.row_facts import ALTERED


class ScriptedVerifier:
    """Context manager; `asked` holds (row id, tools in the row, calls) of each question."""

    def __init__(self, **faults):
        self.faults, self.asked = {int(name.removeprefix("row_")): fault for name, fault in faults.items()}, []

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.verifier = self
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, row):
        """(status, body) for what was posted to /verify."""
        calls = [item for item in row["response"]["output"] if item["type"] == "function_call"]
        self.asked.append((row["id"], row["responses_create_params"]["tools"], calls))
        fault = self.faults.get(row["id"])
        if isinstance(fault, int):
            return fault, {"detail": "no"}
        states = [state(each, fault == "blind") for each in (calls, row["ground_truth"])]
        right = fault != "broken" and states[0] == states[1]
        return 200, {"reward": 0.5 if fault == "odd" else float(right)}


def state(calls, blind):
    deleted, changes = set(), []
    for call in calls:
        arguments = {name: str(value).casefold() for name, value in json.loads(call["arguments"]).items()}
        if call["name"].startswith("email_delete"):
            deleted |= {arguments["email_id"]} if len(arguments["email_id"]) == 8 else set()
        elif call["name"] in ALTERED:
            changes.append((call["name"], None if blind else sorted(arguments.items())))
    return deleted, changes


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status, body = self.server.verifier.answer(row) if self.path == "/verify" else (404, {})
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Keep the test's output clean."""
