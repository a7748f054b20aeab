"""Patches that only make servers cheaper: plain middleware answers as Starlette's does, and an agent that asks
itself without HTTP sends the same to model, tools and verifier, and answers the same."""

import json
from unittest.mock import MagicMock

import httpx
import orjson
import pytest
from fastapi.testclient import TestClient
from nemo_gym import plain_middleware
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import ServerClient
from omegaconf import OmegaConf
from resources_servers.workplace_assistant.app import WorkbenchResourcesServer, WorkbenchResourcesServerConfig
from responses_api_agents.simple_agent import app as simple_agent

from inputs.rows import read_rows
from policy import model_api
from servers.tree import WORKPLACE, installed_tree
from support.task_rows import SHARED_DATA

ROWS = read_rows(installed_tree() / WORKPLACE / "data" / "example.jsonl")
SEARCH = ["email_search_emails", {"query": "carlos"}]


# --- middleware ----------------------------------------------------------------------------


def environment():
    """A client of the resource server."""
    config = WorkbenchResourcesServerConfig(host="127.0.0.1", port=1, entrypoint="", name="workplace_assistant")
    server = WorkbenchResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)

    @app.get("/fault/{kind}")
    async def fault(kind: str):
        raise {"value": ValueError("é"), "key": KeyError("x")}[kind]

    return TestClient(app)


def shown(answer):
    headers = {name: value for name, value in answer.headers.items() if name != "set-cookie"}
    cookies = [cookie.partition("=")[0] for cookie in answer.headers.get_list("set-cookie")]
    return answer.status_code, answer.content, headers, cookies


def conversation(client, row):
    """What a server answers to all kinds of requests of one session and of none."""
    call = model_api.function_call(SEARCH[0], json.dumps(SEARCH[1])) | {"id": "one", "call_id": "one"}
    response = model_api.answered([call]) | {"id": "r", "created_at": 1.0}
    response |= {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}
    search = (f"/{SEARCH[0]}", {"json": SEARCH[1]})
    posts = [
        search, ("/seed_session", {"json": row | {"rollout_id": "r"}}), search, (search[0], {"content": b"[1]"}),
        (search[0], {"content": b"{"}), ("/no_such_tool", {"json": {}}), ("/verify", {"json": row}),
        ("/verify", {"json": row | {"response": response}}), ("/seed_session", {"json": {"rollout_id": "r"}}),
    ]  # fmt: skip
    answers = [shown(client.post(path, **body)) for path, body in posts]
    gets = ("/", "/cleanup/r", "/no/such/path", "/fault/value", "/fault/key")
    return [*answers, *(shown(client.get(path)) for path in gets), shown(client.delete("/sessions"))]


def test_plain_middleware_answers_as_starlettes_does(monkeypatch):
    plain = conversation(environment(), ROWS[0])
    monkeypatch.setattr(plain_middleware, "use", lambda app: None)
    assert plain == conversation(environment(), ROWS[0])
    assert {status for status, *_ in plain} == {200, 400, 404, 405, 410, 422, 500}


# --- agent ---------------------------------------------------------------------------------

AGENT = "http://127.0.0.1:1"
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "well"}]}
USAGE = {
    "input_tokens": 5, "output_tokens": 7, "total_tokens": 12,
    "input_tokens_details": {"cached_tokens": 1}, "output_tokens_details": {"reasoning_tokens": 2},
}  # fmt: skip


def call(name, arguments):
    return model_api.function_call(name, arguments) | {"id": f"fc_{name}", "call_id": f"call_{name}"}


def reply(*items, **more):
    fixed = {"id": "resp_1", "created_at": 1.5, "tools": [], "tool_choice": "auto", "parallel_tool_calls": False}
    return model_api.answered(list(items)) | fixed | more


DONE = model_api.message("Done: é \U0001f600") | {"id": "msg_1"}
POLICIES = {
    "calls": [
        reply(REASONING, call("email_search_emails", '{"query": "x"}'), usage=USAGE),
        reply(DONE, usage=USAGE),
    ],
    "two at once": [
        reply(call("email_search_emails", "{}"), call("email_reply_email", '{"body": "é"}')),
        reply(DONE),
    ],
    "odd calls": [reply(call("email_search_emails", "{"), call("verify", "{}"), call("x", "[]")), reply(DONE)],
    "no call": [reply(DONE)],
    "cut short": [reply(DONE, incomplete_details={"reason": "max_output_tokens"}, status="incomplete")],
    "for ever": [reply(call("email_search_emails", '{"query": "x"}'))] * 9,
    "no response": [{"output": "nonsense"}],
}


