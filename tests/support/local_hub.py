"""A hub on 127.0.0.1 that the real hub client talks to, with faults on demand; and a runner of stages.

It serves what the client asks for: a revision's commit, a commit's tree, and files by HEAD
and ranged GET. It knows no large-file storage, so a download is always plain HTTP.
"""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
# Runs a stage as its own program; the client's waits between tries are left out.
STAGE = """
import runpy, sys, time
time.sleep = lambda seconds: None
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Hub:
    """Files by repository and commit. `status`, `token`, `cuts` and `stalls` are its faults."""

    def __init__(self):
        self.repos = {}
        self.refs = {}
        self.requests = []
        self.status = None
        self.token = None
        self.cuts = []
        self.stalls = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def publish(self, repo, commit, files):
        """Publish {name: bytes} as a commit of `repo` ("datasets/owner/name" or "owner/name") and as its main."""
        self.repos.setdefault(repo, {})[commit] = files
        self.refs[repo, "main"] = commit

    def gets(self):
        return [request for request in self.requests if request[0] == "GET"]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        hub, path = self.hub, urlsplit(self.path).path.lstrip("/")
        hub.requests.append((self.command, path, self.headers.get("Range")))
        if hub.status:
            return self.refuse(hub.status, "")
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.refuse(401, "GatedRepo")
        for mark, serve in (("/revision/", self.revision), ("/tree/", self.tree), ("/resolve/", self.file)):
            repo, found, rest = path.removeprefix("api/").removeprefix("models/").partition(mark)
            if found:
                return self.serve(repo, rest, serve)
        return self.refuse(404, "EntryNotFound")

    def serve(self, repo, rest, serve):
        revision, _, name = rest.partition("/")
        commit = self.hub.refs.get((repo, revision), revision)
        if repo not in self.hub.repos:
            return self.refuse(404, "RepoNotFound")
        if commit not in self.hub.repos[repo]:
            return self.refuse(404, "RevisionNotFound")
        return serve(repo, commit, name)

    def revision(self, repo, commit, name):
        self.send(json.dumps({"id": repo, "sha": commit}).encode())

    def tree(self, repo, commit, name):
        files = self.hub.repos[repo][commit].items()
        self.send(
            json.dumps(
                [{"type": "file", "path": n, "size": len(b), "oid": hashlib.sha1(b).hexdigest()} for n, b in files]
            ).encode()
        )

    def file(self, repo, commit, name):
        body = self.hub.repos[repo][commit].get(name)
        if body is None:
            return self.refuse(404, "EntryNotFound")
        headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if not asked:
            return self.send(body, headers)
        start = int(asked.removeprefix("bytes=").split("-")[0])
        headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        return self.send(body[start:], headers, 206)

    def send(self, body, headers=None, status=200):
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.cuts and "/resolve/" in self.path:
            self.wfile.write(body[: self.hub.cuts.pop(0)])
            self.close_connection = True
        elif self.hub.stalls and "/resolve/" in self.path:
            self.hub.stalls -= 1
            self.wfile.write(body[:100])
            self.wfile.flush()
            time.sleep(3)
            self.close_connection = True
        else:
            self.wfile.write(body)

    def refuse(self, status, code):
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


def run_stage(name, *arguments, home, **environment):
    """Run scripts/NAME in an empty home with proxies that lead nowhere; the completed process."""
    dead = "http://127.0.0.1:9"
    base = {"PATH": os.environ["PATH"], "HOME": str(home), "http_proxy": dead, "https_proxy": dead}
    return subprocess.run(
        [sys.executable, "-c", STAGE, str(SCRIPTS / name), *map(str, arguments)],
        env={**base, "no_proxy": "127.0.0.1", **{key: str(value) for key, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=100,
    )


def only_error(done):
    """The one line of what went wrong, after asserting that it is one and no traceback."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
