"""The graph's configuration as the supervisor writes it and the Gateway reads it."""

from pathlib import Path

from common import settings as variables
from gateway.app import graph_urls
from servers import supervise


def test_each_agent_is_bound_to_its_own_resource_server_and_all_to_the_gateway():
    settings = variables.load({"GYM_REPLICAS": "3"}, environment={}, dotenv=Path("/nonexistent/.env"))
    config = supervise.Servers(settings, "127.0.0.1:1").config()
    assert graph_urls(config) == [
        (settings.local_url(f"agent{suffix}"), settings.local_url(f"resource{suffix}")) for suffix in ("", "_2", "_3")
    ]
    for suffix in ("", "_3"):
        agent = config[f"workplace_assistant_simple_agent{suffix}"]["responses_api_agents"]["simple_agent"]
        assert agent["model_server"]["name"] == "policy_model" and agent["max_steps"] == 6
        assert agent["host"] == "127.0.0.1"