class Answer:
    """A ClientResponse as the agent uses it."""

    def __init__(self, status, content, cookies):
        self.status, self.cookies, self.content, self.ok = status, cookies, self, status < 400
        self._content = content

    async def read(self):
        return self._content


class Around:
    """Everything around the agent; notes what it is sent. `app` is its own."""

    def __init__(self, answers):
        self.answers, self.sent, self.app = iter(answers), [], None

    async def request(self, method, url, _internal, json, cookies=None):
        if url == f"{AGENT}/v1/responses":
            return await self.ask_agent(json, cookies)
        cookies = {name: getattr(cookie, "value", cookie) for name, cookie in (cookies or {}).items()}
        cookies = {name: value for name, value in cookies.items() if name.startswith("of")}
        self.sent.append((method, url, orjson.dumps(json), cookies))
        path = url.rpartition("/")[2]
        count = len(self.sent)
        if path == "responses":
            return Answer(200, orjson.dumps(next(self.answers)), {"of_model": f"m{count}"})
        content = json | {"reward": 0.5} if path == "verify" else {"output": [count]}
        return Answer(200, orjson.dumps(content), {"of_resource": f"r{count}"})

    async def ask_agent(self, json, cookies):
        cookies = "; ".join(f"{name}={getattr(cookie, 'value', cookie)}" for name, cookie in cookies.items())
        headers = {"Content-Type": "application/json", "Cookie": cookies}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=AGENT) as client:
            answer = await client.post("/v1/responses", content=orjson.dumps(json), headers=headers)
        assert answer.status_code == 200
        return Answer(200, answer.content, dict(answer.cookies))


def rolled_out(monkeypatch, row, answers, over_http):
    """(what the agent sent, what it answered to /run) of one rollout."""

    def server(kind, port):
        return {kind: {"one": {"host": "127.0.0.1", "port": port}}}

    servers = {"agent": server("a", 1), "resource": server("r", 2), "model": server("m", 3)}
    client = ServerClient(
        head_server_config=BaseServerConfig(host="127.0.0.1", port=4), global_config_dict=OmegaConf.create(servers)
    )
    config = simple_agent.SimpleAgentConfig(
        host="127.0.0.1", port=1, entrypoint="", name="agent", max_steps=6,
        resources_server={"type": "resources_servers", "name": "resource"},
        model_server={"type": "responses_api_models", "name": "model"},
    )  # fmt: skip
    agent, around = simple_agent.SimpleAgent(config=config, server_client=client), Around(answers)
    around.app = agent.setup_webserver()
    agent.setup_exception_middleware(around.app)
    monkeypatch.setattr(simple_agent, "request", around.request)
    if over_http:
        monkeypatch.setattr(
            simple_agent.SimpleAgent, "ask_itself", lambda self, **what: self.server_client.post(**what)
        )
    answer = TestClient(around.app).post("/run", json=row | {"rollout_id": "r"})
    return around.sent, (answer.status_code, answer.content)


def odd_rows(row):
    params = row["responses_create_params"]
    output = {"type": "function_call_output", "call_id": "call_x", "output": "o"}
    for changes in (
        {"input": "as text"},
        {"temperature": 1, "top_p": 0.5, "max_output_tokens": 7, "metadata": {"a": "b"}},
        {"tool_choice": {"type": "function", "name": "email_search_emails"}, "parallel_tool_calls": False},
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}},
        {"input": [*params["input"], DONE, call("x", "{}"), output]},
    ):
        yield row | {"responses_create_params": params | changes}


def assert_same(monkeypatch, row, policy):
    with monkeypatch.context() as direct:
        ours = rolled_out(direct, row, POLICIES[policy], over_http=False)
    with monkeypatch.context() as http:
        theirs = rolled_out(http, row, POLICIES[policy], over_http=True)
    assert ours == theirs
    assert ours[1][0] == 200 and ours[0]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "no response"])
def test_an_agent_that_asks_itself_sends_and_answers_the_same(monkeypatch, policy):
    for row in ROWS:
        assert_same(monkeypatch, row, policy)


def test_so_it_does_with_odd_rows(monkeypatch):
    for row in odd_rows(ROWS[0]):
        assert_same(monkeypatch, row, "calls")


@pytest.mark.shared_data
def test_so_it_does_with_other_rows(monkeypatch):
    for row in read_rows(SHARED_DATA / "workbench_dev.jsonl")[::10]:
        assert_same(monkeypatch, row, "calls")


def test_a_fault_of_its_own_calls_is_answered_500(monkeypatch):
    _, (status, text) = rolled_out(monkeypatch, ROWS[0], POLICIES["no response"], over_http=False)
    assert status == 500 and b"invalid response from model server" in text
