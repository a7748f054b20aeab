#!/usr/bin/env bash
# Runs one stage on this machine: sets this clone up if that is needed, then starts scripts/NAME.py
# with the Python of .venv. Where nothing is to be set up it adds some milliseconds.
#
#   scripts/run.sh smoke
#   scripts/run.sh prepare_data --split train
#   scripts/run.sh gym_up --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=${1:-}
stage=$root/scripts/$name.py

if [[ -z $name || ! -f $stage ]]; then
    echo "usage: scripts/run.sh NAME [ARGUMENT...], where scripts/NAME.py is a stage" >&2
    exit 2
fi
shift
arguments=$#
flags=()

# Only what the lock pins may be imported.
unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE
python=$root/.venv/bin/python

# The doctor looks at a clone before it is set up, with any Python that is there.
any_python() {
    local candidate
    # shellcheck source=scripts/pythons.sh
    . "$root/scripts/pythons.sh"
    while read -r candidate; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done < <(pythons)
    echo "error: python: no Python 3.9 or later on PATH, under pyenv or known to uv; install Python 3.12 or 3.13" >&2
    return 1
}

# Run the quick checks before a set-up of a minute. Skip them if options were given: only the stage can parse those.
set_up() {
    local any
    if [[ ! -e $root/.venv/.ready/packages && $arguments -eq 0 ]] && any=$(any_python 2>/dev/null); then
        PYTHONPATH=$root/scripts "$any" -m checks.first_look "$name"
    fi
    "$root/scripts/setup.sh" "$@"
}

# Without a set-up of this clone, the Python of a trainer's machine runs these.
trains_here() { [[ ! -x $python ]] && python3 -c 'import ray, requests, yaml' 2>/dev/null; }

case $name in
    stop | gym_down)
        if trains_here; then
            python=python3
        elif [[ ! -e $root/.venv/.ready/packages ]]; then
            echo "Nothing to stop: this clone was never set up to the end."
            exit 0
        fi
        ;;
    doctor)
        [[ -x $python ]] || python=$(any_python)
        flags=(-B) # byte code beside a module would be a change
        ;;
    train | accept) if trains_here; then python=python3; else set_up; fi ;;
    abuse) set_up test ;;
    *) set_up ;;
esac

export SETUP_SECONDS=$SECONDS
exec "$python" ${flags[@]+"${flags[@]}"} "$stage" "$@"
