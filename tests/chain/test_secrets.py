"""Session ids, keys and the token after all other tests: in no log, no file, no process's arguments."""

from pathlib import Path

import httpx
import pytest

from proofs.rig import SECRET_PREFIX, secret
from servers import processes
from support.scripted_model import DONE, Answer

NEEDLE = SECRET_PREFIX.encode()


@pytest.fixture(scope="module", autouse=True)
def some_trials(graph_started, models):
    """A few trials of their own, so that this file can run alone."""
    graph_started.wait_ready()
    for policy in (models.script(DONE), models.script(Answer(401, b"bad key")), "http://127.0.0.1:1"):
        payload = graph_started.payload(policy, deadline_s=5)
        payload["model_endpoint"] |= {"api_key": secret(), "headers": {"X-Key": secret()}}
        graph_started.wait(graph_started.start(payload))
    hanging = graph_started.start(graph_started.payload(models.hanging(), deadline_s=2))
    graph_started.wait_running(hanging)
    assert_absent_from_commands()
    graph_started.wait(hanging)


def assert_absent_from_commands():
    assert not [process.pid for process in processes.processes() if SECRET_PREFIX in process.command]


def files_below(folder):
    return [path for path in Path(folder).rglob("*") if path.is_file() and not path.is_symlink()]


def test_no_file_of_the_run_folder_or_of_rays_holds_a_secret_and_the_store_is_for_its_owner_alone(graph_started):
    files, ray = files_below(graph_started.run_dir), (graph_started.run_dir / "ray-gym.tmpdir").read_text().strip()
    assert {"trials.sqlite", "supervisor.log"} <= {path.name for path in files} and files_below(ray)
    assert not [path for path in files + files_below(ray) if NEEDLE in path.read_bytes()]
    for path in graph_started.run_dir.glob("trials.sqlite*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_no_answer_of_the_gateway_holds_a_secret(graph_started, models):
    payload = graph_started.payload(models.script(DONE))
    graph_started.wait(graph_started.start(payload))
    for path in ("/healthz", "/readyz", "/metrics", f"/v1/trials/{payload['request_id']}"):
        assert SECRET_PREFIX not in graph_started.http.get(path).text


def test_the_head_servers_configuration_holds_no_secret(graph_started):
    url = graph_started.settings.local_url("head")
    answers = [httpx.get(url + path, trust_env=False) for path in ("/global_config_dict_yaml", "/server_instances")]
    assert all(answer.status_code == 200 and SECRET_PREFIX not in answer.text for answer in answers)
