"""The Workplace Assistant as released, beside the patched one: a copy with our patches taken back.

The copy has a package name of its own, so that one process holds both. Its files have the released hashes of
patches/SHA256SUMS. Two changes after that affect no result: the name in its imports, and that each database is
read from its file once and then copied, which saves minutes.
"""

import importlib
import sys

from proofs.unpatched import take_back
from servers.tree import WORKPLACE, digest, patch_files, read_sums

PACKAGE = "unpatched_workplace_assistant"
TOOLS = {
    "analytics": "AnalyticsTool",
    "calendar": "CalendarTool",
    "company_directory": "CompanyDirectoryTool",
    "customer_relationship_manager": "CustomerRelationshipManagerTool",
    "email": "EmailTool",
    "project_management": "ProjectManagementTool",
}


def load(folder):
    """The unpatched `utils` module (get_tools, is_correct), out of a copy made in `folder`."""
    take_back(patch_files(), folder)
    assert_as_released(folder)
    package = folder / PACKAGE
    (folder / WORKPLACE).rename(package)
    for source in package.rglob("*.py"):
        source.write_text(source.read_text().replace("resources_servers.workplace_assistant", PACKAGE))
    sys.path.insert(0, str(folder))
    try:
        for module, name in TOOLS.items():
            read_once(getattr(importlib.import_module(f"{PACKAGE}.workplace_assistant_tools.{module}"), name))
        return importlib.import_module(f"{PACKAGE}.utils")
    finally:
        sys.path.remove(str(folder))


def assert_as_released(folder):
    for name, states in read_sums().items():
        if name.startswith(WORKPLACE):
            assert digest(folder / name) in states["pristine"], name


def read_once(tool):
    """Have each new instance of a tool start from a copy of what the first one read."""
    first = tool()

    def reset_state(self):
        self.__dict__.update({name: frame.copy() for name, frame in first.__dict__.items()})

    tool.reset_state = reset_state
