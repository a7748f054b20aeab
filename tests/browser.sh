#!/usr/bin/env bash
# Installs the browser in which tests look at our pages: Debian's chromium, 400 MB on disk, about a
# minute. On a Debian or Ubuntu machine, as root; does nothing where a Chromium is on PATH.
# Tests that need one are skipped where there is none.
#
#   tests/browser.sh
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then
        echo "Browser ready: $(command -v "$name")"
        exit 0
    fi
done

fail() {
    echo "error: no browser installed: $*" >&2
    exit 1
}

command -v apt-get >/dev/null || fail "this machine has no apt-get; install a Chromium by its own means"
((EUID == 0)) || fail "that takes root; run: sudo tests/browser.sh"

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >/dev/null || fail "apt-get update failed; check the network"
apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
    fail "apt-get install chromium failed; its last lines are above"
echo "Browser ready: $(command -v chromium), installed in $SECONDS s"
