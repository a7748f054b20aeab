"""The model stage as its own program, against a local hub, with a model of the right shape and tiny weights."""

import json

import pytest

from inputs import weights
from support.local_hub import Hub
from support.programs import only_error, stage_alone
from support.tiny_model import model, safetensors

COMMIT = "3" * 40


SHARD = "model-00002-of-00002.safetensors"
SMALLER = json.dumps(weights.SHAPE | {"num_hidden_layers": 28}).encode()


@pytest.fixture
def hub():
    hub = Hub()
    hub.publish(weights.REPO, COMMIT, model())
    yield hub
    hub.close()


@pytest.fixture
def fetch(tmp_path, hub):
    (tmp_path / "home").mkdir()

    def run(*arguments, **more):
        environment = {"HF_ENDPOINT": hub.url, "MODEL_DIR": tmp_path / "models", **more}
        return stage_alone("fetch_model", *arguments, home=tmp_path / "home", **environment)

    run.folder = tmp_path / "models" / "Qwen3-4B"
    return run


def test_the_model_is_fetched_over_a_cut_connection_then_reused_without_network(fetch, hub):
    hub.cuts = [20]
    done = fetch()
    assert (done.returncode, done.stderr) == (0, "")
    size = 2 * len(safetensors("layer.1"))
    assert done.stdout.splitlines()[-1] == (
        f"Qwen3-4B ready: layers=36 hidden=2560 weight_files=2 bytes={size} revision={COMMIT} path={fetch.folder}"
    )
    hub.requests.clear()
    assert fetch(HF_HUB_OFFLINE="1").returncode == 0
    assert fetch().returncode == 0
    assert hub.requests == []


def test_only_what_is_missing_is_fetched(fetch, hub):
    assert fetch("--revision", COMMIT).returncode == 0
    (fetch.folder / SHARD).unlink()
    hub.requests.clear()
    assert fetch().returncode == 0
    assert [path.rpartition("/")[2] for _, path, _ in hub.gets() if "/resolve/" in path] == [SHARD]


def test_a_copied_folder_without_the_clients_notes_is_taken(fetch, hub):
    fetch.folder.mkdir(parents=True)
    for name, content in model().items():
        (fetch.folder / name).write_bytes(content)
    done = fetch()
    assert done.returncode == 0 and "revision=unknown" in done.stdout
    assert hub.requests == []


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", SMALLER, "num_hidden_layers is 28, not 36"),
        ("config.json", b"[]", "config.json: not a JSON object"),
        ("tokenizer.json", b"", "tokenizer.json: not JSON"),
        ("tokenizer.json", b"{}", "tokenizer.json: not a JSON object with keys"),
        (weights.INDEX, b'{"weight_map": {}}', "names no weight files"),
        (SHARD, safetensors("layer.2")[:-1], "bytes instead of"),
        (SHARD, safetensors("other"), "lacks 1 of the tensors"),
        (SHARD, b"", "no safetensors header"),
        (SHARD, b"\xff" * 50, "no safetensors header"),
        (SHARD, None, "missing"),
    ],
)
def test_a_published_model_that_is_not_whole_is_refused(tmp_path, name, content, said):
    files = model() | {name: content}
    for each, body in files.items():
        if body is not None:
            (tmp_path / each).write_bytes(body)
    with pytest.raises(weights.Incomplete, match=said):
        weights.check(tmp_path)


def test_another_model_under_the_name_is_refused_with_the_cure(fetch, hub):
    hub.publish(weights.REPO, COMMIT, model() | {"config.json": b'{"model_type": "llama"}'})
    error = only_error(fetch())
    assert "config.json: model_type is 'llama', not 'qwen3'" in error and "run make model again" in error


def test_no_network_no_access_no_revision_and_no_folder_are_named(fetch, hub, tmp_path):
    assert "HF_HUB_OFFLINE is set" in only_error(fetch(HF_HUB_OFFLINE="1"))
    assert "cannot get Qwen/Qwen3-4B" in only_error(fetch(HF_ENDPOINT="http://127.0.0.1:9"))
    assert "HTTP 404" in only_error(fetch("--revision", "nowhere"))
    hub.token = "hf_right"
    assert "set HF_TOKEN" in only_error(fetch())
    (tmp_path / "file").write_text("")
    assert "set MODEL_DIR to a folder that can be written" in only_error(fetch(MODEL_DIR=tmp_path / "file"))
