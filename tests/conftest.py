"""What holds for every test: proxies that lead nowhere, our scripts on the path, data that may be absent.

The proxy variables are set before any test module is imported and are inherited by everything a
test starts: a call between our own programs that minds them fails at once.
"""

import os
import sys
from pathlib import Path

import pytest

import browser as headless

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"
DEAD_PROXY = "http://127.0.0.1:9"

for name in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy"):
    os.environ[name] = os.environ[name.upper()] = DEAD_PROXY
for name in ("no_proxy", "NO_PROXY", "MAKEFLAGS", "RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(name, None)
if str(ROOT / "scripts") not in sys.path:
    sys.path.insert(0, str(ROOT / "scripts"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless browser, one for all tests; those that need it are skipped where there is none."""
    if headless.find() is None:
        pytest.skip("no Chromium on this machine: tests/browser.sh installs one")
    with headless.Browser(tmp_path_factory.mktemp("browser")) as started:
        yield started


def pytest_configure(config):
    config.addinivalue_line("markers", "shared_data: needs the task rows beside the clone; skipped without them")


# The longest first, so that no worker is left alone with one at the end.
FIRST = ("training", "docker", "chain")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    share_out(items)
    if SHARED_DATA.is_dir():
        return
    for item in items:
        if item.get_closest_marker("shared_data"):
            item.add_marker(pytest.mark.skip(reason="no task rows beside the clone"))


def share_out(items):
    """What each worker takes as a whole: tests that share a server, a container, or what their file set up once."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            folder = item.path.parent.name
            item.add_marker(pytest.mark.xdist_group(folder if folder in FIRST else item.path.stem))
    groups = [item.get_closest_marker("xdist_group").args[0] for item in items]
    ranks = [FIRST.index(name) if name in FIRST else len(FIRST) for name in groups]
    order = dict(zip(map(id, items), ranks, strict=True))
    items.sort(key=lambda item: order[id(item)])
