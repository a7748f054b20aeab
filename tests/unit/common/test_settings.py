"""Variables: every kind, every place they come from, every way to get one wrong."""

import math
import os
import shutil
import sys
from ipaddress import ip_network
from pathlib import Path

import pytest

from common import settings
from common.settings import SettingsError, Variable, declared, load
from proofs.fault_matrix import FAULTS
from support.programs import run

SECRET = "secret-that-nobody-may-see"
UNKNOWN = "is not a variable of env.example; did you mean"
UNCHANGED = [
    *(("text", "two words, é"), ("secret", SECRET), ("url", "https://[::1]:1")),
    *(("host", "head-1.cluster"), ("host", "fd00::1"), ("ip", "0.0.0.0"), ("ip", "::")),
]
NETWORKS = ("10.0.0.0/8", "127.0.0.1/32", "fd00::/8")


def parse(kind, text, bounds=""):
    return Variable("NAME", "", kind, bounds, "", "", "").parse(text, "origin")


def refusal(call, *arguments, **more):
    """The message of the SettingsError that a call raises: one line without the secret."""
    with pytest.raises(SettingsError) as refused:
        call(*arguments, **more)
    message = str(refused.value)
    assert SECRET not in message and "\n" not in message
    return message


@pytest.fixture
def dotenv(tmp_path):
    def write(text):
        path = tmp_path / ".env"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def loaded(dotenv_path=Path("/nonexistent/.env"), overrides=None, **environment):
    return load(overrides, environment=environment, dotenv=dotenv_path)


@pytest.mark.parametrize(
    ("kind", "bounds", "text", "value"),
    [
        ("int", "1..10", "1", 1),
        ("int", "1..10", "10", 10),
        ("float", "0.5..60", "0.5", 0.5),
        ("float", "0..60", "1e1", 10.0),
        ("choice", "a|b", "b", "b"),
        *((kind, "", text, text) for kind, text in UNCHANGED),
        *((f"{kind}?", "a|b", "", None) for kind in ("text", "secret", "path", "url", "choices")),
        ("secret", "", "", None),
        ("path", "", "data/x", settings.ROOT / "data/x"),
        ("path", "", "/abs", Path("/abs")),
        ("path", "", "~/x", Path.home() / "x"),
        ("url", "", "http://10.0.0.5:8000/api/", "http://10.0.0.5:8000/api"),
        ("choices?", "a|b-c", " b-c,a,", ["b-c", "a"]),
        ("cidrs", "", "", []),
        ("cidrs", "", " 10.0.0.0/8 , 127.0.0.1/32,fd00::/8,", list(map(ip_network, NETWORKS))),
    ],
)
def test_a_value_of_its_kind_is_taken(kind, bounds, text, value):
    assert parse(kind, text, bounds) == value


@pytest.mark.parametrize(
    ("kind", "bounds", "text", "words"),
    [
        *(("int", "1..10", text, "outside 1..10") for text in ("0", "11")),
        *(("int", "1..10", text, "not a whole number in 1..10") for text in ("1.5", "", "five")),
        *(("float", "0.5..60", text, "outside") for text in ("0.4", "nan", "inf")),
        ("float", "0.5..60", "", "not a number"),
        *(("choice", "a|b", text, "none of a, b") for text in ("c", "a|b", "")),
        ("choices", "a|b", "b,c", "holds 'c', which is none of a, b"),
        ("choices?", "a|b", ",", "names nothing"),
        ("text", "", "", "is empty"),
        *(("text", "", text, "control") for text in ("a\nb", "a\0b")),
        *(("path", "", text, "not a path") for text in ("", "a\0b")),
        *(("url", "", text, "not an http(s) URL") for text in ("", "10.0.0.5:8000", "ftp://10.0.0.5", "http://")),
        *(("url", "", f"http://h{more}", "not an http(s) URL") for more in (":99999", ":port", "?x=1", "#x")),
        ("url", "", "http://[::1", "not an http(s) URL"),
        *(("host", "", text, "not a host") for text in ("http://h", "h/x", "a b", "")),
        *(("ip", "", text, "not an IP address") for text in ("localhost", "10.0.0")),
        ("cidrs", "", "10.0.0.1/8", "no strict CIDR"),
        ("cidrs", "", "10.0.0.0/8,nonsense", "'nonsense'"),
        *(("cidrs", "", text, "covers every address") for text in ("0.0.0.0/0", "10.0.0.0/8, ::/0")),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name_and_place(kind, bounds, text, words):
    message = refusal(parse, kind, text, bounds)
    assert message.startswith(f"origin: NAME={text!r}") and words in message


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *(("secret", f"{SECRET}{more}") for more in (f" {SECRET}", "é", "\n", "\x7f")),
        *(("url", f"http://{user}@h:80") for user in (f"user:{SECRET}", f":{SECRET}", SECRET, "")),
    ],
)
def test_a_secret_or_user_that_does_not_fit_is_not_shown(kind, text):
    assert refusal(parse, kind, text).startswith("origin: NAME ")


