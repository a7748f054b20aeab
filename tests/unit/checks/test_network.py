"""The doctor on variables and on the way between machines, against real sockets and small real servers."""

import os
import subprocess
import time
from email.utils import formatdate

import pytest

from checks import network
from checks import variables as named
from checks.probe import Case
from common import net
from common import settings as variables
from common.failure import Failure
from common.net import ask
from servers import graph
from support.doctor_case import NOWHERE, PROXY_PAGE, Pages, Silent, case_of, found, is_ok, outward_address, settings_of

SECRET = "never-show-me-4711"


# --- variables -----------------------------------------------------------------------------


def test_every_fault_of_the_variables_is_found_at_once(tmp_path):
    dotenv = tmp_path / ".env"
    dotenv.write_text(f"GYM_BASE_PORT=abc\nno line\nLIMTI=3\nGATEWAY_TOKEN={SECRET} \u00e9\nGYM_HOST=10.0.0.4\n")
    faults = []
    environment = {"GATEWAY_TOKENS": SECRET, "NEMO_GYM_LEASE_S": "0", "MAKEFLAGS": " -- SPILT=train"}
    environment["NEMO_GYM_CALLBACK_ALLOWED_NETWORKS"] = "0.0.0.0/0"
    settings = variables.load(environment=environment, dotenv=dotenv, refuse=lambda fault: faults.append(str(fault)))
    assert settings.GYM_BASE_PORT == 29000 and settings.GYM_HOST == "10.0.0.4" and settings.NEMO_GYM_LEASE_S == 60
    findings = found(named.values, Case(settings, "", faults))
    said = "\n".join(finding.what + finding.cure for finding in findings)
    assert {finding.verdict for finding in findings} == {"fail"} and len(findings) == 8, said
    for part in (".env:1: GYM_BASE_PORT", ".env:2", ".env:3: LIMTI", "GATEWAY_TOKEN", "GATEWAY_TOKENS", "SPILT", "/0"):
        assert part in said
    assert SECRET not in said
    assert is_ok(named.values, case_of(tmp_path))


def test_names_that_are_nearly_ours_are_named(tmp_path, monkeypatch):
    assert is_ok(named.misspelt, case_of(tmp_path))
    monkeypatch.setenv("NEMO_GYM_DEADLINES_S", "5")
    assert "did you mean NEMO_GYM_DEADLINE_S?" in found(named.misspelt, case_of(tmp_path), "warn").cure
    monkeypatch.delenv("NEMO_GYM_DEADLINES_S")
    monkeypatch.setenv("relax_host", "10.0.0.5")
    assert "did you mean RELAX_HOST?" in found(named.misspelt, case_of(tmp_path), "warn").cure


def test_e10_proxies_that_would_catch_our_hosts_are_named(tmp_path, monkeypatch):
    case = case_of(tmp_path, GYM_HOST=NOWHERE, RELAX_HOST="10.0.0.5", RAY_ADDRESS="10.0.0.6:6379")
    finding = found(named.proxies, case, "warn")
    assert f"does not cover 127.0.0.1, localhost, 10.0.0.5, {NOWHERE}, 10.0.0.6" in finding.what
    assert f"NO_PROXY=127.0.0.1,localhost,10.0.0.5,{NOWHERE},10.0.0.6" in finding.cure
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, f"127.0.0.1,localhost,10.0.0.5,{NOWHERE},10.0.0.6")
    assert is_ok(named.proxies, case)


def test_the_cure_for_proxies_can_be_pasted_and_keeps_what_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "a.example, *.b.example")
    monkeypatch.setenv("NO_PROXY", "a.example,10.0.0.0/8")
    case = case_of(tmp_path, RELAX_HOST="10.0.0.5")
    (finding,) = [each for each in found(named.proxies, case) if "does not cover" in each.what]
    shell = f'{finding.cure}; printf \'%s\\n\' "$no_proxy" "$NO_PROXY"'
    lower, upper = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout.splitlines()
    assert lower == upper and {"a.example", "*.b.example", "10.0.0.0/8", "10.0.0.5"} <= set(lower.split(","))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, lower)
    assert is_ok(named.proxies, case)


