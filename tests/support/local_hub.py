"""A hub on 127.0.0.1 that the real hub client talks to, with faults on demand.

It serves what the client asks for: a revision's commit, a commit's tree, and files by HEAD
and ranged GET. It knows no large-file storage, so a download is always plain HTTP.
"""

import hashlib
import time

from support.http_server import HttpServer


class Hub(HttpServer):
    """Files by repository and commit, served from its making on. `status`, `token`, `cuts` and `stalls` are faults."""

    def __init__(self):
        super().__init__()
        self.repos, self.refs, self.requests = {}, {}, []
        self.status, self.token, self.cuts, self.stalls = None, None, [], 0
        self.start()

    def close(self):
        self.stop()

    def publish(self, repo, commit, files):
        """Publish {name: bytes} as a commit of `repo` ("datasets/owner/name" or "owner/name") and as its main."""
        self.repos.setdefault(repo, {})[commit] = files
        self.refs[repo, "main"] = commit

    def gets(self):
        return [request for request in self.requests if request[0] == "GET"]

    def answer(self, request):
        path = request.bare_path.lstrip("/")
        self.requests.append((request.method, path, request.headers.get("Range")))
        if self.status:
            return refused(self.status, "")
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return refused(401, "GatedRepo")
        for mark, serve in (("/revision/", self.revision), ("/tree/", self.tree), ("/resolve/", self.file)):
            repo, found, rest = path.removeprefix("api/").removeprefix("models/").partition(mark)
            if found:
                revision, _, name = rest.partition("/")
                commit = self.refs.get((repo, revision), revision)
                if repo not in self.repos:
                    return refused(404, "RepoNotFound")
                if commit not in self.repos[repo]:
                    return refused(404, "RevisionNotFound")
                return serve(request, repo, commit, name)
        return refused(404, "EntryNotFound")

    def revision(self, request, repo, commit, name):
        return 200, {"id": repo, "sha": commit}

    def tree(self, request, repo, commit, name):
        files = self.repos[repo][commit].items()
        return 200, [{"type": "file", "path": path, "size": len(body), "oid": sha1(body)} for path, body in files]

    def file(self, request, repo, commit, name):
        body = self.repos[repo][commit].get(name)
        if body is None:
            return refused(404, "EntryNotFound")
        headers = {"ETag": f'"{sha1(body)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        status = 200
        if ranged := request.headers.get("Range"):
            start = int(ranged.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            status, body = 206, body[start:]
        headers["Content-Length"] = len(body)
        if request.method == "GET" and self.cuts:
            body = body[: self.cuts.pop(0)]
        elif request.method == "GET" and self.stalls:
            self.stalls -= 1
            body = stalled(body)
        return status, body, headers


def sha1(body):
    return hashlib.sha1(body).hexdigest()


def stalled(body):
    yield body[:100]
    time.sleep(3)


def refused(status, code):
    return status, b"", {"X-Error-Code": code}
