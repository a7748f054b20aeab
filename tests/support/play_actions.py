"""Plays action lists against a resource server's application without a network, and prints what came back.

Run by outcomes.py with the folder of a NeMo Gym tree that goes before the installed one:
`python play_actions.py TREE < episodes.json`. An episode is {"row", "calls": [[tool, arguments]]}; for each
one it prints {"outputs": [[status, text]], "reward"} where verifying saw the calls as the policy's.
"""

import json
import sys
from unittest.mock import MagicMock

sys.path.insert(0, sys.argv[1])

from fastapi.testclient import TestClient  # noqa: E402
from nemo_gym.server_utils import ServerClient  # noqa: E402
from resources_servers.workplace_assistant import app  # noqa: E402


def application():
    config = app.WorkbenchResourcesServerConfig(host="127.0.0.1", port=8080, entrypoint="", name="")
    server = app.WorkbenchResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))
    return server.setup_webserver()


def response_of(calls):
    """A model's answer that made these calls, in the shape that verifying wants."""
    output = [
        {"type": "function_call", "call_id": f"c{index}", "name": name, "arguments": json.dumps(arguments)}
        for index, (name, arguments) in enumerate(calls)
    ]
    fields = {"id": "r", "created_at": 0, "model": "model", "object": "response", "tools": [], "tool_choice": "auto"}
    return fields | {"parallel_tool_calls": False, "output": output}


def play(web, episode):
    with TestClient(web, raise_server_exceptions=False) as client:
        client.post("/seed_session", json=episode["row"]).raise_for_status()
        answers = [client.post(f"/{name}", json=arguments) for name, arguments in episode["calls"]]
        verified = client.post("/verify", json=episode["row"] | {"response": response_of(episode["calls"])})
    reward = verified.json().get("reward") if verified.status_code == 200 else verified.status_code
    return {"outputs": [[answer.status_code, answer.text] for answer in answers], "reward": reward}


def main():
    web = application()
    episodes = json.load(sys.stdin)
    json.dump({"file": app.__file__, "played": [play(web, episode) for episode in episodes]}, sys.stdout)


if __name__ == "__main__":
    main()
