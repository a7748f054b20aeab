"""The doctor on rows and model, with a hub of the test's own."""

import shutil

import pytest

from checks import files
from inputs import hub as hub_client
from inputs import pins, weights
from support.doctor_case import PROXY_PAGE, Pages, case_of, found, is_ok
from support.local_hub import Hub
from support.task_rows import EXAMPLE
from support.tiny_model import model

LOCK = pins.read_lock(pins.LOCK)


@pytest.fixture
def hub(monkeypatch):
    server = Hub()
    server.publish(f"datasets/{LOCK['repo_id']}", LOCK["revision"], {})
    server.publish(weights.REPO, "3" * 40, {})
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield server
    server.close()


def test_d1_rows_are_there_with_the_pinned_hash_or_to_be_had(tmp_path, hub):
    case = case_of(tmp_path, SPLIT="example")
    assert "not there yet; make data SPLIT=example" in found(files.task_rows, case, "ok").what
    path = case.settings.rows_path()
    path.parent.mkdir(parents=True)
    shutil.copy(EXAMPLE, path)
    pinned = found(files.task_rows, case, "ok").what
    assert "5 rows of example" in pinned and "as pinned" in pinned
    with path.open("a") as rows:
        rows.write("{}\n")
    edited = found(files.task_rows, case, "warn")
    assert "not those pinned" in edited.what and "NEMO_GYM_SOURCE_DATA" in edited.cure
    assert "the hub has them" in found(files.task_rows, case_of(tmp_path, SPLIT="train"), "ok").what
    needed = found(files.task_rows, case_of(tmp_path, "train"), "fail")
    assert "rows of train not there yet" in needed.what and needed.cure == "make data SPLIT=train"


def test_rows_with_something_in_their_way_are_named(tmp_path):
    (tmp_path / "file").write_text("")
    below = found(files.task_rows, case_of(tmp_path, DATA_ROOT=tmp_path / "file"), "fail")
    assert "Not a directory" in below.what and "DATA_ROOT" in below.cure
    case = case_of(tmp_path)
    case.settings.rows_path().mkdir(parents=True)
    assert "Is a directory" in found(files.task_rows, case, "fail").what


def test_d1_a_hub_that_cannot_give_the_rows_is_named(tmp_path, hub, monkeypatch):
    case = case_of(tmp_path, SPLIT="validation")
    for status in (401, 404, 503):
        hub.status = status
        assert f"HTTP {status}" in found(files.task_rows, case, "fail").what
    hub.status = None
    for page in (PROXY_PAGE, {"sha": ""}, "[" * 100_000):
        revision = f"/api/datasets/{LOCK['repo_id']}/revision/{LOCK['revision']}"
        with Pages({revision: page}) as other:
            monkeypatch.setenv("HF_ENDPOINT", other.url)
            assert "something else than a hub" in found(files.task_rows, case, "fail").what
    monkeypatch.setenv("HF_ENDPOINT", "no url")
    assert "HF_ENDPOINT" in found(files.task_rows, case, "fail").cure
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.delenv("no_proxy")
    refused = found(files.task_rows, case, "fail")
    assert "Connection refused" in refused.what and "proxy variables" in refused.cure
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE is set" in found(files.task_rows, case, "fail").what


def test_a_hubs_token_is_sent_and_never_shown(tmp_path, hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_nevershowme")
    hub.token = "hf_nevershowme"
    case = case_of(tmp_path, SPLIT="train")
    assert is_ok(files.task_rows, case)
    hub.token = "another"
    finding = found(files.task_rows, case, "fail")
    assert "HF_TOKEN" in finding.cure + finding.what and "nevershowme" not in str(finding)


def test_e9_rows_of_ones_own_must_be_fit(tmp_path):
    row = EXAMPLE.read_text().splitlines()[0]
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{row}\n")
    case = case_of(tmp_path, NEMO_GYM_SOURCE_DATA=path)
    assert "1 rows of" in found(files.task_rows, case, "ok").what
    path.write_text(f'{row}\n{{"input": []}}\n')
    assert f"{path}:2: responses_create_params: missing" in found(files.task_rows, case, "fail").what


def test_a_lock_that_was_edited_is_named(tmp_path, monkeypatch):
    (tmp_path / "lock.json").write_text("{}")
    monkeypatch.setattr(pins, "LOCK", tmp_path / "lock.json")
    assert "git checkout" in found(files.task_rows, case_of(tmp_path), "fail").cure


def test_a_model_is_whole_or_what_it_lacks_is_named(tmp_path):
    case, trains = case_of(tmp_path), case_of(tmp_path, RAY_ADDRESS="10.0.0.5:6379")
    folder = case.settings.MODEL_DIR / "Qwen3-4B"
    assert "only training needs it" in found(files.model, case, "ok").what
    assert "make model" in found(files.model, trains, "fail").cure
    folder.mkdir(parents=True)
    for name, content in model().items():
        (folder / name).write_bytes(content)
    assert "2 weight files" in found(files.model, trains, "ok").what
    shard = next(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    for at, verdict in ((trains, "fail"), (case, "warn")):
        assert "bytes instead of" in found(files.model, at, verdict).what


def test_a_model_to_fetch_needs_a_hub_and_room(tmp_path, hub, monkeypatch):
    case = case_of(tmp_path, "model")
    assert "the hub has it" in found(files.model, case, "ok").what
    monkeypatch.setattr(files, "MODEL_MB", 1)
    assert is_ok(files.room_for_model, case)
    monkeypatch.setattr(files, "MODEL_MB", 1 << 40)
    assert "MODEL_DIR" in found(files.room_for_model, case, "fail").cure
    hub.status = 503
    assert "HTTP 503" in found(files.model, case, "fail").what


def test_the_doctor_asks_the_hub_what_its_client_asks(hub):
    import huggingface_hub

    hub_client.refuse_unreachable(weights.REPO, "main", "model")
    asked = [path for _, path, _ in hub.requests]
    huggingface_hub.HfApi(endpoint=hub.url).repo_info(weights.REPO, revision="main", repo_type="model")
    assert asked == [hub.requests[-1][1]]
