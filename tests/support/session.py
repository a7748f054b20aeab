"""The session client as the trainer starts it: a process with variables, in a folder of its sample."""

import json
import os
import subprocess

from common import program

SESSION_ID = "session-id-that-nobody-may-see"
TOKEN = "token-that-nobody-may-see"
INPUT = {"messages": [{"role": "user", "content": "Réply"}], "metadata": {"id": 7, "tools": []}}
DEAD_PROXY = "http://127.0.0.1:9"
BASE_URL = "http://10.0.0.5:8000/agentic_api"


class Sample:
    """One sample's folder and variables, and the client process in it."""

    def __init__(self, folder, task=INPUT):
        folder.mkdir(exist_ok=True)
        self.folder, self.output = folder, folder / "out" / "result.json"
        self.output.parent.mkdir()
        self.input = folder / "input.json"
        self.input.write_text(json.dumps(task), encoding="utf-8")
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("NEMO_", "GYM_", "RELAX_"))}
        proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"), DEAD_PROXY)
        places = {"INPUT_JSON": str(self.input), "OUTPUT_JSON": str(self.output), "SESSION_IO_DIR": str(folder)}
        session = {"SESSION_ID": SESSION_ID, "ROLLOUT_MODE": "train", "GROUP_ID": "group-3", "BASE_URL": BASE_URL}
        relax = {f"RELAX_{name}": text for name, text in (places | session).items()}
        tuning = {"NEMO_GYM_RETRY_BACKOFF_S": "0.05", "NEMO_GYM_LEASE_S": "3", "GATEWAY_TOKEN": TOKEN}
        self.variables = ours | proxies | relax | tuning
        self.process = None

    def start(self, url, **variables):
        environment = self.variables | {"NEMO_GYM_URL": url} | variables
        environment = {name: value for name, value in environment.items() if value is not None}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(program.stage("session_client"), env=environment, **streams)
        return self

    def end(self, timeout=30):
        """(exit status, stderr line, output or None), after the checks that hold for every end."""
        out, err = self.process.communicate(timeout=timeout)
        text = err.decode()
        assert out == b"" and text.count("\n") <= 1 and "Traceback" not in text
        assert SESSION_ID not in text and TOKEN not in text
        left = os.listdir(self.output.parent)
        assert left == ([self.output.name] if self.process.returncode == 0 else [])
        return self.process.returncode, text, json.loads(self.output.read_text()) if left else None

    def run(self, gateway, **variables):
        return self.start(gateway.url, **variables).end()
