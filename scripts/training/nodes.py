"""The check of every node of a cluster: node_check.py in a Ray job, and the refusal of what it found.

Guarantees:
- the job runs under the trainer's Python and the cluster's own Ray, and asks for no CPU
- it is stopped if it takes too long
- the Gateway's token goes there in a file that only its owner can read, and that is removed with the job
- every fault of every node is named
"""

from __future__ import annotations

import json
import secrets
import shlex
from pathlib import Path
from typing import Any

from cluster import follow, jobs
from common.failure import Failure
from common.settings import ROOT, Settings
from gateway import trial_request
from training import arguments, node_check
from training.plan import MODEL_FILES, RELAX_FILES, Plan
from training.submit import write_token

RUN = "import os; exec(compile(os.environ['NODE_CHECK'], 'node_check.py', 'exec'))"
OUR_FILES = ("scripts/**/*.py", "scripts/*.sh", "scripts/*.yaml", "env.example")
TAIL_LINES = 8
TRIAL_DEADLINE_S = 60


def look(plan: Plan) -> dict[str, Any]:
    """Check all nodes: the result of node_check.check. Raises Failure with every fault."""
    settings = plan.settings
    job = jobs.open_job(settings.RUN_DIR, plan.dashboard, "check", settings.RELAX_PYTHON)
    probe = settings.EXP_DIR / f".probe-{secrets.token_hex(8)}"
    try:
        settings.EXP_DIR.mkdir(parents=True, exist_ok=True)
        probe.touch()
        result = _run(job, settings, _spec(plan, probe, write_token(settings, job.folder)))
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}") from None
    finally:
        probe.unlink(missing_ok=True)
        if job.submitted and not job.ended:
            job.stop()
        job.ended = True
        job.close()
    faults = [f"node {name}: {fault}" for name, its_faults in result["nodes"].items() for fault in its_faults]
    if faults := faults + result["trials"]:
        raise Failure("\nerror: ".join(faults))
    return result


def _spec(plan: Plan, probe: Path, token_file: Path | None) -> node_check.Spec:
    """What node_check.py compares with, without a secret."""
    settings = plan.settings
    wanted = (
        (ROOT, OUR_FILES, "this repository"),
        (settings.RELAX_ROOT, ("relax/**/*.py", *RELAX_FILES), "RELAX_ROOT"),
        (plan.task.path, (), "the rows"),
        (settings.MODEL_DIR / arguments.MODEL_NAME, MODEL_FILES, "MODEL_DIR"),
    )
    paths = [
        {"path": str(path), "patterns": patterns, "what": what, "sha256": node_check.fingerprint(path, patterns)}
        for path, patterns, what in wanted
    ]
    names = [name for name in trial_request.NAMES if name not in ("GATEWAY_TOKEN", "GYM_URLS")]
    variables = {name: settings.texts[name] for name in names}
    limits = {"NEMO_GYM_DEADLINE_S": str(TRIAL_DEADLINE_S), "NEMO_GYM_LEASE_S": "30"}
    limits |= {"NEMO_GYM_STARTUP_TIMEOUT_S": "10", "NEMO_GYM_MAX_RETRIES": "5"}
    return {
        "root": str(ROOT),
        "rows": str(plan.task.path),
        "paths": paths,
        "exp_dir": str(settings.EXP_DIR),
        "probe": probe.name,
        "python": str(settings.RELAX_PYTHON),
        "gateways": plan.gateways,
        "api_port": settings.RELAX_API_PORT,
        "variables": variables | limits | {"GATEWAY_TOKEN_FILE": str(token_file or "")},
    }


def _run(job: jobs.Job, settings: Settings, spec: node_check.Spec) -> dict[str, Any]:
    """Run the check on the cluster: its result. Raises Failure."""
    printed: list[str] = []
    source = Path(node_check.__file__).read_text(encoding="utf-8")
    texts = {"NODE_CHECK": source, "NODE_CHECK_SPEC": json.dumps(spec)}
    command = "exec " + shlex.join([str(settings.RELAX_PYTHON), "-c", RUN])
    job.submit(command, texts, 0, {"py_executable": str(settings.RELAX_PYTHON)}, passing=True)
    info = follow.follow(job, settings.JOB_PENDING_TIMEOUT_S, 0, printed.append, lambda status: None)
    lines = "".join(printed).splitlines()
    results = [line for line in lines if line.startswith(node_check.MARK)]
    if not results:
        end = "\n".join(f"  | {line[:300]}" for line in lines[-TAIL_LINES:])
        raise Failure(f"the look at the nodes ended {info['status']} without a result; its last lines:\n{end}")
    return json.loads(results[-1].removeprefix(node_check.MARK))
