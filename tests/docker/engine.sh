#!/usr/bin/env bash
# A Docker engine for the tests, where none answers and one can be had: as root, with Debian's
# package (installed in half a minute if need be). It has no bridge and touches no firewall rule.
# Where that fails it says so and the tests of the engine skip themselves.
#
#   tests/docker/engine.sh start
#   tests/docker/engine.sh stop      ends the engine that start started, and removes its data
set -euo pipefail
readonly STATE=${TMPDIR:-/tmp}/relax-nemo-gym-engine

say() { echo "engine: $*" >&2; }

answers() { docker info >/dev/null 2>&1; }

have_dockerd() {
    command -v dockerd >/dev/null && return
    say "installing docker.io"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq docker.io; } >/dev/null 2>&1
}

start() {
    local _
    answers && return
    [[ $(id -u) == 0 ]] || { say "none answers, and only root can start one; its tests are skipped" && return; }
    have_dockerd || { say "none answers, and docker.io cannot be installed; its tests are skipped" && return; }
    mkdir -p "$STATE"
    setsid dockerd --iptables=false --bridge=none --data-root "$STATE/data" --exec-root "$STATE/exec" \
        --pidfile "$STATE/pid" >"$STATE/log" 2>&1 </dev/null &
    for _ in {1..60}; do
        answers && return
        sleep 0.5
    done
    say "dockerd does not come up; its tests are skipped; its last lines:"
    tail -n 5 "$STATE/log" >&2
}

stop() {
    local pid
    [[ -r $STATE/pid ]] && pid=$(<"$STATE/pid") && kill "$pid" || return 0
    while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    rm -rf "$STATE"
}

case ${1:-} in
    start | stop) "$1" ;;
    *) echo "usage: tests/docker/engine.sh start|stop" >&2 && exit 2 ;;
esac
