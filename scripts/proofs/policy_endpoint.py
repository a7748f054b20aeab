#!/usr/bin/env python3
"""A policy endpoint that answers well or ill as it is told, in its own process, so that it can be killed.

Guarantees:
- `POST /<trial>/v1/responses` plays the ground truth of the trial's row, one call a turn
- the turn follows from the request's history alone, so a new process goes on where the old one ended
- FOLDER/tasks.json holds {trial: [calls]}; FOLDER/mode, read at each call, one of MODES and the seconds an
  answer takes; each call is noted as a line of FOLDER/calls.jsonl

On loopback; a signal ends it.

  PYTHONPATH=scripts python3 -m proofs.policy_endpoint PORT FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from policy.model_api import answered, function_call, message

LARGE_BYTES = 50 << 20


def sends(content: Callable[[dict[str, Any]], bytes], status: int = 200) -> Callable[[Handler, dict[str, Any]], None]:
    """A mode that sends what `content` makes of the right answer."""
    return lambda handler, answer: handler.send(status, content(answer))


def hang(handler: Handler, answer: dict[str, Any]) -> None:
    while handler.mode_now() == "hang":
        time.sleep(0.2)
    handler.close_connection = True


def cut(handler: Handler, answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    handler.send(200, text[: len(text) // 2], declared=len(text))
    handler.close_connection = True


def drip(handler: Handler, answer: dict[str, Any]) -> None:
    text = json.dumps(answer).encode()
    handler.send(200, text[:1], declared=len(text))
    for index in range(1, len(text)):
        if handler.mode_now() != "drip":
            break
        time.sleep(1)
        handler.wfile.write(text[index : index + 1])
    handler.close_connection = True


MODES = {
    "good": sends(lambda answer: json.dumps(answer).encode()),
    "500": sends(lambda answer: b'{"error": "never"}', status=500),
    "hang": hang,
    "cut": cut,
    "garbage": sends(lambda answer: bytes(range(256))),
    "schema": sends(lambda answer: json.dumps(answer | {"output": [{"type": "function_call", "name": 7}]}).encode()),
    "error": sends(lambda answer: b'{"error": {"message": "overloaded"}}'),
    "large": sends(lambda answer: b" " * LARGE_BYTES),
    "drip": drip,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        trial = self.path.split("/")[1]
        turn = sum(item.get("type") == "function_call_output" for item in body["input"])
        mode, pace_s = self.server.mode()
        self.server.note({"trial": trial, "turn": turn, "mode": mode, "time": time.time()})
        time.sleep(pace_s)
        calls = self.server.tasks().get(trial, [])
        items = [function_call(**calls[turn])] if turn < len(calls) else [message("Done.")]
        try:
            MODES[mode](self, answered(items))
        except OSError:  # the Gateway ended the call
            self.close_connection = True

    def mode_now(self) -> str:
        return self.server.mode()[0]

    def send(self, status: int, data: bytes, declared: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(declared or len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Print nothing: the calls are in calls.jsonl."""


class Endpoint(ThreadingHTTPServer):
    daemon_threads, request_queue_size = True, 1024

    def __init__(self, port: int, folder: str):
        self.folder = Path(folder)
        super().__init__(("127.0.0.1", port), Handler)

    def mode(self) -> tuple[str, float]:
        """(name of the mode, seconds an answer takes)"""
        name, pace_s = (self.folder / "mode").read_text().split()
        return name, float(pace_s)

    def tasks(self) -> dict[str, list[dict[str, Any]]]:
        return json.loads((self.folder / "tasks.json").read_text())

    def note(self, call: dict[str, Any]) -> None:
        with open(os.open(self.folder / "calls.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "wb") as log:
            log.write(json.dumps(call).encode() + b"\n")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        Endpoint(int(sys.argv[1]), sys.argv[2]).serve_forever()
