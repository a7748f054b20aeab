#!/usr/bin/env bash
# Runs the tests, first those without servers, then those with the real graph, on this
# machine. Sets up what they need; arguments go to pytest, with paths relative to tests/.
#
#   tests/run.sh
#   tests/run.sh unit -k settings
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

../scripts/setup.sh test
unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
../.venv/bin/python -m pytest "$@"
echo "Tests passed in $SECONDS s."
