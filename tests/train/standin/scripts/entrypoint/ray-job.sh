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
export MODEL_CONFIG_DIR=$root/scripts/models HAS_NVLINK=1 RELAX_ENTRYPOINT_MODE=ray-job
export RUNTIME_ENV_JSON="{\"env_vars\": {\"PYTHONPATH\": \"/opt/Megatron-LM\", \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\",
 \"MASTER_ADDR\": \"$host\", \"STANDIN_CRASH\": \"${STANDIN_CRASH:-}\"}}"
exec bash "$@"
