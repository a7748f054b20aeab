"""What holds for every test: proxies that lead nowhere, our scripts on the path, data that may be absent.

The proxy variables are set before any test module is imported and are inherited by everything a
test starts: a call between our own programs that minds them fails at once.
"""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"
DEAD_PROXY = "http://127.0.0.1:9"

for name in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy"):
    os.environ[name] = os.environ[name.upper()] = DEAD_PROXY
for name in ("no_proxy", "NO_PROXY", "MAKEFLAGS", "RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(name, None)
if str(ROOT / "scripts") not in sys.path:
    sys.path.insert(0, str(ROOT / "scripts"))


def pytest_configure(config):
    config.addinivalue_line("markers", "shared_data: needs the task rows beside the clone; skipped without them")


def pytest_collection_modifyitems(items):
    if SHARED_DATA.is_dir():
        return
    for item in items:
        if item.get_closest_marker("shared_data"):
            item.add_marker(pytest.mark.skip(reason="no task rows beside the clone"))
