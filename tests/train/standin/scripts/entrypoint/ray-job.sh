#!/usr/bin/env bash
# Stands in for the trainer's Ray entrypoint in tests: checks what it is given, ends what the
# trainer's own would end on the cluster, exports what it exports, and becomes the run script.
#
#   RAY_ADDRESS=host:port bash ray-job.sh RUN_SCRIPT.sh [args]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

refuse() {
    echo "stand-in entrypoint: $*" >&2
    exit 64
}

[[ ${1:-} == *.sh && -f $1 ]] || refuse "the first argument is no existing .sh file: ${1:-}"
[[ ${RAY_ADDRESS:-} == *:* ]] || refuse "RAY_ADDRESS is not <head>:<port>"
[[ -z ${RAY_NO_WAIT:-} ]] || refuse "RAY_NO_WAIT is set"
[[ -z ${WORKING_DIR:-} ]] || refuse "WORKING_DIR is set"
[[ -z ${STANDIN_LOCKED:-} ]] || exit 75

host=${RAY_ADDRESS%:*}
dashboard=${RAY_DASHBOARD_ADDRESS:-http://$host:8265}
ask() { curl --noproxy '*' -fsS --max-time 20 "$@"; }
ask "$dashboard/nodes?view=summary" | grep -q 'GPU' || refuse "no node with GPUs is alive"

# Every other training job on the cluster ends here.
ask "$dashboard/api/jobs/" |
    python3 -c 'import json, sys
for job in json.load(sys.stdin):
    if job["status"] == "RUNNING" and "relax.entrypoints.train" in job["entrypoint"]:
        print(job["submission_id"])' |
    while read -r job; do ask -X POST "$dashboard/api/jobs/$job/stop" >/dev/null; done

export MASTER_ADDR=$host MEGATRON=/opt/Megatron-LM RELAX=$root PYTHONPATH=$root:/opt/Megatron-LM
export MODEL_CONFIG_DIR=$root/scripts/entrypoint/../models HAS_NVLINK=1 RELAX_ENTRYPOINT_MODE=ray-job

# For the stand-in driver: what the user asked for, to hold its arguments against.
STANDIN_EXPECTED=$(python3 -c 'import json, os
flags = {"num-rollout": "NEMO_GYM_NUM_ROLLOUT", "rollout-batch-size": "NEMO_GYM_ROLLOUT_BATCH_SIZE",
         "n-samples-per-prompt": "NEMO_GYM_N_SAMPLES_PER_PROMPT", "global-batch-size": "NEMO_GYM_GLOBAL_BATCH_SIZE"}
asked = {flag: os.environ.get(name, "0") for flag, name in flags.items()}
print(json.dumps({flag: text for flag, text in asked.items() if text != "0"}))')
export STANDIN_EXPECTED
RUNTIME_ENV_JSON=$(python3 -c 'import json, os, sys
names = ("MASTER_ADDR", "STANDIN_EXPECTED")
given = {"PYTHONPATH": "/opt/Megatron-LM", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "STANDIN_PYTHON": sys.argv[1]}
print(json.dumps({"env_vars": given | {name: os.environ.get(name, "") for name in names}}))' "${RELAX_PYTHON:-}")
export RUNTIME_ENV_JSON
exec bash "$@"
