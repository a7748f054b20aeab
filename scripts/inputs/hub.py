"""The Hugging Face hub as the data and model stages use it, and its faults in one line each.

Guarantees: what goes wrong on the way (no network, no access, no such revision, a full
disk) leaves as a Failure that names what was asked for and what to do; a token never
appears in it. It honours HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and proxy variables, as the
client does. A connection that breaks is resumed within a run; whole files are kept for the
next run, a part of one is not. It does not judge what was downloaded.
"""

import errno
import http.client
import json
import os
import re
import sys
import urllib.error
import urllib.request
import warnings
from contextlib import contextmanager

from common.failure import Failure

COMMIT = re.compile(r"[0-9a-f]{40}")
LOOK_TIMEOUT_S = 4
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


def commit_of(repo_id, revision, repo_type):
    """The commit a branch, tag or commit stands for. A full commit is not looked up."""
    if COMMIT.fullmatch(revision):
        return revision
    with _faults_in_words(f"{repo_id} at revision {revision}"):
        return _client().HfApi().repo_info(repo_id, revision=revision, repo_type=repo_type).sha


def fetch_dataset_file(repo_id, name, revision, folder):
    """Download one file of a dataset at a commit into `folder`; returns its path."""
    with _faults_in_words(f"{name} of {repo_id} at revision {revision}"):
        _client().hf_hub_download(repo_id, name, repo_type="dataset", revision=revision, local_dir=folder)
    return folder / name


def fetch_model(repo_id, revision, folder):
    """Download all files of a model at a commit into `folder`, those already there excepted."""
    with _faults_in_words(f"{repo_id} at revision {revision}"):
        _client().snapshot_download(repo_id, revision=revision, local_dir=folder)


def refuse_unreachable(repo_id, revision, repo_type):
    """Ask the hub once whether it has a revision, as the client would ask. Raises Failure if it does not say so.

    Needs no client: its address, token and proxies are those of the variables the client reads.
    """
    what, endpoint = f"{repo_id} at revision {revision}", _without_secrets(_endpoint())
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise Failure(_offline(what))
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{_endpoint().rstrip('/')}/api/{repo_type}s/{repo_id}/revision/{revision}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=LOOK_TIMEOUT_S) as answer:
            told = json.loads(answer.read(1 << 22))
    except urllib.error.HTTPError as error:
        raise Failure(_refusal(error.code, what, endpoint)) from None
    except OSError as error:
        raise Failure(_unreached(what, endpoint, getattr(error, "reason", error))) from None
    except (ValueError, RecursionError, http.client.HTTPException):
        told = None
    if not isinstance(told, dict) or not told.get("sha"):
        raise Failure(
            f"{endpoint} answers with something else than a hub; check HF_ENDPOINT and what the proxy variables lead to"
        )


@contextmanager
def disk_faults_in_words(variable, folder):
    """Turn a full or unwritable disk into a Failure that names the variable to change."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise Failure(f"{folder}: {error.strerror}; free some, or set {variable} to another disk") from None
        place = error.filename or folder
        raise Failure(f"{place}: {error.strerror or error}; set {variable} to a folder that can be written") from None


def _client():
    # Imported late: rows that are already there need no client, and it takes a second to load.
    import huggingface_hub

    huggingface_hub.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "Not enough free disk space")  # The error that follows says it.
    if not sys.stderr.isatty():
        huggingface_hub.utils.disable_progress_bars()
    return huggingface_hub


@contextmanager
def _faults_in_words(what):
    try:
        yield
    except Exception as error:
        # Every exception: which ones the client's transport raises changes with its version.
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
            raise
        raise Failure(_words(error, what)) from None


def _words(error, what):
    from huggingface_hub import errors

    endpoint = _without_secrets(_endpoint())
    chain = list(_chain(error))
    if any(isinstance(one, errors.OfflineModeIsEnabled) for one in chain):
        return _offline(what)
    if status := next((s for s in map(_status, chain) if s), None):
        return _refusal(status, what, endpoint)
    return _unreached(what, endpoint, chain[-1])


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


def _chain(error):
    while error is not None:
        yield error
        error = error.__cause__


def _status(error):
    return getattr(getattr(error, "response", None), "status_code", None)


def _without_secrets(text):
    """Blank tokens, and the user part of URLs."""
    text = re.sub(r"//[^/\s@]*@", "//", text)
    return re.sub(r"Bearer \S+|hf_\w+", "(token)", text)
