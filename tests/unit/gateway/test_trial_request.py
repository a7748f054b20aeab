"""Session clients over several Gateways, with the token from a file, and under other Pythons."""

import shutil
import subprocess
from types import SimpleNamespace

import httpx
import pytest

from common import program
from common import settings as variables
from common.failure import Failure
from common.settings import read_token
from gateway import routes, trial_request
from support.scripted_gateway import ScriptedGateway
from support.served import served
from unit.stages.test_session_client import SESSION_ID, TOKEN, Sample, sample  # noqa: F401 - a fixture

URLS = [f"http://10.0.0.{host}:29000" for host in range(4)]


def test_a_hash_spreads_sessions_evenly_and_always_the_same_way():
    counts = dict.fromkeys(URLS, 0)
    for number in range(4000):
        chosen = trial_request.gateway_of(URLS, f"session-{number}")
        assert chosen == trial_request.gateway_of(URLS, f"session-{number}")
        counts[chosen] += 1
    assert min(counts.values()) > 900
    assert trial_request.gateway_of(URLS[:1], "any") == URLS[0]


def test_the_client_goes_to_the_gateway_of_its_session_and_to_no_other(sample):  # noqa: F811
    with ScriptedGateway() as one, ScriptedGateway() as other:
        urls = [one.url, other.url]
        chosen = one if trial_request.gateway_of(urls, SESSION_ID) == one.url else other
        assert sample.run(one, GYM_URLS=",".join(urls))[0] == 0
        assert len(chosen.seen("create")) == 1
        assert not (other if chosen is one else one).requests


def test_the_token_comes_from_a_file(sample, tmp_path):  # noqa: F811
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    with ScriptedGateway() as gateway:
        status, err, _ = sample.run(gateway, GATEWAY_TOKEN=None, GATEWAY_TOKEN_FILE=str(path))
    assert (status, err) == (0, "")
    assert gateway.seen("create")[0].headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(("content", "words"), [(None, "No such file"), ("é", "not ASCII"), ("a b", "not one line")])
def test_a_token_file_that_cannot_be_used_is_named_unless_the_environment_has_the_token(tmp_path, content, words):
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    in_file = {"GATEWAY_TOKEN_FILE": str(path)}
    with pytest.raises(Failure, match=words):
        read_token(variables.load(environment=in_file, dotenv=tmp_path / "none"))
    both = variables.load(environment=in_file | {"GATEWAY_TOKEN": "one"}, dotenv=tmp_path / "none")
    assert read_token(both) == "one"


def test_the_gateway_asks_for_the_token_in_the_file(tmp_path):
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    settings = variables.load(environment={"GATEWAY_TOKEN_FILE": str(path)}, dotenv=tmp_path / "none")

    async def show(request_id, wait_s):
        return {"request_id": request_id}

    with served(routes.public(settings, SimpleNamespace(show=show), None, None)) as port:
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False)
        given = ({}, {"Authorization": "Bearer another"}, {"Authorization": f"Bearer {TOKEN}"})
        answers = [client.get("/v1/trials/one", headers=headers) for headers in given]
    assert [answer.status_code for answer in answers] == [401, 401, 200]
    assert answers[2].json() == {"request_id": "one"}


def test_gateway_urls_are_urls(tmp_path):
    def urls(text):
        return variables.load(environment={"GYM_URLS": text}, dotenv=tmp_path / "none").gateway_urls

    assert urls("http://a:1/ , http://b:2") == ["http://a:1", "http://b:2"]
    assert urls("") == ["http://127.0.0.1:29000"]
    with pytest.raises(variables.SettingsError, match="GYM_URLS="):
        urls("http://a:1,b:2")


@pytest.mark.parametrize("python", ["/usr/bin/python3", "python3.10", "python3.11", "python3.13"])
def test_the_client_runs_under_other_pythons(tmp_path, python):
    path = shutil.which(python)
    if not path or subprocess.run([path, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no {python} here")
    with ScriptedGateway() as gateway:
        environment = Sample(tmp_path).variables | {"NEMO_GYM_URL": gateway.url}
        command = program.stage("session_client", python=path)
        done = subprocess.run(command, env=environment, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