def test_the_faults_it_names_are_those_of_the_matrix():
    assert declared()["FAULTS"].bounds.split("|") == list(FAULTS)


@pytest.mark.parametrize("variable", declared().values(), ids=lambda variable: variable.name)
def test_every_variable_says_what_it_means_and_its_default_fits(variable):
    assert variable.kind in settings.KINDS
    assert variable.group and variable.meaning.endswith(".") and len(variable.meaning) > 10
    assert variable.name == variable.name.upper()
    value = variable.parse(variable.default, "env.example")
    if variable.kind in ("int", "float"):
        low, high = map(float, variable.bounds.split(".."))
        assert variable.optional if value is None else low <= value <= high and math.isfinite(value)
        assert variable.unit, "a number has a unit"


def test_defaults_alone_are_enough():
    defaults = loaded()
    assert {defaults.port(name) for name in settings.PORT_OFFSETS} == set(range(29000, 29005))
    assert defaults.gateway_url == defaults.local_url("gateway") == "http://127.0.0.1:29000"
    assert defaults.rows_path() == settings.ROOT / "data/nemo-gym/workplace_assistant_example.jsonl"
    assert defaults.rows_path("train").name == "workplace_assistant_train.jsonl"
    assert defaults.GATEWAY_TOKEN is None
    with pytest.raises(AttributeError, match="NOT_THERE"):
        _ = defaults.NOT_THERE


def test_what_follows_from_variables():
    assert loaded(GYM_HOST="fd00::1").gateway_url == "http://[fd00::1]:29000"
    assert loaded(NEMO_GYM_URL="http://a:1/x/").gateway_url == "http://a:1/x"
    assert loaded(NEMO_GYM_SOURCE_DATA="/rows.jsonl").rows_path() == Path("/rows.jsonl")
    assert loaded(NEMO_GYM_SOURCE_DATA="/rows.jsonl").rows_path("train").name == "workplace_assistant_train.jsonl"
    assert loaded(GYM_BASE_PORT="20000").port("callbacks") == 20004


def test_the_command_line_goes_before_the_environment_before_dotenv_before_the_example(dotenv):
    path = dotenv("LIMIT=2\nMODEL=from-file\n")
    assert loaded().LIMIT == 0
    assert loaded(path).LIMIT == 2
    assert loaded(path, LIMIT="3").LIMIT == 3
    assert loaded(path, {"LIMIT": "4"}, LIMIT="3").LIMIT == 4
    assert loaded(path, {"LIMIT": None}, LIMIT="3").LIMIT == 3
    assert loaded(path, LIMIT="3").MODEL == "from-file"


