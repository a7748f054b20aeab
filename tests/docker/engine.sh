#!/usr/bin/env bash
# A Docker engine for the tests, where none answers and one can be had: as root, with Debian's
# package (installed in half a minute if need be). It has no bridge and touches no firewall rule.
# Where that fails it says so in one line, ends with status 0 all the same, and the tests that need
# an engine skip themselves.
#
#   tests/docker/engine.sh start
#   tests/docker/engine.sh stop      ends the engine that start started, and removes its data
set -euo pipefail
readonly STATE=${TMPDIR:-/tmp}/relax-nemo-gym-engine INSTALL_S=120

say() { echo "engine: $*" >&2; }

none() { say "none answers, and $*; the tests that need one are skipped"; }

answers() { timeout 10 docker info >/dev/null 2>&1; }

have_dockerd() {
    command -v dockerd >/dev/null && command -v docker >/dev/null && return
    command -v apt-get >/dev/null || return
    say "installing docker.io"
    # A machine whose package runs a daemon at once would start a second one.
    {
        timeout "$INSTALL_S" apt-get update -qq &&
            RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive timeout "$INSTALL_S" apt-get install -y -qq docker.io
    } >/dev/null 2>&1 && command -v dockerd >/dev/null
}

launch() {
    mkdir -p "$STATE"
    setsid dockerd --iptables=false --bridge=none --data-root "$STATE/data" --exec-root "$STATE/exec" \
        --pidfile "$STATE/pid" >"$STATE/log" 2>&1 </dev/null &
}

# wait_for PID: until the engine answers; fails once its process is gone, or after half a minute.
wait_for() {
    local _
    for _ in {1..60}; do
        answers && return
        kill -0 "$1" 2>/dev/null || return
        sleep 0.5
    done
    return 1
}

start() {
    answers && return
    [[ $(id -u) == 0 ]] || { none "only root can start one" && return; }
    have_dockerd || { none "docker.io cannot be installed" && return; }
    launch
    wait_for $! && return
    none "dockerd does not come up ($(tail -n 1 "$STATE/log" | cut -c1-300))"
    stop
}

stop() {
    local pid
    [[ -d $STATE ]] || return 0
    # The number of a daemon that died may be another process's by now.
    if [[ -r $STATE/pid ]] && pid=$(<"$STATE/pid") && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == dockerd ]]; then
        kill "$pid"
        while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
    fi
    # The daemon leaves the mount of a network namespace behind once a container had the host's.
    umount "$STATE"/exec/netns/* 2>/dev/null || true
    rm -rf "$STATE" || say "$STATE could not be removed whole"
}

case ${1:-} in
    start | stop) "$1" ;;
    *) echo "usage: tests/docker/engine.sh start|stop" >&2 && exit 2 ;;
esac
