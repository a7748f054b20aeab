"""Whether an endpoint is fit to be evaluated: one call for its wire and name, then many tool calls at once.

Tool calls may parse alone and fail under load, stay in the text as the model wrote them, lose their last brace or gain
text behind it. Each of these would look like a policy that is bad at its task.

Guarantees:
- `look` and `crowd` ask, in words, for calls from the task's own rows, with the rows' tools and the evaluation's
  parameters.
- Answers are classified, each kind with the setting that cures it. They judge the endpoint's parsing, not the policy's
  skill.
"""

import json
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

from common import failure
from common.failure import Failure
from evaluation.metrics import CALL_AS_TEXT, SPECIAL, arguments_of, text_of
from inputs.rows import WRAPPER, Row
from policy.answers import NO_CALLS
from policy.endpoint import Endpoint, insist
from policy.replies import EndpointFault, Json, PolicyFault

PARSED, LEFT, EMPTY = "parsed", "left in the text", "empty list"
UNPARSABLE, NO_CALL, FAILED = "unparsable", "no call", "failed"
TOKENS, RENAMED = "special tokens in the name", "name with a prefix, a suffix or other letters"
LOST, RETYPED = "lost argument", "changed type"
PARSER = (
    "set the endpoint's tool-call parser: vLLM --enable-auto-tool-choice --tool-call-parser hermes, "
    "SGLang --tool-call-parser qwen (as fits the model), llama.cpp --jinja"
)
CURES = {
    LEFT: PARSER,
    EMPTY: PARSER,
    UNPARSABLE: "the parser loses or adds text, often under load: update the engine, or try another parser",
    TOKENS: "the parser does not know the model's template: choose the one made for this model, or update the engine",
    RENAMED: "the server renames tools: choose another parser, or a server that gives the names as they are",
    LOST: "the parser loses arguments: update the engine, or choose another parser",
    RETYPED: "the parser changes the types of arguments: update the engine, or choose another parser",
    NO_CALL: f"the model answered in words; if it always does so, {PARSER}",
    FAILED: "see the endpoint's log; lower EVAL_CONCURRENCY if it cannot take so many calls at once",
}
HINTS = {
    "quota": "; raise the account's limit, or use another key (MODEL_API_KEY)",
    "prompt_too_long": "; start the endpoint with a larger context (vLLM --max-model-len, llama.cpp -c)",
    "unreachable": "; is the endpoint up, and MODEL_URL right?",
}
NAME_LENGTH, LAST_WORDS_S, NO_ANSWER = 200, 1, "no answer"


class Finding(NamedTuple):
    """What became of a call: its kind, and what shows it."""

    kind: str
    shown: str = ""


def calls_of(task_rows: Sequence[Row]) -> list[tuple[Row, dict[str, Any]]]:
    """(row, first call of its ground truth) of the rows that have any."""
    return [(row, row["ground_truth"][0]) for row in task_rows if row["ground_truth"]]


def request(row: Row, call: dict[str, Any]) -> dict[str, Any]:
    """The Responses call that asks for `call` in words."""
    params = {key: value for key, value in row[WRAPPER].items() if key != "metadata"}
    text = f"Call the tool {call['name']} now, with exactly these arguments: {call['arguments']}. Say nothing else."
    return params | {"input": [{"type": "message", "role": "user", "content": text}]}


def judge(answer: Json, asked: dict[str, Any]) -> Finding:
    """Classify an answer to the request for the call `asked`."""
    items = answer["output"]
    calls = [item for item in items if item["type"] == "function_call"]
    if broken := [call for call in calls if arguments_of(call) is None]:
        return Finding(UNPARSABLE, how_broken(broken[0]["arguments"]))
    if calls:
        return damage(calls[0], asked) or Finding(PARSED)
    text = text_of(items)
    return Finding(LEFT, text) if CALL_AS_TEXT.search(text) else Finding(NO_CALL, text)


def damage(call: dict[str, Any], asked: dict[str, Any]) -> Finding | None:
    """What the wire did to a call, by what was asked for; None if nothing. Other values are the model's own choice."""
    name, wanted = call["name"], asked["name"]
    if name != wanted and wanted.lower() in name.lower():
        return Finding(TOKENS if SPECIAL.search(name) else RENAMED, name)
    given, values = arguments_of(call) or {}, arguments_of(asked) or {}
    if name != wanted or given == values:
        return None
    if lost := [key for key in values if key not in given]:
        kept = all(given[key] == values[key] for key in given if key in values)
        return Finding(LOST, f"{name} without {', '.join(lost)}") if kept and given.keys() <= values.keys() else None
    if changed := [key for key in values if given[key] != values[key] and str(given[key]) == str(values[key])]:
        return Finding(
            RETYPED, f"{changed[0]} is {json.dumps(given[changed[0]])}, not {json.dumps(values[changed[0]])}"
        )
    return None


