#!/usr/bin/env bash
# Runs the tests, those without servers beside those with the real graph, on this machine. Sets
# up what they need; arguments go to pytest, with paths relative to tests/ (`-n 0`: one at a time).
#
#   tests/run.sh
#   tests/run.sh unit -k settings
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

../scripts/setup.sh test
unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
../.venv/bin/python -m pytest "$@"
echo "Tests passed in $SECONDS s."
