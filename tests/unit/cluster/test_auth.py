"""Clusters that ask for a token: where it is taken from, what a refusal says, and that no message shows it."""

import pytest

from cluster import auth, jobs
from common.failure import Failure
from support.http_server import HttpServer

TOKEN = "never-show-me-token"


class Guarded(HttpServer):
    def answer(self, request):
        return (200, []) if request.headers.get("Authorization") == f"Bearer {TOKEN}" else (401, {})


@pytest.fixture
def variables(monkeypatch, tmp_path):
    """Sets Ray's variables, and clears the rest: variables(TOKEN=..., ...)."""

    def change(**given):
        for name in ("MODE", "TOKEN", "TOKEN_PATH"):
            monkeypatch.delenv(f"RAY_AUTH_{name}", raising=False)
        for name, text in ({"TOKEN_PATH": str(tmp_path / "token")} | given).items():
            monkeypatch.setenv(f"RAY_AUTH_{name}", text)

    return change


def test_the_token_is_sent_from_the_variable_or_the_file_and_only_if_asked_for(variables, tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    with Guarded() as dashboard:
        for given in ({"MODE": "token", "TOKEN": TOKEN}, {"MODE": "token"}):
            variables(**given)
            assert jobs.Dashboard(dashboard.url).ask("GET", "/api/jobs/") == (200, [])
        variables(TOKEN=TOKEN)
        assert auth.headers() == {}
        with pytest.raises(Failure, match="wants a token .401.; set RAY_AUTH_MODE=token"):
            jobs.Dashboard(dashboard.url).ask("GET", "/api/jobs/")


def test_a_token_that_is_not_taken_or_not_there_is_named_and_not_shown(variables):
    with Guarded() as dashboard:
        variables(MODE="token", TOKEN="other-" + TOKEN)
        with pytest.raises(Failure, match="does not take the token") as fault:
            jobs.Dashboard(dashboard.url).ask("GET", "/api/jobs/")
        assert TOKEN not in str(fault.value)
    variables(MODE="token")
    with pytest.raises(Failure, match="gives no token .No such file"):
        auth.headers()
    variables(MODE="token", TOKEN="two words")
    with pytest.raises(Failure, match="not one line of ASCII") as fault:
        auth.headers()
    assert "two words" not in str(fault.value)
