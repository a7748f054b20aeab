"""An agent and a resource server that do what a test tells them to, and a Gateway process in front of them."""

import json
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from common import program
from common import settings as variables
from proofs.rig import Surface, environment, free_block

RESPONSE = {"output": [{"type": "message", "role": "assistant"}]}


class ScriptedEnvironment:
    """Context manager. `run`, `clean_post`, `clean_get` and `sessions` answer; each may be replaced by a test.

    Left and entered again it is a server that died and came back at its port.
    """

    def __init__(self):
        self.port = 0
        self.reset()

    def reset(self):
        self.gone = threading.Event()
        self.epoch, self.asked, self.runs = "first", [], []
        self.run = lambda body: (200, body | {"reward": 1.0, "response": RESPONSE})
        self.clean_post = self.clean_get = lambda: (200, {"clean": True})
        self.sessions = lambda: (200, {"open": 0, "epoch": self.epoch})

    def hang(self, *_):
        """An answer that comes when the test is over."""
        self.gone.wait(60)
        return 200, {}

    def __enter__(self):
        self.connections = set()
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections.copy():
            with suppress(OSError):  # closed by now
                connection.shutdown(socket.SHUT_RDWR)
        self.gone.set()

    def answer(self, method, path, body):
        if path == "/":
            return 200, {}
        if path == "/sessions":
            return self.sessions()
        if path == "/run":
            self.runs.append(body)
            return self.run(body)
        self.asked.append((method, path))
        return self.clean_post() if method == "POST" else self.clean_get()

    def _handler(scripted):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                scripted.connections.add(self.connection)

            def finish(self):
                scripted.connections.discard(self.connection)
                super().finish()

            def do_POST(self):
                text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, body = scripted.answer(self.command, self.path, json.loads(text) if text else None)
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)
                except OSError:  # the Gateway did not wait
                    self.close_connection = True

            do_GET = do_POST

            def log_message(self, *_):
                pass

        return Handler


class GatewayAlone(Surface):
    """The Gateway as its own process, its pairs of agent and resource server scripted, each as one; no token."""

    def __init__(self, folder, pairs, row, **changes):
        folder.mkdir(exist_ok=True)
        base = free_block()
        self.log = folder / "gateway.log"
        config = {}
        for nth, pair in enumerate(pairs):
            server = {"host": "127.0.0.1", "port": pair.port}
            agent = server | {"resources_server": {"name": f"env{nth}"}}
            config |= {f"agent{nth}": {"responses_api_agents": {"a": agent}}}
            config |= {f"env{nth}": {"resources_servers": {"r": server}}}
        self.env = environment(folder, base, NEMO_GYM_CONFIG_DICT=json.dumps(config), **changes)
        self.settings = variables.load(environment=self.env, dotenv=folder / "none")
        super().__init__(self.settings.local_url("gateway"), row)

    def up(self):
        with self.log.open("ab") as log:
            command = program.room("gateway.app")
            self.process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log, cwd=self.log.parent)
        self.wait_ready(120)

    def down(self, number=signal.SIGINT):
        """Signal it; returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=30)
