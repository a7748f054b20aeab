"""A Gateway without a graph: it runs trials like the agent, with tools that answer "ok" and a verifier that compares.

It calls the trial's model API at most six times and keeps trajectories. The reward is 1 where the calls whose
arguments parse are those of the ground truth, in order. A test may give two functions: `fate(number)` ends the
trial of that number with the snapshot's fields that it returns, and `refuse(payload)` refuses one with the
(status, error) that it returns; None leaves the trial alone.
"""

import json
import threading

import requests

from support.http_server import HttpServer

READY = {
    "ready": True,
    "protocol_version": "relax-nemo-gym/v1",
    "gateway_version": "1.1",
    "environment": {"gym_commit": "a" * 40, "pandas": "2.3.2"},
}
MAX_STEPS = 6


class PlayingGateway(HttpServer):
    def __init__(self, fate=None):
        super().__init__()
        self.fate, self.refuse = fate or (lambda number: None), lambda payload: None
        self.ready, self.trials, self.payloads, self.aborted = dict(READY), {}, [], set()

    def answer(self, request):
        if request.path == "/readyz":
            return 200 if self.ready["ready"] else 503, self.ready
        if request.path == "/v1/trials":
            if refused := self.refuse(request.json()):
                return refused[0], {"error": refused[1]}
            return 202, self.create(request.json())
        trial = self.trials[request.bare_path.split("/")[3]]
        if request.path.endswith("/trajectory"):
            return 200, {"request_id": trial["request_id"], **trial["trajectory"]}
        if request.method == "GET":
            trial["ended"].wait(float(request.query.get("wait_s", ["0"])[0]))
            return 200, self.show(trial)
        if request.path.endswith("/abort") and trial["status"] == "running":
            self.aborted.add(trial["request_id"])
            trial |= {"status": "aborted", "error": {"code": "aborted"}}
            trial["ended"].set()
        return 202, self.show(trial)

    def create(self, payload):
        request_id = payload["request_id"]
        trial = self.trials[request_id] = {"request_id": request_id, "status": "running", "ended": threading.Event()}
        number = len(self.payloads)
        self.payloads.append(payload)
        threading.Thread(target=self._own, args=(trial, payload, number), daemon=True).start()
        return self.show(trial)

    def show(self, trial):
        hidden = ("ended", "trajectory")
        empty = {"reward": None, "metrics": {}, "artifact_ref": None, "error": None}
        return empty | {key: value for key, value in trial.items() if key not in hidden}

    def _own(self, trial, payload, number):
        end = self.fate(number) or self._play(trial, payload)
        if trial["status"] == "running":
            trial.update(end)
            trial["artifact_ref"] = f"/v1/trials/{trial['request_id']}/trajectory" if "trajectory" in trial else None
        trial["ended"].set()

    def _play(self, trial, payload):
        row, endpoint = payload["environment"]["task"], payload["model_endpoint"]
        params = row["responses_create_params"]
        output, tokens, turns = [], {"input_tokens": 0, "output_tokens": 0}, 0
        while turns < MAX_STEPS:
            turns += 1
            answer = self._ask(endpoint, params | {"input": params["input"] + output})
            if not isinstance(answer, dict):
                return {
                    "status": "failed",
                    "error": {"code": "agent_error", "type": "endpoint_status", "cause": answer},
                }
            output += answer["output"]
            for name in tokens:
                tokens[name] += (answer.get("usage") or {}).get(name, 0)
            calls = [item for item in answer["output"] if item["type"] == "function_call"]
            output += [self._tool(call, {tool["name"] for tool in params["tools"]}) for call in calls]
            if answer.get("incomplete_details") or not calls:
                break
        if payload["metadata"].get("trajectory") is True:
            trial["trajectory"] = {"input": params["input"], "output": output}
        ended = {"status": "completed", "reward": grade(output, row["ground_truth"])}
        if limit := answer.get("incomplete_details"):
            ended |= {"status": "truncated", "error": {"code": "response_incomplete", "type": limit["reason"]}}
        return ended | {"metrics": {"model_calls": turns} | {name: count for name, count in tokens.items() if count}}

    def _ask(self, endpoint, body):
        with requests.Session() as client:
            client.trust_env = False
            headers = {"Authorization": f"Bearer {endpoint['api_key']}"}
            try:
                answer = client.post(f"{endpoint['base_url']}/v1/responses", json=body, headers=headers, timeout=60)
            except requests.RequestException as error:
                return f"{endpoint['base_url']}: {type(error).__name__}"
        return answer.json() if answer.status_code == 200 else f"{endpoint['base_url']} answered {answer.status_code}"

    def _tool(self, call, names):
        try:
            json.loads(call["arguments"])
            result = {"output": "ok"} if call["name"] in names else {"output": f"Error executing tool '{call['name']}'"}
        except ValueError as error:
            result = {"error": f"Invalid tool call arguments: {error!r}"}
        return {"type": "function_call_output", "call_id": call["call_id"], "output": json.dumps(result)}


def grade(output, ground_truth):
    calls = [(item["name"], parsed(item["arguments"])) for item in output if item["type"] == "function_call"]
    wanted = [(call["name"], json.loads(call["arguments"])) for call in ground_truth]
    return float([call for call in calls if call[1] is not None] == wanted)


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None
