#!/usr/bin/env bash
# Checks the form of every file: ruff, pyright, shellcheck, shfmt, hadolint. On this machine, in
# seconds once set up. Runs all checks, and names for each that fails the command that cures it.
#
#   tests/lint.sh
#   tests/lint.sh --fix     rewrites what can be rewritten
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/setup.sh test
PATH=$PWD/.venv/bin:$PATH
failed=0

# check CURE COMMAND...: runs the command; when it fails, says what to do about it.
check() {
    local cure=$1
    shift
    "$@" && return
    echo "error: $1 failed; cure: $cure" >&2
    failed=1
}

mapfile -t shell_files < <(shfmt -f .ci scripts tests)
mapfile -t docker_files < <(find . -maxdepth 1 -name 'Dockerfile*')

if [[ ${1:-} == --fix ]]; then
    ruff check --quiet --fix-only .
    ruff format --quiet .
    shfmt -w -i 4 -ci "${shell_files[@]}"
fi
check "make format, then mend what it left" ruff check --quiet .
check "make format" ruff format --quiet --diff .
check "mend the types named above" pyright --project tests/pyright.json
check "mend the lines named above" shellcheck "${shell_files[@]}"
check "make format" shfmt -d -i 4 -ci "${shell_files[@]}"
if ((${#docker_files[@]})); then check "mend the lines named above" hadolint "${docker_files[@]}"; fi

((failed == 0)) || exit 1
echo "Lint passed."
