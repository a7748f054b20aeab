"""Downloads from the Hugging Face hub, and its faults in one line each.

Guarantees:
- a fault (no network, no access, no such revision, a full disk) is a Failure that names its cure
- no token appears in a message
- HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the proxy variables are honoured, as the client does
- a broken connection is resumed within a run; the next run keeps whole files, but no parts

It does not check what was downloaded.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common.failure import Failure

COMMIT = re.compile(r"[0-9a-f]{40}")
LOOK_TIMEOUT_S = 4
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def commit_of(repo_id: str, revision: str, repo_type: str) -> str:
    """The commit that a branch, tag or commit names. A full commit is not looked up."""
    if COMMIT.fullmatch(revision):
        return revision
    with _faults_in_words(f"{repo_id} at revision {revision}"):
        return _client().HfApi().repo_info(repo_id, revision=revision, repo_type=repo_type).sha


def fetch_dataset_file(repo_id: str, name: str, revision: str, folder: Path) -> Path:
    """Download one file of a dataset at a commit into `folder`; returns its path."""
    with _faults_in_words(f"{name} of {repo_id} at revision {revision}"):
        _client().hf_hub_download(repo_id, name, repo_type="dataset", revision=revision, local_dir=folder)
    return folder / name


def fetch_model(repo_id: str, revision: str, folder: Path) -> None:
    """Download the files of a model at a commit that `folder` lacks."""
    with _faults_in_words(f"{repo_id} at revision {revision}"):
        _client().snapshot_download(repo_id, revision=revision, local_dir=folder)


def refuse_unreachable(repo_id: str, revision: str, repo_type: str) -> None:
    """Ask the hub once whether it has a revision. Raises Failure if it does not confirm.

    Needs no client, but reads the client's variables for the address, token and proxies.
    """
    what, endpoint = f"{repo_id} at revision {revision}", _without_secrets(_endpoint())
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise Failure(_offline(what))
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{_endpoint().rstrip('/')}/api/{repo_type}s/{repo_id}/revision/{revision}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LOOK_TIMEOUT_S) as answer:
            info = json.loads(answer.read(1 << 22))
    except urllib.error.HTTPError as error:
        raise Failure(_refusal(error.code, what, endpoint)) from None
    except OSError as error:
        raise Failure(_unreached(what, endpoint, getattr(error, "reason", error))) from None
    except (ValueError, RecursionError, http.client.HTTPException):
        info = None
    if not isinstance(info, dict) or not info.get("sha"):
        raise Failure(
            f"{endpoint} answers with something else than a hub; check HF_ENDPOINT and what the proxy variables lead to"
        )


@contextmanager
def disk_faults_in_words(variable: str, folder: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into a Failure that names the variable to change."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise Failure(f"{folder}: {error.strerror}; free some, or set {variable} to another disk") from None
        place = error.filename or folder
        raise Failure(f"{place}: {error.strerror or error}; set {variable} to a folder that can be written") from None


def _client() -> Any:
    # Imported late: it takes a second, and the doctor's Python need not have it.
    import huggingface_hub

    huggingface_hub.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "Not enough free disk space")  # the error that follows says so
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    return huggingface_hub


@contextmanager
def _faults_in_words(what):
    try:
        yield
    except Exception as error:
        # All exceptions, since those of the client's transport change with its version.
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise
        raise Failure(_words(error, what)) from None


def _words(error, what):
    endpoint = _without_secrets(_endpoint())
    causes = [error]
    while cause := causes[-1].__cause__:
        causes.append(cause)
    if any(isinstance(cause, _client().errors.OfflineModeIsEnabled) for cause in causes):
        return _offline(what)
    statuses = (getattr(getattr(cause, "response", None), "status_code", None) for cause in causes)
    if status := next(filter(None, statuses), None):
        return _refusal(status, what, endpoint)
    return _unreached(what, endpoint, causes[-1])


def _offline(what):
    return f"HF_HUB_OFFLINE is set and {what} is not on this machine; unset it for one run with network"


def _refusal(status, what, endpoint):
    if status in (401, 403):
        return (
            f"{endpoint} refused {what} (HTTP {status}); set HF_TOKEN to a token that may read it, "
            "after accepting its terms on the hub if it has any"
        )
    if status == 404:
        return f"{endpoint} has no {what} (HTTP 404); check the revision, and HF_ENDPOINT if it is set"
    return f"{endpoint} answered HTTP {status} for {what}; run this again later"


def _unreached(what, endpoint, error):
    cause = _without_secrets(" ".join(str(error).split()))[:200]
    return (
        f"cannot get {what} from {endpoint} ({type(error).__name__}: {cause}); "
        "check the network, HF_ENDPOINT and the proxy variables, then run this again"
    )


def _endpoint():
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _without_secrets(text):
    """Hide tokens and the user part of URLs."""
    text = re.sub(r"//[^/\s@]*@", "//", text)
    return re.sub(r"Bearer \S+|hf_\w+", "(token)", text)