def test_no_proxy_is_fine_and_two_spellings_that_differ_are_not(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name)
        monkeypatch.delenv(name.upper())
    assert found(named.proxies, case_of(tmp_path), "ok").what == "no proxy variable is set"
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert "no_proxy and NO_PROXY differ" in found(named.proxies, case_of(tmp_path), "warn").what


def test_tokens(tmp_path):
    assert is_ok(named.token, case_of(tmp_path)) and is_ok(named.token, case_of(tmp_path, GATEWAY_TOKEN=SECRET))
    short = found(named.token, case_of(tmp_path, GATEWAY_TOKEN="4711secret"), "warn")
    assert "10 characters" in short.what and "4711" not in short.what + short.cure
    assert "without a token" in found(named.token, case_of(tmp_path, GYM_BIND_HOST="0.0.0.0"), "warn").what


def test_a_tokens_file_is_read_as_the_gateway_reads_it(tmp_path):
    path = tmp_path / "a token"
    path.write_text(f"{SECRET}\n")
    opened = case_of(tmp_path, GYM_BIND_HOST="0.0.0.0", GATEWAY_TOKEN_FILE=path)
    assert found(named.token, opened, "ok").what == "GATEWAY_TOKEN_FILE is set"
    path.write_text("short\n")
    assert "GATEWAY_TOKEN_FILE has 5 characters" in found(named.token, opened, "warn").what
    for odd in (tmp_path, "/dev/zero", tmp_path / "none", "/dev/null/x"):
        case = case_of(tmp_path, GATEWAY_TOKEN_FILE=odd)
        finding = found(named.token, case, "fail")
        with pytest.raises(Failure) as refused:
            graph.graph_fingerprint(case.settings)
        assert finding.what == str(refused.value) and "chmod" not in finding.cure
        assert is_ok(named.secrets, case)


@pytest.mark.parametrize("before", ["GYM_HOST", "GATEWAY_TOKEN"])
def test_the_cure_makes_a_token_that_this_clone_reads_and_nobody_else(tmp_path, monkeypatch, before):
    clone = tmp_path / "a clone"
    (clone / "data").mkdir(parents=True)
    (clone / ".env").write_text(f"{before}=short\nGYM_BIND_HOST=0.0.0.0")  # no line end

    def case():
        return Case(variables.load(environment={}, dotenv=clone / ".env"))

    monkeypatch.setattr(named, "ROOT", clone)
    subprocess.run(["bash", "-c", found(named.token, case(), "warn").cure], check=True)
    assert is_ok(named.token, case()) and is_ok(named.secrets, case())
    assert len((clone / "data" / "gateway-token").read_text()) == 64


def test_an_env_file_that_cannot_be_read_says_so(tmp_path):
    (tmp_path / ".env").mkdir()
    faults = []
    settings = variables.load(environment={}, dotenv=tmp_path / ".env", refuse=lambda fault: faults.append(str(fault)))
    finding = found(named.values, Case(settings, "", faults), "fail")
    assert finding.what == f"{tmp_path}/.env cannot be read as text: Is a directory" and "move it away" in finding.cure


def test_files_with_a_secret_are_their_owners_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(named, "ROOT", tmp_path)
    (tmp_path / ".env").write_text("GYM_HOST=10.0.0.4\nGATEWAY_TOKEN=\n")
    assert found(named.secrets, case_of(tmp_path), "ok").what == "no file holds a secret"
    (tmp_path / ".env").write_text(f"garbage\nGATEWAY_TOKEN={SECRET}\n")
    (tmp_path / ".env").chmod(0o644)
    finding = found(named.secrets, case_of(tmp_path), "warn")
    assert "mode 644" in finding.what and finding.cure == f"chmod 600 {tmp_path}/.env" and SECRET not in str(finding)
    (tmp_path / ".env").chmod(0o600)
    assert is_ok(named.secrets, case_of(tmp_path))
    (tmp_path / "token").write_text(SECRET)
    (tmp_path / "token").chmod(0o640)
    assert "mode 640" in found(named.secrets, case_of(tmp_path, GATEWAY_TOKEN_FILE=tmp_path / "token"), "warn").what


# --- addresses -----------------------------------------------------------------------------


