"""The doctor on variables: their values, their names, proxies, secrets."""

import subprocess

import pytest

from checks import variables
from checks.probe import Case
from common import settings
from common.failure import Failure
from servers import graph
from support.doctor_case import NOWHERE, case_of, found, is_ok, settings_of

SECRET = "never-show-me-4711"


def load(dotenv, **environment):
    """A case of these variables, with what is wrong with them."""
    faults = []
    values = settings.load(environment=environment, dotenv=dotenv, refuse=lambda fault: faults.append(str(fault)))
    return Case(values, "", faults)


def test_every_fault_of_the_variables_is_found_at_once(tmp_path):
    dotenv = tmp_path / ".env"
    dotenv.write_text(f"GYM_BASE_PORT=abc\nno line\nLIMTI=3\nGATEWAY_TOKEN={SECRET} \u00e9\nGYM_HOST=10.0.0.4\n")
    environment = {"GATEWAY_TOKENS": SECRET, "NEMO_GYM_LEASE_S": "0", "MAKEFLAGS": " -- SPILT=train"}
    case = load(dotenv, NEMO_GYM_CALLBACK_ALLOWED_NETWORKS="0.0.0.0/0", **environment)
    s = case.settings
    assert s.GYM_BASE_PORT == 29000 and s.GYM_HOST == "10.0.0.4" and s.NEMO_GYM_LEASE_S == 60
    findings = found(variables.values, case)
    said = "\n".join(finding.what + finding.cure for finding in findings)
    assert {finding.verdict for finding in findings} == {"fail"} and len(findings) == 8, said
    for part in (".env:1: GYM_BASE_PORT", ".env:2", ".env:3: LIMTI", "GATEWAY_TOKEN", "GATEWAY_TOKENS", "SPILT", "/0"):
        assert part in said
    assert SECRET not in said
    assert is_ok(variables.values, case_of(tmp_path))


def test_an_env_file_that_cannot_be_read_says_so(tmp_path):
    (tmp_path / ".env").mkdir()
    finding = found(variables.values, load(tmp_path / ".env"), "fail")
    assert finding.what == f"{tmp_path}/.env cannot be read as text: Is a directory" and "move it away" in finding.cure


@pytest.mark.parametrize(
    ("name", "near"), [("NEMO_GYM_DEADLINES_S", "NEMO_GYM_DEADLINE_S"), ("relax_host", "RELAX_HOST")]
)
def test_names_that_are_nearly_ours_are_named(tmp_path, monkeypatch, name, near):
    assert is_ok(variables.misspelt, case_of(tmp_path))
    monkeypatch.setenv(name, "5")
    assert f"did you mean {near}?" in found(variables.misspelt, case_of(tmp_path), "warn").cure


# --- proxies -------------------------------------------------------------------------------


def test_e10_proxies_that_would_catch_our_hosts_are_named(tmp_path):
    case = case_of(tmp_path, GYM_HOST=NOWHERE, RELAX_HOST="10.0.0.5", RAY_ADDRESS="10.0.0.6:6379")
    finding = found(variables.proxies, case, "warn")
    assert f"does not cover 127.0.0.1, localhost, 10.0.0.5, {NOWHERE}, 10.0.0.6" in finding.what
    assert f"NO_PROXY=127.0.0.1,localhost,10.0.0.5,{NOWHERE},10.0.0.6" in finding.cure


def test_the_cure_for_proxies_can_be_pasted_and_keeps_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "a.example, *.b.example")
    monkeypatch.setenv("NO_PROXY", "a.example,10.0.0.0/8")
    case = case_of(tmp_path, RELAX_HOST="10.0.0.5")
    differ, uncovered = found(variables.proxies, case)
    assert "no_proxy and NO_PROXY differ" in differ.what and "does not cover" in uncovered.what
    shell = f'{uncovered.cure}; printf \'%s\\n\' "$no_proxy" "$NO_PROXY"'
    lower, upper = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lower == upper and {"a.example", "*.b.example", "10.0.0.0/8", "10.0.0.5"} <= set(lower.split(","))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, lower)
    assert is_ok(variables.proxies, case)


