#!/usr/bin/env bash
# Writes both locks anew from their requirements.in: every package with version and hashes,
# for Python 3.12 and later on any platform. Needs uv and the network; takes some seconds.
# Pins that still fit are kept; `--upgrade` moves them all.
#
#   scripts/lock.sh
#   scripts/lock.sh --upgrade
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! uv --version >/dev/null 2>&1; then
    echo "error: uv is not on PATH; cure: pip install uv" >&2
    exit 1
fi

lock() {
    uv pip compile --quiet --universal --python-version 3.12 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --custom-compile-command 'make lock' "$@" >/dev/null
}

lock "$@" scripts/requirements.in --output-file scripts/requirements.txt
# The tools join the same environment: packages that both need must have its pins.
lock "$@" tests/requirements.in --constraints scripts/requirements.txt --output-file tests/requirements.txt