def test_the_gateways_address(tmp_path):
    assert is_ok(network.gym_host, case_of(tmp_path))
    foreign = found(network.gym_host, case_of(tmp_path, GYM_BIND_HOST=NOWHERE), "fail")
    assert f"GYM_BIND_HOST={NOWHERE} is no address of this machine" in foreign.what
    assert "has no address" in found(network.gym_host, case_of(tmp_path, GYM_HOST="nowhere.invalid"), "fail").what


def test_an_outward_gym_host_needs_a_gateway_that_listens_there(tmp_path):
    own = outward_address()
    if not own:
        pytest.skip("this machine has no outward address")
    deaf = found(network.gym_host, case_of(tmp_path, GYM_HOST=own), "fail")
    assert "listens on 127.0.0.1 alone" in deaf.what and f"GYM_BIND_HOST={own}" in deaf.cure
    assert is_ok(network.gym_host, case_of(tmp_path, GYM_HOST=own, GYM_BIND_HOST="0.0.0.0"))
    assert is_ok(network.gym_host, case_of(tmp_path, GYM_HOST=own, GYM_BIND_HOST=own))


def test_a_gym_host_elsewhere_must_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(net, "is_here", lambda host: host != "127.0.0.2")
    with Pages({"/readyz": {"ready": True}}) as there:
        texts = {"GYM_BASE_PORT": there.port, "GYM_HOST": "127.0.0.2"}
        silent = found(network.gym_host, case_of(tmp_path, **texts), "fail")
        assert "nobody answers" in silent.what
        assert found(network.gym_host, case_of(tmp_path, "gym-up", **texts), "warn").cure.startswith("set GYM_HOST")
        monkeypatch.setattr(net, "is_here", lambda host: False)
        there_url = case_of(tmp_path, GYM_BIND_HOST="0.0.0.0", NEMO_GYM_URL=there.url)
        assert "another machine, which answers" in found(network.gym_host, there_url, "ok").what


@pytest.mark.parametrize(
    ("name", "address"),
    [("RELAX_HOST", "192.168.7.7"), ("RAY_ADDRESS", "192.168.7.7:6379"), ("RAY_ADDRESS", "[fd00::7]:6379")],
)
def test_callback_networks_cover_the_trainer(tmp_path, name, address):
    finding = found(network.callbacks, case_of(tmp_path, **{name: address}), "fail")
    host = address.strip("[").partition("]")[0] if "[" in address else address.partition(":")[0]
    assert f"the trainer's address {host} ({name})" in finding.what
    assert f"add {host}/{128 if ':' in host else 32} to" in finding.cure
    networks = "10.0.0.0/8,192.168.0.0/16,fd00::/16"
    assert is_ok(network.callbacks, case_of(tmp_path, NEMO_GYM_CALLBACK_ALLOWED_NETWORKS=networks, **{name: address}))


def test_callback_networks_are_not_half_the_internet_and_trainers_have_addresses(tmp_path):
    assert is_ok(network.callbacks, case_of(tmp_path)) and is_ok(
        network.callbacks, case_of(tmp_path, RELAX_HOST="127.0.0.1")
    )
    wide = case_of(tmp_path, NEMO_GYM_CALLBACK_ALLOWED_NETWORKS="10.0.0.0/8,128.0.0.0/1")
    assert "128.0.0.0/1 is most of the Internet" in found(network.callbacks, wide, "warn").what
    assert "no address here" in found(network.callbacks, case_of(tmp_path, RELAX_HOST="nowhere.invalid"), "warn").what


@pytest.mark.parametrize("offset", [-90, 90])
def test_clocks_that_differ_are_named(tmp_path, offset):
    with Pages({"/readyz": {}}) as here:
        assert "1 other clocks asked" in found(network.clock, case_of(tmp_path, NEMO_GYM_URL=here.url), "ok").what
    with Pages({"/readyz": {}}, date=formatdate(time.time() + offset, usegmt=True)) as other:
        finding = found(network.clock, case_of(tmp_path, NEMO_GYM_URL=other.url), "warn")
        seconds = int(finding.what.partition(" is ")[2].split()[0])
        assert abs(seconds - 90) <= 3 and ("ahead of" if offset > 0 else "behind") in finding.what
        cluster = case_of(
            tmp_path, RAY_ADDRESS="127.0.0.1:6379", RAY_DASHBOARD_ADDRESS=other.url, NEMO_GYM_URL=here.url
        )
        assert other.url.removeprefix("http://") in found(network.clock, cluster, "warn").what


