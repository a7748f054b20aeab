"""The doctor as a whole: its output, what a stage makes of its checks, and that it changes nothing.

Each check's own tests are in tests/unit/checks.
"""

import json
import os
import re
import shutil
import socket
import sys
import time
from pathlib import Path

import pytest

import doctor
from checks import registry
from checks.probe import fail, ok, warn
from common import program
from common import settings as variables
from common.failure import Failure
from common.settings import ROOT
from servers import ports, processes
from support.doctor_case import NOWHERE, Silent, case_of, free_base
from support.programs import only_error, run


@pytest.fixture
def clean(tmp_path):
    """An environment of a machine on which nothing of ours is set, with folders of its own."""
    names = variables.declared()
    kept = {name: text for name, text in os.environ.items() if name not in names and "proxy" not in name.lower()}
    places = {name: str(tmp_path / name.lower()) for name in ("RUN_DIR", "DATA_ROOT", "MODEL_DIR", "EXP_DIR", "TMPDIR")}
    (tmp_path / "tmpdir").mkdir()
    base = free_base()
    return kept | places | {"GYM_BACKEND": "local", "GYM_BASE_PORT": str(base), "GYM_RAY_PORT": str(base + 200)}


def run_doctor(environment, *arguments, clone=ROOT):
    return run(clone / "scripts" / "run.sh", "doctor", *arguments, env=environment)


def answer_of(environment, *arguments, clone=ROOT):
    """(exit status, the JSON object)."""
    done = run_doctor(environment, "--json", *arguments, clone=clone)
    assert done.stderr == "", done.stderr
    return done.returncode, json.loads(done.stdout)


# --- the table -----------------------------------------------------------------------------


def test_checks_have_names_of_their_own_and_stages_that_are_targets():
    names = [check.name for check in registry.CHECKS]
    assert len(names) == len(set(names)) and all(len(name) <= 20 for name in names)
    for check in registry.CHECKS:
        assert set(check.stages) | set(check.starts) <= set(registry.STAGES)
        assert not check.stages or set(check.starts) <= set(check.stages)
    lines = re.findall(r"^([a-z-]+):.*\n\t@(.+)", (ROOT / "Makefile").read_text(), re.M)
    assert set(registry.STAGES) <= {target for target, _ in lines}
    scripts = [(target, name) for target, line in lines for name in re.findall(r"scripts/run\.sh (\w+)", line)]
    without = {name for _, name in scripts if registry.stage_of(name) not in registry.STAGES}
    assert without == {"doctor", "stop", "report", "gym_down", "compare", "faults", "abuse"}
    assert all(registry.stage_of(name) == target for target, name in scripts if name not in without)
    assert set(registry.SCRIPTS) <= {name for _, name in scripts}


# --- one check -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "finding"),
    [
        (Failure("port 1 is taken; by whom; end it"), fail("port 1 is taken; by whom", "end it")),
        (ModuleNotFoundError("no", name="docker"), warn("not looked at: it needs the package docker", "make setup")),
        (OSError("odd\nmachine"), warn("not looked at: OSError: odd machine", "make setup; report it")),
    ],
)
def test_what_a_check_raises_becomes_its_finding(tmp_path, error, finding):
    def look(case):
        raise error

    assert registry.examine(registry.Check("x", look), case_of(tmp_path)) == [finding]


def test_a_check_that_hangs_is_given_up_and_holds_nobody(tmp_path):
    checks = [registry.Check("hangs", lambda case: time.sleep(60)), registry.Check("good", lambda case: ok("fine"))]
    began = time.monotonic()
    results = dict(registry.examine_all(checks, case_of(tmp_path), limit_s=0.5))
    assert time.monotonic() - began < 30
    assert results[checks[1]] == [ok("fine")]
    [silent] = results[checks[0]]
    assert silent.verdict == "warn" and "no answer within 0.5 s" in silent.what


