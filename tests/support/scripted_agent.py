"""An agent command for tests: it plays the session client, the Gateway and the environment in one process.

    python scripted_agent.py [BEHAVIOUR]

Without a behaviour it calls the model until it answers without a tool call, answers each call with
"done <name>", and earns 1 if it made a call, else 0.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call_model(history, token):
    request = urllib.request.Request(
        os.environ["RELAX_BASE_URL"] + "/v1/responses",
        data=json.dumps({"input": history, "model": "model"}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with OPENER.open(request) as reply:
        return json.load(reply)


def roll_out(token):
    history = list(json.loads(Path(os.environ["RELAX_INPUT_JSON"]).read_text())["messages"])
    calls_made = 0
    while True:
        answer = call_model(history, token)
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        calls_made += len(calls)
        if not calls:
            return calls_made
        history += answer["output"]
        for item in calls:
            output = {"type": "function_call_output", "call_id": item["call_id"], "output": f"done {item['name']}"}
            history.append(output)


def write(text):
    Path(os.environ["RELAX_OUTPUT_JSON"]).write_text(text)


def result(reward):
    metadata = {"nemo_gym": {"request_id": "relax-1", "status": "completed", "metrics": {}, "error": None}}
    return json.dumps({"reward": reward, "metadata": metadata})


def behave(name, token):
    """The endings a driver has to cope with."""
    if name in ("hang", "hang-deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN if name == "hang-deaf" else signal.SIG_DFL)
        child = subprocess.Popen(["sleep", "300"])
        Path(os.environ["PIDS"]).write_text(f"{os.getpid()} {child.pid}")
        time.sleep(300)
    if name == "child-with-lock":
        subprocess.Popen(["bash", "-c", 'trap \'sleep 0.5; rm "$LOCK"; exit\' TERM; touch "$LOCK"; sleep 300 & wait'])
        time.sleep(300)
    if name == "leave-child":
        child = subprocess.Popen(["sleep", "300"])
        Path(os.environ["PIDS"]).write_text(str(child.pid))
        write(result(1.0))
    if name == "odd-groups-fail" and int(os.environ["RELAX_GROUP_ID"]) % 2:
        sys.exit(f"no reward for {token}")
    if name == "garbage":
        write("{")
    if name == "nan":
        write('{"reward": NaN}')
    if name == "stranger":
        try:
            call_model([{"role": "user", "content": "hi"}], "nobody's")
        except urllib.error.HTTPError as error:
            sys.exit(f"answered {error.code}")
    if name == "variables":
        folder = Path(os.environ["RELAX_SESSION_IO_DIR"])
        seen = {"mode": oct(folder.stat().st_mode & 0o777), "leads_group": os.getpgid(0) in (os.getpid(), os.getppid())}
        seen |= {key: value for key, value in os.environ.items() if key.startswith(("RELAX_", "ONE", "MODEL_API"))}
        Path(os.environ["SEEN"]).write_text(json.dumps(seen | {"cwd": str(Path.cwd())}))
        write(result(0))


def main():
    token = os.environ["RELAX_SESSION_ID"]
    behaviour = sys.argv[1] if len(sys.argv) > 1 else ""
    if behaviour:
        behave(behaviour, token)
    if behaviour in ("", "odd-groups-fail"):
        write(result(1.0 if roll_out(token) else 0.0))


if __name__ == "__main__":
    main()
