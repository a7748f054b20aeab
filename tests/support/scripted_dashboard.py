"""A scripted Ray dashboard: nodes and jobs as a test sets them; it takes jobs, ends them on a stop, and keeps count.

A look at the nodes ends at once with the result a test sets; while `down` every answer is 503.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class ScriptedDashboard(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.gpus = {"head": "0.0/0.0 GPU", "worker": "0.0/8.0 GPU"}
        self.jobs, self.submitted, self.asked = {}, [], []
        self.down, self.logs = False, {}
        self.looked = {"nodes": {"10.0.0.5 (h)": [], "10.0.0.6 (w)": []}, "trials": [], "notes": []}
        # What becomes of a job that is told to stop; None: nothing.
        self.after_stop = "STOPPED"
        # How a job that is submitted ends at once; None: Ray does not find it.
        self.ends = None

    def __enter__(self):
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def nodes(self):
        summary = [
            {"ip": f"10.0.0.{place}", "raylet": {"nodeId": name, "state": "ALIVE", "isHeadNode": name == "head"}}
            for place, name in enumerate(self.gpus, 5)
        ]
        for each, share in zip(summary, self.gpus.values(), strict=True):
            each["raylet"]["resourcesTotal"] = {"GPU": float(share.split("/")[1].split()[0])}
        shares = {name: f"0.0/4.0 CPU\n{share}\n" for name, share in self.gpus.items()}
        return {"data": {"summary": summary, "nodeLogicalResources": shares}}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        path = urlsplit(self.path).path
        if self.server.down:
            return self.send(503, {})
        job = self.server.jobs.get(path.removeprefix("/api/jobs/"))
        if path == "/nodes":
            self.send(200, self.server.nodes())
        elif path == "/api/jobs/":
            self.send(200, list(self.server.jobs.values()))
        elif job:
            self.send(200, job)
        elif path.endswith("/logs"):
            self.send(200, {"logs": self.server.logs.get(path.split("/")[-2], "")})
        else:
            self.send(404, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(self.path)
        parts = self.path.split("/")
        if parts[-1] == "stop" and parts[-2] in self.server.jobs:
            if self.server.after_stop:
                self.server.jobs[parts[-2]]["status"] = self.server.after_stop
            self.send(200, {"stopped": True})
        else:
            self.take(json.loads(body))
            self.send(200, {})

    def take(self, job):
        if "NODE_CHECK" in job["runtime_env"]["env_vars"]:
            self.server.jobs[job["submission_id"]] = {"status": "SUCCEEDED", **job}
            self.server.logs[job["submission_id"]] = f"NODE_CHECK {json.dumps(self.server.looked)}\n"
        else:
            self.server.submitted.append(job)
            if self.server.ends:
                self.server.jobs[job["submission_id"]] = {"status": self.server.ends, **job}

    def send(self, status, payload):
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Keep the test's output clean."""
