#!/usr/bin/env bash
# Sets this clone up: a virtual environment in .venv with the packages that
# scripts/requirements.txt locks by hash, and our patches applied to NeMo Gym in it.
#
# Runs on any Linux machine with Python 3.12 or 3.13 (on PATH, under pyenv, or through uv);
# needs no root. The first call takes about a minute, most of it download; later ones do
# nothing, in milliseconds. A change of the lock remakes .venv, a change of the patches
# reinstalls NeMo Gym alone. Calls at the same time wait for one another.
#
#   scripts/setup.sh          what the stages need
#   scripts/setup.sh test     that, and the tools of `make test` and `make lint`
#   scripts/setup.sh --look   changes nothing: which parts are made, and what a set-up would take
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/pythons.sh
. scripts/pythons.sh

# Settings of other environments that would lead the installer or Python elsewhere.
unset PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE PIP_USER PIP_TARGET PIP_PREFIX UV_SYSTEM_PYTHON VIRTUAL_ENV

readonly LOCK=scripts/requirements.txt TEST_LOCK=tests/requirements.txt
readonly STAMPS=.venv/.ready NEEDED_KB=3000000
# The free-threaded build (abiflags "t") has no wheels; a Python built without headers lacks modules.
readonly SUITS='import ctypes, sqlite3, ssl, sys
sys.exit(sys.abiflags != "" or not (3, 12) <= sys.version_info[:2] <= (3, 13))'

say() { echo "set-up: $*" >&2; }

fail() {
    echo "error: set-up: $*" >&2
    exit 1
}

# The state a stamp stands for. A venv works only where it was made and with that Python.
key_of() {
    case $1 in
        packages) cat "$LOCK" && pwd && readlink -f .venv/bin/python ;;
        patches) cat patches/*.patch patches/SHA256SUMS ;;
        tests) cat "$TEST_LOCK" ;;
    esac | sha256sum
}

is_ready() { [[ -x .venv/bin/python && -r $STAMPS/$1 && "$(<"$STAMPS/$1")" == "$(key_of "$1")" ]]; }

all_ready() {
    local part
    for part in "$@"; do is_ready "$part" || return 1; done
}

stamp() { mkdir -p "$STAMPS" && key_of "$1" >"$STAMPS/$1"; }

suits() { "$1" -c "$SUITS" >/dev/null 2>&1; }

can_make_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 || have_uv; }

find_python() {
    local candidate bare=""
    while read -r candidate; do
        suits "$candidate" || continue
        if can_make_venv "$candidate"; then
            echo "$candidate"
            return
        fi
        bare=$candidate
    done < <(pythons)
    [[ -z $bare ]] || fail "$bare lacks its venv module; cure: apt-get install python3-venv (or install uv)"
    have_uv || fail "no complete Python 3.12 or 3.13 on PATH or under pyenv; cure: pyenv install 3.12, or install uv"
    echo 3.12 # uv fetches it
}

# Replacing packages under running servers would break them in ways nobody could explain.
assert_unused() {
    local file program
    for file in /proc/[0-9]*/cmdline; do
        { IFS= read -r -d '' program <"$file"; } 2>/dev/null || continue
        [[ $program != "$PWD"/.venv/* ]] ||
            fail "packages or patches changed while process ${file//[^0-9]/} runs from .venv; cure: make stop"
    done
}

assert_space() {
    local free
    free=$(df -Pk . | awk 'END {print $4}')
    ((free >= NEEDED_KB)) || fail "$((free / 1000)) MB are free here, $((NEEDED_KB / 1000)) needed; cure: free some space"
}

cause() {
    case $1 in
        *"No space left"* | *"Errno 28"*) echo "the disk is full" ;;
        *"DO NOT MATCH THE HASHES"* | *"ash mismatch"*) echo "a download does not match its hash in the lock" ;;
        *onnect* | *"dns error"* | *"name resolution"* | *"timed out"* | *"No matching distribution"*)
            echo "a package could not be downloaded; check the network"
            ;;
        *) echo "the command failed" ;;
    esac
}

# step WHAT COMMAND...: runs the command and shows the end of its output if it fails.
step() {
    local what=$1 started=$SECONDS output
    shift
    say "$what …"
    if ! output=$("$@" 2>&1); then
        tail -n 8 <<<"$output" | sed 's/^/    /' >&2
        fail "$what: $(cause "$output") (its last lines are above); cure that, then run it again"
    fi
    say "$what: done in $((SECONDS - started)) s"
}

# The lock's lines of one package.
pin_of() { sed -n "/^$1==/,/[^\\\\]\$/p" "$LOCK"; }

with_pip() { .venv/bin/python -m pip --disable-pip-version-check install --no-input --no-compile --require-hashes "$@"; }

# Copies: a hard link into uv's cache would carry our patches to other environments.
with_uv() {
    local uv=.venv/bin/uv
    if have_uv; then
        uv=uv
    elif [[ ! -x $uv ]]; then
        pin_of uv >.venv/uv.txt
        with_pip --only-binary :all: -r .venv/uv.txt || return 1
    fi
    "$uv" pip install --python .venv/bin/python --link-mode copy --require-hashes "$@"
}

# uv takes a third of pip's time, but does not read pip's settings (a mirror, say).
install_packages() { with_uv "$@" || with_pip "$@"; }

create_venv() { if have_uv; then uv venv --seed --allow-existing --python "$1" .venv; else "$1" -m venv .venv; fi; }

set_up_packages() {
    local python
    python=$(find_python)
    rm -rf .venv
    assert_space
    say "making .venv; this takes about a minute"
    step "virtual environment with $python" create_venv "$python"
    step "packages of $LOCK" install_packages -r "$LOCK"
    stamp packages
}

# The files a patch added are in no record of the installer, so NeMo Gym's folders go first.
renew_nemo_gym() {
    local site
    site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    (cd "$site" && cat nemo_gym-*.dist-info/top_level.txt | xargs rm -rf)
    pin_of nemo-gym >.venv/nemo-gym.txt
    install_packages --force-reinstall --no-deps -r .venv/nemo-gym.txt
}

set_up_patches() {
    if [[ -e $STAMPS/patching ]]; then step "NeMo Gym as released" renew_nemo_gym; fi
    touch "$STAMPS/patching"
    step "patches of NeMo Gym" .venv/bin/python scripts/apply_patches.py
    stamp patches
}

set_up_tests() {
    step "tools of $TEST_LOCK" install_packages -r "$TEST_LOCK"
    stamp tests
}

look() {
    local part python
    for part in packages patches; do
        if is_ready "$part"; then echo "ready $part"; else echo "missing $part"; fi
    done
    if is_ready packages; then return; fi
    assert_space
    python=$(find_python)
    echo "python $python"
}

main() {
    local part parts=(packages patches)
    case ${1:-} in
        "") ;;
        test) parts+=(tests) ;;
        --look)
            look
            exit
            ;;
        -h | --help) sed -n '2,/^set/{s/^# \{0,1\}//p;}' scripts/setup.sh && exit ;;
        *) fail "unknown argument $1; see scripts/setup.sh --help" ;;
    esac
    all_ready "${parts[@]}" && return
    exec 9>.venv.lock
    flock -n 9 || { say "waiting for another set-up of this clone" && flock 9; }
    all_ready packages patches || assert_unused
    for part in "${parts[@]}"; do is_ready "$part" || "set_up_$part"; done
}

main "$@"
