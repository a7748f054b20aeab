"""The data stage as its own program, against a local hub that the real client talks to."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest

import prepare_data
from common import program
from common.failure import Failure
from inputs import pins, row_facts, rows
from support.local_hub import Hub
from support.programs import only_error, stage_alone
from support.task_rows import EXAMPLE

REPO = "nvidia/Nemotron-RL-agent-workplace_assistant"
LINES = EXAMPLE.read_bytes().splitlines()
TRAIN = b"\n".join(LINES * 3) + b"\n"
VALIDATION = b"\n".join(LINES[:4])
FIRST, SECOND = "1" * 40, "2" * 40


def sha256(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def hub():
    hub = Hub()
    hub.publish(f"datasets/{REPO}", FIRST, {"train.jsonl": TRAIN, "validation.jsonl": VALIDATION})
    yield hub
    hub.close()


@pytest.fixture
def place(tmp_path, hub):
    return Place(tmp_path, hub)


class Place:
    """A clone's surroundings: an empty home, a data folder, and a lock that pins the hub's first commit."""

    def __init__(self, root, hub):
        self.home = root / "home"
        self.home.mkdir()
        self.data = root / "data"
        self.folder = self.data / "nemo-gym"
        self.lock = root / "dataset.lock.json"
        self.environment = {"HF_ENDPOINT": hub.url, "DATA_ROOT": self.data}
        self.pin(TRAIN)

    def pin(self, train):
        lock = json.loads(pins.LOCK.read_text()) | {"revision": FIRST}
        lock["splits"]["train"] |= {"sha256": sha256(train), "rows": 15}
        lock["splits"]["validation"] |= {"sha256": sha256(VALIDATION), "rows": 4}
        self.lock.write_text(json.dumps(lock))

    def prepare(self, split, *arguments, **more):
        options = ["--split", split, "--lock", self.lock, *arguments]
        return stage_alone("prepare_data", *options, home=self.home, **self.environment | more)

    def raw(self, split):
        return self.folder / f"workplace_assistant_{split}.jsonl"

    def assert_nothing_in_place(self):
        assert [path.name for path in self.folder.glob("workplace*")] == []
        assert [path.name for path in self.folder.glob(".workplace*")] == []


def test_the_committed_lock_pins_the_published_splits():
    lock = pins.read_lock(pins.LOCK)
    assert (lock["repo_id"], lock["revision"]) == (REPO, "c86a908379e0a361a573c395e175d3c1aa128e6c")
    digests = {"train": "cb64a4eca977c049", "validation": "6cce92f9cd880798", "example": sha256(EXAMPLE.read_bytes())}
    counts = {"train": 1255, "validation": 545, "example": 5}
    assert {split: pin["rows"] for split, pin in lock["splits"].items()} == counts
    assert all(pin["sha256"].startswith(digests[split]) for split, pin in lock["splits"].items())


def test_example_rows_come_from_the_package_without_network(tmp_path):
    done = stage_alone("prepare_data", home=tmp_path, DATA_ROOT=tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    raw = tmp_path / "nemo-gym" / "workplace_assistant_example.jsonl"
    assert raw.read_bytes() == EXAMPLE.read_bytes()
    digest = sha256(raw.read_bytes())
    assert done.stdout.splitlines()[-1] == (
        f"Workplace Assistant data ready: split=example rows=5 relax_rows=5 sha256={digest} path={raw}"
    )
    assert "distinct tools" in done.stdout and "27" in done.stdout
    audited = [row_facts.prompt_tokens(row) for row in rows.read_rows(raw)]
    assert f"{min(audited)} / {sorted(audited)[2]} / {max(audited)}" in done.stdout


def test_a_split_is_downloaded_as_published_then_reused_without_network(place, hub):
    done = place.prepare("train")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert place.raw("train").read_bytes() == TRAIN
    assert "Workplace Assistant data ready: split=train rows=15 relax_rows=15" in done.stdout
    relax = [json.loads(line) for line in (place.folder / "workplace_assistant_train_relax.jsonl").open()]
    sessions = [{"messages": row["input"], "metadata": row["metadata"]} for row in relax]
    assert [rows.to_run_request(session) for session in sessions] == rows.read_rows(place.raw("train"))
    assert not (place.folder / ".download").exists()
    assert place.raw("train").stat().st_mode & 0o044 == 0o044

    hub.requests.clear()
    assert place.prepare("train").returncode == 0
    assert place.prepare("train", HF_HUB_OFFLINE="1").returncode == 0
    assert hub.requests == []


def test_a_broken_connection_is_resumed_where_it_broke(place, hub):
    # The client hands on ten megabytes at a time; what came after those is asked for again.
    padded = TRAIN + b"\n" * 12_000_000
    hub.publish(f"datasets/{REPO}", FIRST, {"train.jsonl": padded})
    place.pin(padded)
    hub.cuts = [11_000_000]
    done = place.prepare("train")
    assert done.returncode == 0, done.stderr
    assert place.raw("train").read_bytes() == padded
    ranges = [given for _, path, given in hub.gets() if path.endswith("train.jsonl")]
    assert ranges == [None, f"bytes={10 * 2**20}-"]


def test_a_stalled_connection_is_resumed_and_a_changed_file_replaced(place, hub):
    place.folder.mkdir(parents=True)
    place.raw("validation").write_bytes(VALIDATION[:-5])
    hub.stalls = 1
    done = place.prepare("validation", HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert done.returncode == 0, done.stderr
    assert place.raw("validation").read_bytes() == VALIDATION


def test_other_bytes_are_refused_and_not_taken_for_done_the_next_time(place, hub):
    hub.publish(f"datasets/{REPO}", FIRST, {"train.jsonl": TRAIN.replace(b"Carlos", b"Carlas") + b"\n"})
    before = place.lock.read_bytes()
    error = only_error(place.prepare("train"))
    assert "has sha256" in error and "refused" in error
    assert "scripts/run.sh prepare_data --accept REVISION" in error
    place.assert_nothing_in_place()
    assert place.lock.read_bytes() == before

    hub.publish(f"datasets/{REPO}", FIRST, {"train.jsonl": TRAIN})
    assert place.prepare("train").returncode == 0


def test_accept_checks_and_pins_another_revision(place, hub):
    longer = TRAIN + LINES[0]
    hub.publish(f"datasets/{REPO}", SECOND, {"train.jsonl": longer, "validation.jsonl": VALIDATION})
    done = place.prepare("train", "--accept", "main")
    assert done.returncode == 0, done.stderr
    assert f"Dataset revision accepted: revision={SECOND}" in done.stdout
    assert "split=train rows=16" in done.stdout and "split=validation rows=4" in done.stdout
    lock = json.loads(place.lock.read_text())
    assert lock["revision"] == SECOND
    assert lock["splits"]["train"] == {"file": "train.jsonl", "sha256": sha256(longer), "rows": 16}
    assert place.prepare("train").returncode == 0


def test_accept_of_bad_rows_changes_nothing(place, hub):
    assert place.prepare("train").returncode == 0
    bad = TRAIN + b'{"id": 1, "input": []}\n'
    hub.publish(f"datasets/{REPO}", SECOND, {"train.jsonl": bad, "validation.jsonl": VALIDATION})
    before = place.lock.read_bytes()
    done = place.prepare("train", "--accept", SECOND)
    error = only_error(done)
    assert "train.jsonl:16: responses_create_params: missing" in error
    assert place.lock.read_bytes() == before
    assert place.raw("train").read_bytes() == TRAIN
    assert place.prepare("train").returncode == 0


REFUSALS = [(401, "set HF_TOKEN"), (403, "set HF_TOKEN"), (404, "has no train.jsonl"), (429, "429"), (500, "HTTP 500")]


@pytest.mark.parametrize(("status", "said"), REFUSALS)
def test_a_refusal_of_the_hub_is_said_in_words(place, hub, status, said):
    hub.status = status
    error = only_error(place.prepare("train"))
    assert said in error and FIRST in error
    place.assert_nothing_in_place()


def test_the_token_is_sent_and_never_shown(place, hub):
    hub.token = "hf_rightsecret"
    error = only_error(place.prepare("train", HF_TOKEN="hf_wrongsecret"))
    assert "set HF_TOKEN" in error and "wrongsecret" not in error
    done = place.prepare("train", HF_TOKEN="hf_rightsecret")
    assert done.returncode == 0 and "rightsecret" not in done.stdout + done.stderr
    assert "secret" not in only_error(place.prepare("validation", HF_TOKEN="plain\tsecret"))


def test_a_revision_that_is_gone_and_a_file_that_is_missing_are_named(place, hub):
    hub.repos[f"datasets/{REPO}"] = {SECOND: {}}
    assert f"has no train.jsonl of {REPO} at revision {FIRST}" in only_error(place.prepare("train"))
    assert f"{REPO} at revision nowhere" in only_error(place.prepare("train", "--accept", "nowhere"))
    assert "train.jsonl" in only_error(place.prepare("train", "--accept", SECOND))


def test_no_network_offline_mode_and_a_data_root_that_cannot_be_written_are_named(place, hub):
    error = only_error(place.prepare("train", DATA_ROOT="/dev/null"))
    assert "set DATA_ROOT to a folder that can be written" in error
    assert "HF_HUB_OFFLINE is set" in only_error(place.prepare("train", HF_HUB_OFFLINE="1"))
    error = only_error(place.prepare("train", HF_ENDPOINT="http://user:pass@127.0.0.1:9"))
    assert "cannot get train.jsonl" in error and "http://127.0.0.1:9" in error and "pass" not in error
    assert "cannot get" in only_error(place.prepare("train", HF_ENDPOINT="nonsense"))
    assert hub.requests == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_leaves_nothing(place, monkeypatch, number):
    def full(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("common.files.os.replace", full)
    monkeypatch.setattr(sys, "argv", ["prepare_data.py", "--data-root", str(place.data)])
    with pytest.raises(Failure, match="set DATA_ROOT to another disk"):
        prepare_data.main()
    place.assert_nothing_in_place()


@pytest.mark.parametrize("content", [None, "", "[]", "{", '{"splits": {}}', '{"splits": {"train": 1}}'])
def test_a_broken_lock_is_named_with_its_cure(place, content):
    if content is None:
        place.lock.unlink()
    else:
        place.lock.write_text(content)
    with pytest.raises(Failure, match=r"dataset.lock.json: .*git checkout"):
        pins.read_lock(place.lock)


def test_an_interrupt_leaves_no_part_of_a_file_in_place(place, hub):
    hub.stalls = 100
    command = program.stage("prepare_data", "--split", "train", "--lock", str(place.lock))
    environment = {"PATH": os.environ["PATH"], "HOME": str(place.home), "no_proxy": "127.0.0.1"}
    environment |= {name: str(value) for name, value in place.environment.items()}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **streams) as running:
        while not any("train.jsonl" in path for _, path, _ in hub.gets()):
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=30)
    assert running.returncode == 130 and "Traceback" not in said
    place.assert_nothing_in_place()
    hub.stalls = 0
    assert place.prepare("train").returncode == 0
