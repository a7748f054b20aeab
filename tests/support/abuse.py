"""Sizes of the abuse tests: those that `make abuse` passes on, and small ones for every other run."""

import os

SMALL = {"ABUSE_TRIALS": 80, "ABUSE_ABORTS": 20, "ABUSE_CLIENTS": 40, "ABUSE_EXAMPLES": 6}


def size(name):
    return int(os.environ[name]) if "ABUSE_FULL" in os.environ else SMALL[name]
