"""A scripted Ray dashboard with the nodes and jobs that a test sets; it takes jobs, stops them and keeps them.

A check of the nodes ends at once with `looked`, which a test sets. While `down`, every GET is answered 503.
"""

import json

from support.http_server import HttpServer


class ScriptedDashboard(HttpServer):
    def __init__(self):
        super().__init__()
        self.gpus = {"head": "0.0/0.0 GPU", "worker": "0.0/8.0 GPU"}
        self.jobs, self.submitted, self.asked = {}, [], []
        self.down, self.logs = False, {}
        self.looked = {"nodes": {"10.0.0.5 (h)": [], "10.0.0.6 (w)": []}, "trials": [], "notes": []}
        # What becomes of a job that is told to stop; None: nothing.
        self.after_stop = "STOPPED"
        # How a job that is submitted ends at once; None: Ray does not find it.
        self.ends = None

    def answer(self, request):
        if request.method == "POST":
            return 200, self.take(request)
        if self.down:
            return 503, {}
        path = request.bare_path
        job = self.jobs.get(path.removeprefix("/api/jobs/"))
        if path == "/nodes":
            return 200, self.nodes()
        if path == "/api/jobs/":
            return 200, list(self.jobs.values())
        if job:
            return 200, job
        return (200, {"logs": self.logs.get(path.split("/")[-2], "")}) if path.endswith("/logs") else (404, {})

    def take(self, request):
        """Stop a job, or take one."""
        self.asked.append(request.path)
        job = self.jobs.get(request.path.split("/")[-2])
        if request.path.endswith("/stop") and job:
            job["status"] = self.after_stop or job["status"]
            return {"stopped": True}
        job = request.json()
        if "NODE_CHECK" in job["runtime_env"]["env_vars"]:
            self.jobs[job["submission_id"]] = {"status": "SUCCEEDED", **job}
            self.logs[job["submission_id"]] = f"NODE_CHECK {json.dumps(self.looked)}\n"
        else:
            self.submitted.append(job)
            if self.ends:
                self.jobs[job["submission_id"]] = {"status": self.ends, **job}
        return {}

    def nodes(self):
        summary = [
            {"ip": f"10.0.0.{place}", "raylet": {"nodeId": name, "state": "ALIVE", "isHeadNode": name == "head"}}
            for place, name in enumerate(self.gpus, 5)
        ]
        for node, share in zip(summary, self.gpus.values(), strict=True):
            node["raylet"]["resourcesTotal"] = {"GPU": float(share.split("/")[1].split()[0])}
        shares = {name: f"0.0/4.0 CPU\n{share}\n" for name, share in self.gpus.items()}
        return {"data": {"summary": summary, "nodeLogicalResources": shares}}
