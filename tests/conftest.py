"""What holds for every test: proxies that lead nowhere, our scripts on the path, data that may be absent.

The proxy variables are set before any test is imported, and every program that a test starts inherits them.
A call between our own programs that goes through a proxy therefore fails at once.
"""

import os
import sys
from pathlib import Path

import pytest

import docker  # noqa: F401 - else pytest takes the folder docker/ for the package, which has to be there first
from support import browser as headless
from support.task_rows import SHARED_DATA

ROOT = Path(__file__).resolve().parents[1]
DEAD_PROXY = "http://127.0.0.1:9"

for name in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy"):
    os.environ[name] = os.environ[name.upper()] = DEAD_PROXY
for name in ("no_proxy", "NO_PROXY", "MAKEFLAGS", "RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(name, None)
if str(ROOT / "scripts") not in sys.path:
    sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture(scope="module")
def browser():
    """A browser without a window; a test that needs it is skipped where there is none."""
    if headless.find() is None:
        pytest.skip("no Chromium on this machine: tests/browser.sh installs one")
    with headless.Browser() as started:
        yield started


def pytest_configure(config):
    config.addinivalue_line("markers", "shared_data: needs the task rows beside the clone; skipped without them")


# One worker takes these as a whole, since their tests share servers or a container. The longest comes first, so
# that no worker is left alone with it at the end.
FIRST = ("chain/test_training_cluster.py", "docker", "chain")


def share(nodeid):
    """What a worker takes together with a test: one of FIRST, or the test's file."""
    file = nodeid.partition("::")[0]
    return next((name for name in FIRST if name in (file, file.partition("/")[0])), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Share tests out by `share`; xdist's own groups are written into node ids, where this pytest does not look."""
    from xdist.scheduler import LoadScopeScheduling

    class Shares(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return share(nodeid)

    return Shares(config, log)


def pytest_collection_modifyitems(items):
    ranks = {name: rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(share(item.nodeid), len(FIRST)))
    if SHARED_DATA.is_dir():
        return
    for item in items:
        if item.get_closest_marker("shared_data"):
            item.add_marker(pytest.mark.skip(reason="no task rows beside the clone"))