def test_dotenv_takes_comments_blanks_exports_and_quotes(dotenv):
    path = dotenv("\ufeff# mine\n\nexport LIMIT=2\n  MODEL = 'a b'  \nMODEL_URL=\"http://h:1\"\nGYM_HOST=h\r\n")
    values = loaded(path)
    assert (values.LIMIT, values.MODEL, values.MODEL_URL, values.GYM_HOST) == (2, "a b", "http://h:1", "h")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\nLIMTI=2\n", f".env:2: LIMTI {UNKNOWN} LIMIT?"),
        ("limit=2\n", "did you mean LIMIT?"),
        ("# a\nLIMIT=many\n", ".env:2: LIMIT='many' is not a whole number"),
        (f"GATEWAY_TOKEN {SECRET}\n", ".env:1: not a NAME=value line"),
        (f"GATEWAY_TOKEN={SECRET} {SECRET}\n", ".env:1: GATEWAY_TOKEN holds characters"),
        (f"GATEWAY_TOKN={SECRET}\n", "did you mean GATEWAY_TOKEN?"),
        (b"LIMIT=\xff\n", ".env cannot be read as text"),
    ],
)
def test_a_fault_in_dotenv_is_named_by_line_and_shows_no_secret(dotenv, text, words):
    assert words in refusal(loaded, dotenv(text))
    assert "cannot be read" in refusal(loaded, dotenv(text).parent)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"GYM_BASE_PROT": "1"}, f"environment: GYM_BASE_PROT {UNKNOWN} GYM_BASE_PORT?"),
        ({"GATEWAY_TOKN": SECRET}, "GATEWAY_TOKN"),
        ({"REHEARSAL_POLCY": "noop"}, "did you mean REHEARSAL_POLICY?"),
        ({"WORKPLACE_ASSISTANT_MAX": "1"}, "WORKPLACE_ASSISTANT_MAX"),
        ({"LIMIT": "-1"}, "environment: LIMIT='-1' is outside"),
        ({"GATEWAY_TOKEN": f"a {SECRET}"}, "environment: GATEWAY_TOKEN holds"),
        ({"LIMIT": "x", "MAKEFLAGS": " -- RUN=a LIMIT=x"}, "make's command line: LIMIT='x' is not a whole number"),
        ({"LIMIT": "x", "MAKEFLAGS": " -- MODEL=a\\ LIMIT=x"}, "environment: LIMIT='x' is not a whole number"),
        ({"MAKEFLAGS": " -- SPLTI=train"}, f"make's command line: SPLTI {UNKNOWN} SPLIT?"),
        ({"MAKEFLAGS": "s -j2 --jobserver-auth=3,4 -- LIMIT=1 LIMITS=1"}, "did you mean LIMIT?"),
        ({"MAKEFLAGS": " -- split=train"}, f"make's command line: split {UNKNOWN} SPLIT?"),
        ({"MAKEFLAGS": " -- SPLTI:=train"}, "did you mean SPLIT?"),
    ],
)
def test_a_misspelt_name_or_value_off_its_range_is_named(environment, words):
    assert words in refusal(loaded, **environment)


@pytest.mark.parametrize(
    "environment",
    [
        {"MAKEFLAGS": "k"},
        {"MAKEFLAGS": "s -j2 --jobserver-auth=3,4 -- SPLIT=train"},
        {"MAKEFLAGS": " -- DATA_ROOT=/a\\ B=c LIMIT=1"},
        {"MAKEFLAGS": " -- prefix=/usr"},
        {"PATH": "/bin", "HOME": "/", "RAY_ADDRESSES": "1", "MODELS": "x", "NEMO_GYM_LOG_DIR": "x"},
    ],
)
def test_names_of_others_are_none_of_our_business(environment):
    assert loaded(**environment).SPLIT == "example"


def test_a_program_among_variables_of_others_checks_only_its_own():
    environment = {"LIMIT": "many", "GYM_SOMETHING": "x", "NEMO_GYM_MODEL": "m"}
    values = load(environment=environment, dotenv=Path("/nonexistent/.env"), names=["NEMO_GYM_MODEL"])
    assert values.NEMO_GYM_MODEL == "m"
    with pytest.raises(AttributeError):
        _ = values.LIMIT


def run_with(*command, **environment):
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    kept |= {"PYTHONPATH": str(settings.ROOT / "scripts"), **environment}
    return run(*command, env=kept)


CODE = "from common import settings; s, _ = settings.from_command_line('Says.', 'LIMIT'); print(s.LIMIT, s.MODEL)"


def stage(*arguments, **environment):
    """Run a stage that prints LIMIT and MODEL."""
    return run_with(sys.executable, "-c", CODE, *arguments, **environment)


def test_a_stage_takes_options_and_explains_them():
    assert stage("--limit", "7", MODEL="m", LIMIT="3").stdout == "7 m\n"
    shown = stage("--help")
    assert shown.returncode == 0
    assert "--limit INT" in shown.stdout and "0..10000000 rows; default 0" in " ".join(shown.stdout.split())


def test_a_stage_refuses_in_one_line():
    for refused in (stage("--limit", "x"), stage(LIMIT="x"), stage(GYM_BASE_PROT="1")):
        assert refused.returncode == 2 and refused.stdout == ""
        assert refused.stderr.startswith("error: ") and refused.stderr.count("\n") == 1
    assert stage("--lim", "7").returncode == 2


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_name_given_to_make_reaches_the_stage_or_is_refused(tmp_path):
    (tmp_path / "say.py").write_text(CODE)
    (tmp_path / "Makefile").write_text(f"say:\n\t@{sys.executable} {tmp_path}/say.py\n")

    def make(*arguments):
        return run_with("make", "-C", str(tmp_path), "--no-print-directory", *arguments)

    assert make("LIMIT=4", "MODEL=a B=c").stdout == "4 a B=c\n"
    for argument in ("LIMITS=4", "limit=4", "LIMITS:=4", "LIMIT=many"):
        refused = make(argument)
        assert refused.returncode and "error: make's command line: " in refused.stderr and "LIMIT" in refused.stderr
