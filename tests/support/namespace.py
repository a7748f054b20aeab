"""A network namespace in place of a trainer's node: it has its own addresses and firewall, and one cable to us.

It sees our files, so that only the network differs. `ip` makes it, which takes root; tests are skipped without.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

# Documentation networks: nobody's, the first in the graph's callback networks, the second not.
COVERED, UNCOVERED = "198.51.100", "203.0.113"


class Namespace:
    """`here` and `there` are the two ends in the covered network, `stray` an address of the far end beyond it."""

    def __init__(self):
        self.name = f"wa{os.getpid() % 100_000}"
        low = os.getpid() % 63 * 4
        self.here, self.there = (f"{COVERED}.{low + place}" for place in (1, 2))
        self.near_stray, self.stray = (f"{UNCOVERED}.{low + place}" for place in (1, 2))

    def __enter__(self):
        added = shutil.which("ip") and ip("netns", "add", self.name, check=False)
        if not added or added.returncode:
            pytest.skip("no network namespace to be had here: it takes `ip` and root")
        near, far = f"{self.name}a", f"{self.name}b"
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", self.name)
        for address in (self.here, self.near_stray):
            ip("address", "add", f"{address}/30", "dev", near)
        for address in (self.there, self.stray):
            ip("-n", self.name, "address", "add", f"{address}/30", "dev", far)
        ip("link", "set", near, "up")
        for device in ("lo", far):
            ip("-n", self.name, "link", "set", device, "up")
        return self

    def __exit__(self, *_):
        ip("netns", "delete", self.name)

    def call(self, function, *arguments):
        """What a function of training/node_check.py returns there."""
        code = (
            "import json, os; from training import node_check; "
            f"print(json.dumps(node_check.{function}(*json.loads(os.environ['ARGUMENTS']))))"
        )
        command = ["ip", "netns", "exec", self.name, sys.executable, "-c", code]
        environment = os.environ | {"ARGUMENTS": json.dumps(arguments), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def refuse(self, chain, *match):
        """Put a rule into its firewall that refuses TCP packets which match."""
        rule = ["iptables", "-w", "-A", chain, "-p", "tcp", *match, "-j", "REJECT"]
        if not shutil.which("iptables") or subprocess.run(["ip", "netns", "exec", self.name, *rule]).returncode:
            pytest.skip("no firewall to be had in a network namespace here: it takes iptables")


def ip(*words, check=True):
    return subprocess.run(["ip", *words], check=check, capture_output=True)
