#!/usr/bin/env python3
"""A policy endpoint that does well or ill as it is told, in a process of its own, so that it can be killed.

`POST /<trial>/v1/responses` plays the ground truth of the trial's row, a call a turn, by the history
in the request alone: it keeps nothing, and goes on where it was when it is started again. In FOLDER
it reads `tasks.json` ({trial: [calls]}) and, at each call, `mode` (one of MODES, and the seconds an
answer takes); it writes a line for each call it was sent to `calls.jsonl`. On loopback; ends with a signal.

  scripts/policy_endpoint.py PORT FOLDER
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from policy.model_api import answered, function_call, message

LARGE_BYTES = 50 << 20


def good(handler, answer):
    handler.send(200, json.dumps(answer).encode())


def status_500(handler, answer):
    handler.send(500, b'{"error": "never"}')


def hang(handler, answer):
    while handler.mode_now() == "hang":
        time.sleep(0.2)
    handler.close_connection = True


def cut(handler, answer):
    text = json.dumps(answer).encode()
    handler.send(200, text[: len(text) // 2], declared=len(text))
    handler.close_connection = True


def garbage(handler, answer):
    handler.send(200, bytes(range(256)))


def wrong_schema(handler, answer):
    handler.send(200, json.dumps(answer | {"output": [{"type": "function_call", "name": 7}]}).encode())


def error_in_200(handler, answer):
    handler.send(200, b'{"error": {"message": "overloaded"}}')


def large(handler, answer):
    handler.send(200, b" " * LARGE_BYTES)


def drip(handler, answer):
    text = json.dumps(answer).encode()
    handler.send(200, text[:1], declared=len(text))
    for index in range(1, len(text)):
        if handler.mode_now() != "drip":
            break
        time.sleep(1)
        handler.wfile.write(text[index : index + 1])
    handler.close_connection = True


MODES = {
    "good": good,
    "500": status_500,
    "hang": hang,
    "cut": cut,
    "garbage": garbage,
    "schema": wrong_schema,
    "error": error_in_200,
    "large": large,
    "drip": drip,
}


def turn_of(body):
    """Model calls of this rollout before this one."""
    return sum(item.get("type") == "function_call_output" for item in body["input"])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        trial, turn = self.path.split("/")[1], turn_of(body)
        mode, pace_s = self.server.mode()
        self.server.note({"trial": trial, "turn": turn, "mode": mode, "time": time.time()})
        time.sleep(pace_s)
        calls = self.server.tasks().get(trial, [])
        items = [function_call(**calls[turn])] if turn < len(calls) else [message("Done.")]
        try:
            MODES[mode](self, answered(items))
        except OSError:  # the Gateway has ended the call
            self.close_connection = True

    def mode_now(self):
        return self.server.mode()[0]

    def send(self, status, data, declared=None):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(declared or len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Say nothing: the calls are in calls.jsonl."""


class Endpoint(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 1024

    def __init__(self, port, folder):
        self.folder = Path(folder)
        super().__init__(("127.0.0.1", port), Handler)

    def mode(self):
        """(name of the mode, seconds an answer takes)"""
        name, pace_s = (self.folder / "mode").read_text().split()
        return name, float(pace_s)

    def tasks(self):
        return json.loads((self.folder / "tasks.json").read_text())

    def note(self, call):
        with open(os.open(self.folder / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as log:
            log.write(json.dumps(call).encode() + b"\n")


def main():
    if len(sys.argv) != 3 or not sys.argv[1].isdecimal():
        known = sys.argv[1:] in (["-h"], ["--help"])
        print(__doc__.strip(), file=sys.stdout if known else sys.stderr)
        return 0 if known else 2
    try:
        Endpoint(int(sys.argv[1]), sys.argv[2]).serve_forever()
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