def test_results_stand_in_the_tables_order(tmp_path):
    checks = [registry.Check(str(n), lambda case, n=n: time.sleep(0.02 * (5 - n)) or ok("x")) for n in range(5)]
    assert [check.name for check, _ in registry.examine_all(checks, case_of(tmp_path))] == list("01234")


def test_the_verdict_is_the_worst_of_all():
    good, bad = registry.Check("a", None), registry.Check("b", None)
    assert doctor.report("", [(good, [ok("x")])], 1)["verdict"] == "ok"
    assert doctor.report("", [(good, [ok("x"), warn("y", "z")])], 1)["verdict"] == "warn"
    worst = doctor.report("data", [(good, [warn("x", "y")]), (bad, [fail("u", "v")])], 1.234)
    assert worst["counts"] == {"ok": 0, "warn": 1, "fail": 1} and worst["verdict"] == "fail"
    assert worst["checks"][1] == {"check": "b", "verdict": "fail", "what": "u", "cure": "v"}


def test_a_line_says_verdict_name_and_cure_whatever_a_name_holds():
    line = registry.shown(registry.Check("ports", None), fail("port 1 is taken", "end it"))
    assert line.split() == ["fail", "ports:", "port", "1", "is", "taken;", "end", "it"]
    line = registry.shown(registry.Check("x", None), warn("a\nb\tc\x1b[1m", "rm 'a\nb'"))
    assert line.isprintable() and "a\ufffdb" in line


HOSTILE = [("", "[::1", b"garbage\r\n\r\n"), ("train", "a b:99999", b"\0"), ("model", "http://x:1", b"\0")]


@pytest.mark.parametrize(("stage", "ray", "word"), HOSTILE)
def test_hostile_values_break_no_check(tmp_path, monkeypatch, stage, ray, word):
    monkeypatch.setenv("DOCKER_HOST", "tcp://[::1")
    monkeypatch.setenv("HF_ENDPOINT", "http://[::1")
    (tmp_path / "binary").write_bytes(bytes(range(256)))
    model = tmp_path / "models" / "Qwen3-4B"
    model.mkdir(parents=True)
    (model / "config.json").write_text("[" * 100_000)
    with Silent(word) as odd:
        urls = {"RAY_DASHBOARD_ADDRESS": odd.url, "MODEL_URL": odd.url, "GYM_URLS": f"{odd.url}/x,{odd.url}"}
        files = {"NEMO_GYM_SOURCE_DATA": tmp_path, "TRAIN_ARGUMENTS": tmp_path / "binary", "RELAX_ROOT": "/dev/null"}
        files |= {"MODEL_DIR": tmp_path / "models", "GATEWAY_TOKEN_FILE": "/dev/null/x"}
        hosts = {"GYM_HOST": "x" * 300, "RELAX_HOST": ":::", "RAY_ADDRESS": ray, "GYM_BACKEND": "docker"}
        results = registry.examine_all(registry.CHECKS, case_of(tmp_path, stage, **urls, **files, **hosts), 4)
    assert not [(check.name, each) for check, found in results for each in found if "not looked at" in each.what]
    assert {each.verdict for _, found in results for each in found} >= {"ok", "fail"}


# --- the program ---------------------------------------------------------------------------


def test_one_object_or_one_line_a_finding_and_a_status_and_nothing_is_changed(clean, tmp_path):
    folders = [ROOT / "scripts", ROOT / "patches", ROOT / ".venv" / ".ready", tmp_path]
    before = snapshot(*folders)
    status, answer = answer_of(clean)
    assert snapshot(*folders) == before
    assert set(answer) == {"verdict", "stage", "counts", "seconds", "checks"} and answer["stage"] == "all"
    assert {line["check"] for line in answer["checks"]} == {check.name for check in registry.CHECKS}
    for line in answer["checks"]:
        assert set(line) == {"check", "verdict", "what", "cure"} and line["verdict"] in ("ok", "warn", "fail")
        assert line["what"] and bool(line["cure"]) == (line["verdict"] != "ok"), line
    assert (status == 1) == (answer["verdict"] == "fail") and status in (0, 1)
    done = run_doctor(clean)
    *lines, last = done.stdout.splitlines()
    assert all(re.match(r"(ok|warn|fail) +[\w' ]+: +\S", line) for line in lines), lines
    assert re.fullmatch(r"doctor: \d+ ok, \d+ warn, \d+ fail in [\d.]+ s", last)