def how_broken(arguments: Any) -> str:
    """In words, what is wrong with arguments that are not the JSON text of an object."""
    if not isinstance(arguments, str):
        return f"not a text: {str(arguments)[:60]}"
    try:
        json.loads(arguments)
    except RecursionError:
        return "nested too deep"
    except ValueError as error:
        if str(error).startswith("Extra data"):
            return f"text behind the arguments: {arguments[-60:]}"
        if arguments_of({"arguments": arguments + "}"}) is not None:
            return f"the last brace is lost: {arguments[-60:]}"
        return f"{error}: {arguments[:60]}"
    return f"not an object: {arguments[:60]}"


def look(endpoint: Endpoint, task_rows: Sequence[Row], tries: int, seconds: float) -> str:
    """Make one call: the model's name as the endpoint reports it. Raises Failure without an answer."""
    row, call = (calls_of(task_rows) or [(task_rows[0], {"name": "(none)", "arguments": "{}"})])[0]
    try:
        answer = _patiently(lambda: endpoint.answer(request(row, call)), tries, seconds)
    except (EndpointFault, PolicyFault) as fault:
        if isinstance(fault, EndpointFault) and fault.kind == NO_CALLS:
            return endpoint.model  # a matter of its parser, which `crowd` judges
        raise Failure(f"MODEL_URL: {fault.message}{_hint(endpoint, fault)}") from None
    return failure.printable(answer.get("model") or endpoint.model)[:NAME_LENGTH]


def _hint(endpoint: Endpoint, fault: EndpointFault | PolicyFault) -> str:
    if isinstance(fault, PolicyFault):
        return ""
    wires = {"/v1/responses": "chat", "/v1/chat/completions": "responses"}
    if fault.status in (404, 405, 501):
        wire, listed = f"is it the right wire? The other one is WIRE={wires[endpoint.wire.path]}", endpoint.models()
        if not listed or endpoint.model in listed:
            return f"; {wire}"
        return f"; it lists {', '.join(listed[:5])}, not MODEL={endpoint.model}; if that is a name of it, {wire}"
    if fault.status in (401, 403):
        return "; MODEL_API_KEY is missing or not the right one"
    if fault.kind == "status":
        return HINTS["unreachable"] if fault.status >= 500 else ""
    return HINTS.get(fault.kind, "")


def crowd(endpoint: Endpoint, task_rows: Sequence[Row], count: int, tries: int, seconds: float) -> list[Finding]:
    """Send `count` calls at once, repeating the rows where there are fewer."""
    wanted, findings = calls_of(task_rows), [Finding(FAILED, NO_ANSWER)] * count
    start = threading.Barrier(count)

    def send(index: int) -> None:
        row, call = wanted[index % len(wanted)]
        start.wait()
        try:
            answer = _patiently(lambda: endpoint.answer(request(row, call)), tries, seconds)
            findings[index] = judge(answer, call)
        except PolicyFault as fault:
            findings[index] = Finding(UNPARSABLE, fault.message)
        except EndpointFault as fault:
            findings[index] = Finding(EMPTY if fault.kind == NO_CALLS else FAILED, fault.message)

    # Daemons: Ctrl-C must not wait for answers that the endpoint still owes.
    threads = [threading.Thread(target=send, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return findings


def _patiently(ask: Callable[[], Any], tries: int, seconds: float) -> Any:
    """`insist` for about `seconds` at most, even where an answer arrives byte by byte. Raises as it does."""
    ended, outcome = threading.Event(), futures.Future()

    def work() -> None:
        try:
            outcome.set_result(insist(ask, tries, ended))
        except BaseException as error:  # handed to the waiting thread
            outcome.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    for patience in (seconds, LAST_WORDS_S):
        if futures.wait([outcome], patience).done:
            return outcome.result()
        ended.set()
    raise EndpointFault("timeout", f"{NO_ANSWER} within {seconds:g} s")


def accept(findings: Sequence[Finding], share: float) -> str:
    """The line for a crowd of which at most `share` was not parsed. Raises Failure for any other."""
    kinds = Counter(finding.kind for finding in findings)
    bad = len(findings) - kinds[PARSED]
    counts = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    line = f"{len(findings)} tool calls at once: {counts}; not parsed: {bad / len(findings):.1%}"
    if bad <= share * len(findings):
        return line
    kind = next(kind for kind, _ in kinds.most_common() if kind != PARSED)
    shown = " ".join(next(finding.shown for finding in findings if finding.kind == kind).split())[:200]
    raise Failure(
        f"{line}, more than EVAL_UNPARSED_SHARE={share:g}. {kind}: {shown!r}; {CURES[kind]}; "
        "or accept it with EVAL_UNPARSED_SHARE, or leave the check out with EVAL_PREFLIGHT=0"
    )
