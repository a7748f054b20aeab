"""What servers of a graph hold, before and after a load: their processes, open descriptors and memory."""

import os
from pathlib import Path

from proofs.rig import eventually

MEGABYTE = 1 << 20


class Footprint:
    """Taken at its making; `assert_kept` compares with now."""

    def __init__(self, graph, names):
        self.graph = graph
        self.pids = {name: graph.pid(name) for name in names}
        self.files, self.memory = self._each(descriptors), self._each(resident)

    def _each(self, measure):
        return {name: measure(pid) for name, pid in self.pids.items()}

    def growth(self):
        """{server: bytes of memory gained}."""
        return {name: size - self.memory[name] for name, size in self._each(resident).items()}

    def assert_kept(self, megabytes, connections, seconds):
        """The same processes, little more memory and, within some seconds, no more descriptors but idle connections."""
        growth = self.growth()
        assert max(growth.values()) < megabytes * MEGABYTE, growth

        def descriptors_are_back():
            return all(count <= self.files[name] + connections for name, count in self._each(descriptors).items())

        eventually(descriptors_are_back, seconds)
        assert {name: self.graph.pid(name) for name in self.pids} == self.pids


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid):
    """Resident memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