def test_a_stage_has_its_own_checks_alone_and_an_unknown_one_is_refused(clean):
    _, answer = answer_of(clean, "--stage", "data")
    names = {line["check"] for line in answer["checks"]}
    assert answer["stage"] == "data" and "task rows" in names and not names & {"ports", "cluster", "model"}
    _, by_variable = answer_of({**clean, "STAGE": "data"})
    assert {line["check"] for line in by_variable["checks"]} == names
    done = run_doctor(clean, "--stage", "prod")
    assert done.returncode == 1 and done.stderr.startswith("error: STAGE=prod is no stage") and done.stdout == ""


def test_a_fail_is_the_exit_status_and_no_secret_is_shown(clean):
    secret = "never-show-me-0815"
    secrets = dict.fromkeys(("GATEWAY_TOKEN", "GATEWAY_TOKENS", "MODEL_API_KEY", "HF_TOKEN"), secret)
    environment = clean | secrets | {"GYM_BIND_HOST": NOWHERE, "http_proxy": f"http://user:{secret}@127.0.0.1:9"}
    done = run_doctor(environment, "--stage", "gym-up")
    assert done.returncode == 1 and f"GYM_BIND_HOST={NOWHERE} is no address" in done.stdout
    assert "GATEWAY_TOKENS is not a variable" in done.stdout
    assert secret not in done.stdout + done.stderr and "Traceback" not in done.stderr


# --- a stage's start -----------------------------------------------------------------------


def test_a_stage_stops_at_a_fail_before_it_does_anything(clean, tmp_path):
    done = run(*program.stage("gym_up"), env=clean | {"GYM_BIND_HOST": NOWHERE})
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: gateway address: GYM_BIND_HOST={NOWHERE}") and "set it to" in done.stderr
    assert "Backend" not in done.stdout and not (tmp_path / "run_dir").exists()


def test_a_stage_shows_warnings_alone_and_names_every_fail_at_once(tmp_path, capsys):
    settings = case_of(tmp_path, GYM_BIND_HOST="0.0.0.0", GATEWAY_TOKEN="short").settings
    registry.at_start("gym-up", settings)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("warn  token:") for line in lines)
    assert not any(line.startswith("ok") for line in lines)
    settings = case_of(tmp_path, GYM_BIND_HOST=NOWHERE, RELAX_HOST="192.168.7.7").settings
    with pytest.raises(Failure) as stopped:
        registry.at_start("gym-up", settings)
    assert "gateway address: " in str(stopped.value) and "\nerror: callback networks: " in str(stopped.value)


# --- before and after ----------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path):
    """A clone as git would make it of this working tree: no .venv, no data."""
    clone = tmp_path / "bare"
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in run(*listed, cwd=ROOT, check=True).stdout.splitlines():
        if not name.startswith("tests/") and (ROOT / name).exists():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    return clone


def snapshot(*folders):
    return {
        (str(path), found.st_mtime_ns, found.st_size, found.st_mode)
        for folder in folders
        for path in (folder, *folder.rglob("*"))
        if (found := path.lstat())
    }