def test_no_proxy_at_all_is_fine(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name)
        monkeypatch.delenv(name.upper())
    assert found(variables.proxies, case_of(tmp_path), "ok").what == "no proxy variable is set"


def test_hosts_to_reach_past_proxies_are_each_named_once(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://engine:2375")
    urls = {"MODEL_URL": "http://127.0.0.1:1", "RAY_ADDRESS": "[::1", "GYM_URLS": "http://a:1,http://b:2"}
    assert variables.hosts(settings_of(tmp_path, **urls)) == ["127.0.0.1", "localhost", "a", "b", "engine"]


# --- secrets -------------------------------------------------------------------------------


def test_tokens(tmp_path):
    for case in (case_of(tmp_path), case_of(tmp_path, GATEWAY_TOKEN=SECRET)):
        assert is_ok(variables.token, case)
    short = found(variables.token, case_of(tmp_path, GATEWAY_TOKEN="4711secret"), "warn")
    assert "10 characters" in short.what and "4711" not in short.what + short.cure
    assert "without a token" in found(variables.token, case_of(tmp_path, GYM_BIND_HOST="0.0.0.0"), "warn").what


def test_a_tokens_file_is_read_as_the_gateway_reads_it(tmp_path):
    path = tmp_path / "a token"
    path.write_text(f"{SECRET}\n")
    case = case_of(tmp_path, GYM_BIND_HOST="0.0.0.0", GATEWAY_TOKEN_FILE=path)
    assert found(variables.token, case, "ok").what == "GATEWAY_TOKEN_FILE is set"
    path.write_text("short\n")
    assert "GATEWAY_TOKEN_FILE has 5 characters" in found(variables.token, case, "warn").what
    for odd in (tmp_path, "/dev/zero", tmp_path / "none", "/dev/null/x"):
        case = case_of(tmp_path, GATEWAY_TOKEN_FILE=odd)
        finding = found(variables.token, case, "fail")
        with pytest.raises(Failure) as refused:
            graph.graph_fingerprint(case.settings)
        assert finding.what == str(refused.value) and "name a file that holds the token" in finding.cure
        assert is_ok(variables.secrets, case)


@pytest.mark.parametrize("before", ["GYM_HOST", "GATEWAY_TOKEN"])
def test_the_cure_makes_a_token_that_this_clone_reads_and_nobody_else(tmp_path, monkeypatch, before):
    clone = tmp_path / "a clone"
    (clone / "data").mkdir(parents=True)
    (clone / ".env").write_text(f"{before}=short\nGYM_BIND_HOST=0.0.0.0")  # no line end
    monkeypatch.setattr(variables, "ROOT", clone)
    subprocess.run(["bash", "-c", found(variables.token, load(clone / ".env"), "warn").cure], check=True)
    assert is_ok(variables.token, load(clone / ".env")) and is_ok(variables.secrets, load(clone / ".env"))
    assert len((clone / "data" / "gateway-token").read_text()) == 64


def test_files_with_a_secret_are_their_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(variables, "ROOT", tmp_path)
    dotenv, token = tmp_path / ".env", tmp_path / "token"
    dotenv.write_text("GYM_HOST=10.0.0.4\nGATEWAY_TOKEN=\n")
    assert found(variables.secrets, case_of(tmp_path), "ok").what == "no file holds a secret"
    dotenv.write_text(f"garbage\nGATEWAY_TOKEN={SECRET}\n")
    dotenv.chmod(0o644)
    finding = found(variables.secrets, case_of(tmp_path), "warn")
    assert "mode 644" in finding.what and finding.cure == f"chmod 600 {dotenv}" and SECRET not in str(finding)
    dotenv.chmod(0o600)
    assert is_ok(variables.secrets, case_of(tmp_path))
    token.write_text(SECRET)
    token.chmod(0o640)
    assert "mode 640" in found(variables.secrets, case_of(tmp_path, GATEWAY_TOKEN_FILE=token), "warn").what
