#!/usr/bin/env python3
"""Put the weights of Qwen/Qwen3-4B under MODEL_DIR, checked: `make model` (about 8 GB).

Guarantees: it succeeds only if the folder passes inputs/weights.py; a complete folder needs no
network; existing files are kept, so an interrupted download goes on with the missing ones. The
published revision is not pinned: the result line names the one that was fetched.

    make model MODEL_DIR=/shared/models
    scripts/run.sh fetch_model --revision COMMIT
"""

from pathlib import Path

from checks import registry
from common import terminal
from common.failure import Failure
from common.settings import from_command_line
from inputs import hub
from inputs.weights import REPO, SHAPE, Incomplete, check

OPTIONS = {"--revision": {"default": "main", "help": "branch, tag or commit to fetch (default: main)"}}


def main() -> None:
    settings, args = from_command_line(__doc__, "MODEL_DIR", options=OPTIONS)
    registry.at_start("model", settings)
    folder = settings.MODEL_DIR / "Qwen3-4B"
    with hub.disk_faults_in_words("MODEL_DIR", folder):
        try:
            weights = check(folder)
        except Incomplete:
            weights = fetch(folder, args.revision)
    total = sum(path.stat().st_size for path in weights)
    terminal.say(
        f"Qwen3-4B ready: layers={SHAPE['num_hidden_layers']} hidden={SHAPE['hidden_size']} "
        f"weight_files={len(weights)} bytes={total} revision={fetched_revision(folder)} path={folder}"
    )


def fetch(folder: Path, revision: str) -> list[Path]:
    """Download the missing files of the model, then check it; returns the weight files."""
    with terminal.stage(f"download {REPO}"):
        folder.mkdir(parents=True, exist_ok=True)
        hub.fetch_model(REPO, hub.commit_of(REPO, revision, "model"), folder)
    try:
        return check(folder)
    except Incomplete as fault:
        raise Failure(f"{folder}/{fault}; remove that file (or the folder) and run make model again") from None


def fetched_revision(folder: Path) -> str:
    """The commit the client noted when it fetched the configuration; "unknown" if it did not."""
    try:
        note = folder / ".cache" / "huggingface" / "download" / "config.json.metadata"
        return note.read_text(encoding="utf-8").split("\n", 1)[0].strip() or "unknown"
    except OSError:
        return "unknown"


if __name__ == "__main__":
    terminal.run(main)