def test_it_runs_on_a_bare_clone_with_a_broken_env_and_changes_nothing(clean, bare, tmp_path):
    (bare / ".env").write_text("GYM_BASE_PORT=abc\nnonsense\nLIMTI=3\n")
    (bare / ".env").chmod(0o600)
    before, listening = snapshot(tmp_path), {(a, p) for a, p, _ in ports.listening()}
    environment = {name: text for name, text in clean.items() if name not in ("GYM_BASE_PORT", "GYM_RAY_PORT")}
    status, answer = answer_of(environment, clone=bare)
    assert snapshot(tmp_path) == before
    assert not [p for p in processes.processes() if str(bare) in p.command]
    ours = {p for a, p, _ in ports.listening()} - {p for _, p in listening}
    assert not ours & set(range(29000, 29200))
    lines = {(line["check"], line["verdict"]): line["what"] for line in answer["checks"]}
    assert status == 1 and ("variables", "fail") in lines
    assert "set-up not made yet" in lines["python", "ok"]
    faults = [line["what"] for line in answer["checks"] if line["check"] == "variables"]
    assert len(faults) == 3 and all(".env:" in fault for fault in faults)


@pytest.fixture
def no_python(clean, tmp_path):
    """(an environment, the folder of its PATH) of a machine with a Python that is too old, and no other."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "env", "sh", "timeout"):
        (tools / name).symlink_to(shutil.which(name))
    write_program(tools / "python3", "exit 1")
    return clean | {"PATH": str(tools), "PYENV_ROOT": str(tmp_path / "pyenv")}, tools


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)


def test_a_machine_without_python_says_so_also_where_uv_hangs(no_python, bare):
    environment, tools = no_python
    (tools / "sleep").symlink_to(shutil.which("sleep"))
    for options in ([], ["--json"]):
        error = only_error(run_doctor(environment, *options, clone=bare))
        assert error.startswith("error: python: no Python 3.9 or later")
        write_program(tools / "uv", "sleep 600")
    assert not [p for p in processes.processes() if str(tools) in p.command]


@pytest.mark.parametrize("found_by", ["pyenv", "uv"])
def test_it_runs_with_any_python_that_a_set_up_would_find(no_python, bare, tmp_path, found_by):
    environment, tools = no_python
    real = Path(sys.executable).resolve()
    if found_by == "uv":
        write_program(tools / "uv", f'[ "$1" = --version ] || echo {real}')
    else:
        write_program(tmp_path / "pyenv/versions/3.12.0/bin/python3", f'exec {real} "$@"')
    done = run_doctor(environment, "--help", clone=bare)
    assert (done.returncode, done.stderr) == (0, "") and "make doctor" in done.stdout


def test_what_a_check_started_ends_with_the_doctor(clean):
    code = """
import functools, subprocess, doctor
from checks.registry import Check
def hangs(case):
    child = subprocess.Popen(["sh", "-c", "sleep 600; true"])
    print(child.pid, flush=True)
    child.wait()
