"""An agent and a resource server whose answers a test replaces, and a Gateway process in front of them."""

import json
import signal
import subprocess
import threading
from contextlib import ExitStack, contextmanager

from common import program
from common import settings as variables
from proofs.rig import Surface, environment, eventually, free_block
from support.http_server import HttpServer

RESPONSE = {"output": [{"type": "message", "role": "assistant"}]}


class ScriptedEnvironment(HttpServer):
    """`run`, `clean_post`, `clean_get` and `sessions` answer; each may be replaced by a test.

    Stopped and started again it is a server that died and came back at its port.
    """

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.gone = threading.Event()
        self.epoch, self.asked, self.runs = "first", [], []
        self.run = lambda body: (200, body | {"reward": 1.0, "response": RESPONSE})
        self.clean_post = self.clean_get = lambda: (200, {"clean": True})
        self.sessions = lambda: (200, {"open": 0, "epoch": self.epoch})

    def hang(self, *_):
        """Answer when the test is over."""
        self.gone.wait(60)
        return 200, {}

    def stop(self):
        super().stop()
        self.gone.set()

    def answer(self, request):
        if request.path == "/":
            return 200, {}
        if request.path == "/sessions":
            return self.sessions()
        if request.path == "/run":
            self.runs.append(request.json())
            return self.run(request.json())
        self.asked.append((request.method, request.path))
        return self.clean_post() if request.method == "POST" else self.clean_get()


class GatewayAlone(Surface):
    """The Gateway as its own process, in front of scripted pairs, each both agent and resource server.

    Context manager that ends the process; `up` starts it. Its trials call no model unless they are given one.
    """

    def __init__(self, folder, pairs, row, **changes):
        folder.mkdir(exist_ok=True)
        self.pairs = pairs
        self.log = folder / "gateway.log"
        config = {}
        for nth, pair in enumerate(pairs):
            server = {"host": "127.0.0.1", "port": pair.port}
            agent = server | {"resources_server": {"name": f"env{nth}"}}
            config |= {f"agent{nth}": {"responses_api_agents": {"a": agent}}}
            config |= {f"env{nth}": {"resources_servers": {"r": server}}}
        self.env = environment(folder, free_block(), NEMO_GYM_CONFIG_DICT=json.dumps(config), **changes)
        self.settings = variables.load(environment=self.env, dotenv=folder / "none")
        self.token = changes.get("GATEWAY_TOKEN")
        super().__init__(self.settings.local_url("gateway"), row, self.token)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def up(self):
        with self.log.open("ab") as log:
            command = program.room("gateway.app")
            self.process = subprocess.Popen(command, env=self.env, stdout=log, stderr=log, cwd=self.log.parent)
        self.wait_ready(120)

    def renew(self):
        """Let go of what hangs, and wait until the pairs answer as at first and no trial is left."""
        for pair in self.pairs:
            pair.gone.set()
            pair.reset()
        self.wait_all_up()
        self.wait_released()

    def wait_all_up(self):
        eventually(lambda: all(server["up"] for server in self.health()[1]["servers"].values()))

    def down(self, number=signal.SIGINT):
        """Signal it; returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout=30)

    def payload(self, policy="http://127.0.0.1:9/x", row=None, **changes):
        return super().payload(policy, row, **changes)

    def begin(self, **changes):
        """Create a trial. Returns its request id."""
        return self.start(self.payload(**changes))

    def finish(self, **changes):
        """Run one trial to its end. Returns the terminal snapshot."""
        return self.wait(self.begin(**changes))


@contextmanager
def gateway_alone(folder, row, pairs=1, **changes):
    """A GatewayAlone that is up, with scripted pairs of its own."""
    with ExitStack() as stack:
        environments = [stack.enter_context(ScriptedEnvironment()) for _ in range(pairs)]
        gateway = stack.enter_context(GatewayAlone(folder, environments, row, **changes))
        gateway.up()
        yield gateway
