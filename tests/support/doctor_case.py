"""Cases for the doctor's checks: variables of a test's own, and small real servers that answer as a test says."""

import os
import socket
import threading
from pathlib import Path

from checks import registry
from checks.probe import Case, Finding
from common import settings as variables
from servers import ports
from support.http_server import HttpServer

PROXY_PAGE = "<html><body>Blocked by the web proxy</body></html>"
# Belongs to no machine.
NOWHERE = "198.51.100.7"


def settings_of(folder, **texts):
    """Settings of a run folder of its own; the user's variables play no part."""
    places = {
        name: str(folder / name.lower()) for name in ("RUN_DIR", "DATA_ROOT", "MODEL_DIR", "EXP_DIR", "RELAX_ROOT")
    }
    environment = {"GYM_BACKEND": "local", **places, **{name: str(text) for name, text in texts.items()}}
    return variables.load(environment=environment, dotenv=Path(os.devnull))


def case_of(folder, stage="", **texts):
    return Case(settings_of(folder, **texts), stage)


def found(look, case, verdict=None):
    """The Findings of a check as the doctor has them; with `verdict` the only one that has it."""
    findings = registry.examine(registry.Check("under test", look), case)
    assert all(isinstance(finding, Finding) and finding.what for finding in findings) and findings
    assert all(bool(finding.cure) == (finding.verdict != "ok") for finding in findings), findings
    if verdict is None:
        return findings
    matching = [finding for finding in findings if finding.verdict == verdict]
    assert len(matching) == 1, findings
    return matching[0]


def is_ok(look, case):
    """Whether all a check finds is good."""
    return {finding.verdict for finding in found(look, case)} == {"ok"}


class Pages(HttpServer):
    """Serves `pages` with `headers`, as if it were `date`; `asked` holds (path, headers) of each request."""

    def __init__(self, pages, port=0, date=None, headers=()):
        super().__init__(pages, port)
        self.headers = dict(headers) | ({"Date": date} if date else {})
        self.asked = []

    def answer(self, request):
        self.asked.append((request.path, request.headers))
        return *super().answer(request), self.headers


class Silent:
    """Takes connections and says `word` and nothing more."""

    def __init__(self, word=b""):
        self.word = word

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.kept = []
        threading.Thread(target=self._take, daemon=True).start()
        return self

    def _take(self):
        while True:
            try:
                self.kept.append(self.listener.accept()[0])
                self.kept[-1].sendall(self.word)
            except OSError:
                return

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.kept:
            connection.close()


def free_base():
    """The first of 200 ports that nobody listens on, below the range that the kernel hands out."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    taken = {port for _, port, _ in ports.listening()}
    # Test processes side by side choose from different ends.
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    bases = range(min(low, 32768) - 402 - 5000 * (worker % 4), 1024, -201)
    return next(base for base in bases if not taken & set(range(base, base + 202)))