# --- the model endpoint --------------------------------------------------------------------


def endpoint(tmp_path, url, **texts):
    return case_of(tmp_path, "smoke", REHEARSAL_POLICY="endpoint", MODEL_URL=url, **texts)


def test_e15_an_endpoint_that_serves_the_model_is_ok(tmp_path):
    assert is_ok(network.endpoint, case_of(tmp_path, "smoke"))
    with Pages({"/v1/models": {"data": [{"id": "model"}]}}) as api:
        assert is_ok(network.endpoint, endpoint(tmp_path, api.url, MODEL_API_KEY=SECRET))
        assert api.asked[0][1]["Authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("page", "verdict", "said", "cure"),
    [
        ({"data": [{"id": "Qwen3-4B"}]}, "warn", "serves Qwen3-4B, not 'model'", "set MODEL"),
        ((401, {}), "fail", "answered 401", "MODEL_API_KEY"),
        ((403, PROXY_PAGE), "fail", "answered 403", "MODEL_API_KEY"),
        ((404, {}), "warn", "cannot tell", "ends before /v1"),
        ((302, ""), "fail", "answered 302", "MODEL_URL"),
        ((503, PROXY_PAGE), "fail", "<html>", "MODEL_URL"),
        (PROXY_PAGE, "fail", "<html>", "MODEL_URL"),
        ({"error": "none"}, "fail", "no list of models", "MODEL_URL"),
        ({"data": ["a"]}, "fail", "no list of models", "MODEL_URL"),
        ("[" * 100_000, "fail", "no list of models", "MODEL_URL"),
    ],
)
def test_e15_an_endpoint_that_would_fail_is_named(tmp_path, page, verdict, said, cure):
    with Pages({"/v1/models": page, "/elsewhere": {}}, headers={"Location": "/elsewhere"}) as api:
        finding = found(network.endpoint, endpoint(tmp_path, api.url, MODEL_API_KEY=SECRET), verdict)
    assert said in finding.what and cure in finding.cure and SECRET not in str(finding)
    assert [path for path, _ in api.asked] == ["/v1/models"]


def test_e15_an_endpoint_that_is_not_there_or_not_set_is_named(tmp_path):
    assert "MODEL_URL is empty" in found(network.endpoint, endpoint(tmp_path, ""), "fail").what
    assert "make eval MODEL_URL=" in found(network.endpoint, case_of(tmp_path, "eval"), "fail").cure
    with Pages({}) as gone:
        pass
    assert "Connection refused" in found(network.endpoint, endpoint(tmp_path, gone.url), "fail").what


def test_odd_servers_are_bounded_and_told():
    with Silent() as silent:
        answer = ask(silent.url, timeout=0.2)
        assert answer.status == 0 and "timed out" in answer.told()
    for word in (
        b"\0\1\2 garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx",
        b"HTTP/1.1 9999\r\n\r\n",
    ):
        with Silent(word) as odd:
            assert ask(odd.url, timeout=0.2).status == 0
    assert ask("http://[::1", timeout=0.2).status == 0
    assert ask(f"http://{'a' * 300}.invalid", timeout=0.2).status == 0


def test_our_questions_see_no_proxy():
    assert os.environ["http_proxy"].startswith("http://127.0.0.1:9")
    with Pages({"/": "here"}) as page:
        assert ask(f"{page.url}/").text == "here"


def test_a_host_is_here_by_its_own_addresses():
    assert net.is_here("localhost") and net.is_here("127.0.0.1")
    assert not net.is_here(NOWHERE) and not net.is_here("nowhere.invalid") and not net.is_here("x" * 300)


def test_hosts_to_reach_past_proxies_are_each_named_once(tmp_path, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://engine:2375")
    settings = settings_of(
        tmp_path, MODEL_URL="http://127.0.0.1:1", RAY_ADDRESS="[::1", GYM_URLS="http://a:1,http://b:2"
    )
    assert named.hosts(settings) == ["127.0.0.1", "localhost", "a", "b", "engine"]
