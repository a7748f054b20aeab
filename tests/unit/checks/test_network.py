"""The doctor on the way between machines, against real sockets and small real servers."""

import time
from email.utils import formatdate

import pytest

from checks import network
from common import net
from common.net import ask
from proofs.rig import own_address
from support.doctor_case import NOWHERE, PROXY_PAGE, Pages, Silent, case_of, found, is_ok

SECRET = "never-show-me-4711"


def test_the_gateways_address(tmp_path):
    assert is_ok(network.gym_host, case_of(tmp_path))
    foreign = found(network.gym_host, case_of(tmp_path, GYM_BIND_HOST=NOWHERE), "fail")
    assert f"GYM_BIND_HOST={NOWHERE} is no address of this machine" in foreign.what
    assert "has no address" in found(network.gym_host, case_of(tmp_path, GYM_HOST="nowhere.invalid"), "fail").what


def test_an_outward_gym_host_needs_a_gateway_that_listens_there(tmp_path):
    own = own_address()
    if not own:
        pytest.skip("this machine has no outward address")
    deaf = found(network.gym_host, case_of(tmp_path, GYM_HOST=own), "fail")
    assert "listens on 127.0.0.1 alone" in deaf.what and f"GYM_BIND_HOST={own}" in deaf.cure
    for bind in ("0.0.0.0", own):
        assert is_ok(network.gym_host, case_of(tmp_path, GYM_HOST=own, GYM_BIND_HOST=bind))


def test_a_gym_host_elsewhere_must_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(net, "is_here", lambda host: host != "127.0.0.2")
    with Pages({"/readyz": {"ready": True}}) as there:
        texts = {"GYM_BASE_PORT": there.port, "GYM_HOST": "127.0.0.2"}
        assert "nobody answers" in found(network.gym_host, case_of(tmp_path, **texts), "fail").what
        assert found(network.gym_host, case_of(tmp_path, "gym-up", **texts), "warn").cure.startswith("set GYM_HOST")
        monkeypatch.setattr(net, "is_here", lambda host: False)
        answers = case_of(tmp_path, GYM_BIND_HOST="0.0.0.0", NEMO_GYM_URL=there.url)
        assert "another machine, which answers" in found(network.gym_host, answers, "ok").what


@pytest.mark.parametrize(
    ("name", "address", "host", "bits"),
    [
        ("RELAX_HOST", "192.168.7.7", "192.168.7.7", 32),
        ("RAY_ADDRESS", "192.168.7.7:6379", "192.168.7.7", 32),
        ("RAY_ADDRESS", "[fd00::7]:6379", "fd00::7", 128),
    ],
)
def test_callback_networks_cover_the_trainer(tmp_path, name, address, host, bits):
    finding = found(network.callbacks, case_of(tmp_path, **{name: address}), "fail")
    assert f"the trainer's address {host} ({name})" in finding.what and f"add {host}/{bits} to" in finding.cure
    networks = "10.0.0.0/8,192.168.0.0/16,fd00::/16"
    assert is_ok(network.callbacks, case_of(tmp_path, NEMO_GYM_CALLBACK_ALLOWED_NETWORKS=networks, **{name: address}))


def test_callback_networks_are_not_half_the_internet_and_trainers_have_addresses(tmp_path):
    for case in (case_of(tmp_path), case_of(tmp_path, RELAX_HOST="127.0.0.1")):
        assert is_ok(network.callbacks, case)
    wide = case_of(tmp_path, NEMO_GYM_CALLBACK_ALLOWED_NETWORKS="10.0.0.0/8,128.0.0.0/1")
    assert "128.0.0.0/1 is most of the Internet" in found(network.callbacks, wide, "warn").what
    assert "no address here" in found(network.callbacks, case_of(tmp_path, RELAX_HOST="nowhere.invalid"), "warn").what


@pytest.mark.parametrize(("offset", "way"), [(-90, "behind"), (90, "ahead of")])
def test_clocks_that_differ_are_named(tmp_path, offset, way):
    date = formatdate(time.time() + offset, usegmt=True)
    with Pages({"/readyz": {}}) as here, Pages({"/readyz": {}}, date=date) as other:
        assert "1 other clocks asked" in found(network.clock, case_of(tmp_path, NEMO_GYM_URL=here.url), "ok").what
        finding = found(network.clock, case_of(tmp_path, NEMO_GYM_URL=other.url), "warn")
        seconds = int(finding.what.partition(" is ")[2].split()[0])
        assert abs(seconds - 90) <= 3 and way in finding.what
        urls = {"RAY_ADDRESS": "127.0.0.1:6379", "RAY_DASHBOARD_ADDRESS": other.url, "NEMO_GYM_URL": here.url}
        assert other.url.removeprefix("http://") in found(network.clock, case_of(tmp_path, **urls), "warn").what


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
        ((200, f'"{SECRET}"'), "fail", "***", "MODEL_URL"),
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


# --- questions -----------------------------------------------------------------------------


def test_odd_servers_are_bounded_and_told():
    with Silent() as silent:
        answer = ask(silent.url, timeout=0.2)
        assert answer.status == 0 and "timed out" in answer.told()
    broken = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx"
    for word in (b"\0\1\2 garbage\r\n\r\n", broken, b"HTTP/1.1 9999\r\n\r\n"):
        with Silent(word) as odd:
            assert ask(odd.url, timeout=0.2).status == 0
    for url in ("http://[::1", f"http://{'a' * 300}.invalid"):
        assert ask(url, timeout=0.2).status == 0


def test_a_host_is_here_by_its_own_addresses():
    assert net.is_here("localhost") and net.is_here("127.0.0.1")
    assert not any(map(net.is_here, (NOWHERE, "nowhere.invalid", "x" * 300)))
