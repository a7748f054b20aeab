# shellcheck shell=bash
# Where a Python is looked for. setup.sh makes .venv with one, and run.sh starts the doctor with one in a
# clone that has no .venv yet; both take the first that suits them.

# A uv that hangs counts as none: each of these calls takes it a fraction of a second.
have_uv() { timeout -k 1 5 uv --version >/dev/null 2>&1; }

# One candidate a line. A pyenv shim lies on PATH even without its Python, so each candidate has to be run.
pythons() {
    printf '%s\n' python3 python3.12 python3.13
    printf '%s\n' "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/3.1[23].*/bin/python3
    # uv answers with an error where it finds none, which is an empty list here.
    if have_uv; then timeout -k 1 5 uv python find '>=3.12,<3.14' 2>/dev/null || true; fi
}
