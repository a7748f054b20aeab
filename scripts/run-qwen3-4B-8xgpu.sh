#!/usr/bin/env bash
# Trains Qwen3-4B on one node with 8 GPUs: takes the model's shape from the trainer's checkout,
# submits the Ray job and follows it in the foreground, to its end. The trainer's entrypoint
# runs it, on a machine that reaches the cluster's dashboard; `make train` runs the entrypoint
# after its checks, with --plan and the plan that it made. Variables are those of env.example.
#
#   bash $RELAX_ROOT/scripts/entrypoint/ray-job.sh scripts/run-qwen3-4B-8xgpu.sh
#   bash $RELAX_ROOT/scripts/entrypoint/ray-job.sh scripts/run-qwen3-4B-8xgpu.sh --cpus 2
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
    echo "error: $*" >&2
    exit 1
}

[[ -n ${MODEL_CONFIG_DIR:-} ]] || fail "MODEL_CONFIG_DIR is not set; the trainer's entrypoint sets it: make train"
[[ -z ${RAY_NO_WAIT:-} ]] || fail "RAY_NO_WAIT is set; the job is followed in the foreground: unset it"
[[ -z ${WORKING_DIR:-} ]] || fail "WORKING_DIR is set; it would upload the checkout: unset it"
[[ -r $MODEL_CONFIG_DIR/qwen3-4B.sh ]] || fail "$MODEL_CONFIG_DIR/qwen3-4B.sh is not there (RELAX_ROOT)"

# shellcheck source=/dev/null
source "$MODEL_CONFIG_DIR/qwen3-4B.sh"
[[ -n ${MODEL_ARGS[*]:-} ]] || fail "$MODEL_CONFIG_DIR/qwen3-4B.sh sets no MODEL_ARGS"

# Any Python with Ray does; the entrypoint's PYTHONPATH is meant for the job, not for this.
python=${SUBMIT_PYTHON:-python3}
exec env PYTHONPATH="$root/scripts" "$python" -m training.submit "$@" -- "${MODEL_ARGS[@]}"