doctor.CHECKS = (Check("hangs", hangs),)
doctor.examine_all = functools.partial(doctor.examine_all, limit_s=2)
doctor.main()
"""
    done = run(sys.executable, "-c", code, env=clean | {"PYTHONPATH": str(ROOT / "scripts")})
    pid, *lines = done.stdout.splitlines()
    assert "no answer within 2 s" in lines[0], done
    assert not [p for p in processes.processes() if int(pid) in (p.pid, p.parent) and p.state != "Z"]


def test_closed_streams_are_no_traceback(clean):
    def closed(how):
        return run("bash", "-c", f'"$0" doctor --stage setup {how}', ROOT / "scripts" / "run.sh", env=clean)

    done = closed(">&-")
    assert done.returncode == 1 and done.stderr == "error: stdout is closed; send it to a file or to /dev/null\n"
    done = closed("2>&-")
    assert done.stdout.splitlines()[-1].startswith("doctor: "), done


def test_an_older_python_runs_it_before_the_set_up(clean, bare):
    candidates = [shutil.which("python3.9"), *sorted(Path.home().glob(".pyenv/versions/3.9.*/bin/python3"))]
    runs = [path for path in candidates if path and run(path, "-c", "").returncode == 0]
    if not runs:
        pytest.skip("no Python 3.9 here")
    rows = Path(clean["DATA_ROOT"]) / "nemo-gym" / "workplace_assistant_example.jsonl"
    rows.parent.mkdir(parents=True)
    rows.write_text("{}\n")
    done = run(runs[0], bare / "scripts" / "doctor.py", "--json", env=clean)
    assert done.stderr == ""
    lines = {line["check"]: line["what"] for line in json.loads(done.stdout)["checks"]}
    assert not [what for what in lines.values() if what.startswith("not looked at: ")], lines
    assert "not those pinned" in lines["task rows"]


# --- before the set-up -----------------------------------------------------------------------

SET_UP = 77


@pytest.fixture
def first_start(clean, bare):
    """Call a stage of a bare clone, whose set-up ends with SET_UP instead of making anything."""
    (bare / "scripts" / "setup.sh").write_text(f"#!/bin/sh\nexit {SET_UP}\n")

    def start(name, *arguments, **changes):
        return run(bare / "scripts" / "run.sh", name, *arguments, env=clean | changes)

    return start


@pytest.mark.parametrize("name", ["smoke", "gym_up"])
def test_ports_that_cannot_be_had_are_refused_before_the_set_up(first_start, clean, name):
    base = int(clean["GYM_BASE_PORT"])

    def refused(**changes):
        done = first_start(name, **changes)
        assert done.returncode in (1, 2) and done.stdout == "", done
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    assert "GYM_BASE_PORT='70000' is outside" in refused(GYM_BASE_PORT="70000")
    assert "the graph's own" in refused(GYM_RAY_PORT=str(base + 150))
    with socket.create_server(("127.0.0.1", base + 2)):
        assert f"port {base + 2} taken by process {os.getpid()}" in refused()


@pytest.mark.parametrize(
    ("name", "variables", "words"),
    [
        ("prepare_data", {"LIMIT": "many"}, "LIMIT='many' is not a whole number"),
        ("prepare_data", {"DATA_ROOT": "/proc"}, "set DATA_ROOT to"),
        ("fetch_model", {"MODEL_DIR": "/proc"}, "set MODEL_DIR to"),
        ("faults", {"FAULTS": "nonsense"}, "FAULTS='nonsense' holds 'nonsense', which is none of kill-"),
        ("faults", {"FAULTS": ","}, "FAULTS=',' names nothing"),
    ],
)
def test_what_a_stage_would_refuse_is_refused_before_the_set_up(first_start, name, variables, words):
    done = first_start(name, **variables)
    assert done.returncode in (1, 2) and words in done.stderr, done


def test_what_suits_or_cannot_be_judged_yet_is_set_up(first_start, no_python):
    for done in (first_start("smoke"), first_start("gym_up", "--gym-base-port", "29000", GYM_BASE_PORT="70000")):
        assert (done.returncode, done.stdout, done.stderr) == (SET_UP, "", "")
    # Without a Python nothing can be judged.
    assert first_start("smoke", **no_python[0], LIMIT="many").returncode == SET_UP


def test_a_smoke_elsewhere_needs_no_ports_here(tmp_path):
    base = free_base()
    with socket.create_server(("127.0.0.1", base)):
        texts = {"GYM_BASE_PORT": base, "GYM_RAY_PORT": base + 200}
        registry.at_start("smoke", case_of(tmp_path, RAY_ADDRESS="h:6379", GYM_HOST=NOWHERE, **texts).settings)
        with pytest.raises(Failure, match=f"ports: port {base} taken"):
            registry.at_start("smoke", case_of(tmp_path, GYM_HOST=NOWHERE, **texts).settings)
    with socket.create_server(("127.0.0.1", base + 100)):
        registry.at_start("gym-up", case_of(tmp_path, **texts).settings)
