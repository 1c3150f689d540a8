#!/usr/bin/env bash
# Installs what the tests need besides servers. In a virtual environment in the target directory: the packages
# of requirements.txt (schemathesis, selenium, axe-core, Helm and a validator for Kubernetes), and
# cargo-nextest, unless it is installed already. From the system's packages: Chromium with its driver. selenium
# is given both programs, so it never downloads a browser. Does nothing if all are installed.

set -euo pipefail
cd "$(dirname "$0")/.."
home=${CARGO_TARGET_DIR:-target}/python

fail() {
    printf 'tests: %s\n' "$@" >&2
    exit 1
}

has_browser() {
    type -P chromium chromedriver >/dev/null
}
has_python() {
    python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null
}
if ! { has_browser && has_python; } && type -P apt-get >/dev/null && [[ $(id -u) == 0 ]]; then
    apt-get update -qq &&
        apt-get install -y -qq --no-install-recommends chromium chromium-driver python3 python3-venv
fi </dev/null
has_browser && has_python || fail "Chromium, its driver, or Python 3.10 with venv is missing. Install them:" \
    "    apt-get install --no-install-recommends chromium chromium-driver python3 python3-venv"

install() {
    "$home/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$@"
}
if ! cat tests/requirements.txt tests/nextest.txt | cmp -s - "$home/installed"; then
    echo "tests: installing the packages of tests/requirements.txt in $home"
    python3 -m venv --clear "$home"
    install tests/requirements.txt ||
        fail "pip failed; its messages are above. It needs a package index (PIP_INDEX_URL)."
    cat tests/requirements.txt tests/nextest.txt >"$home/installed"
fi
# An older one than .config/nextest.toml needs is of no use.
has_nextest() {
    "${CARGO:-cargo}" nextest show-config version >/dev/null 2>&1
}
if ! has_nextest && [[ ! -x $home/bin/cargo-nextest ]]; then
    echo "tests: installing cargo-nextest in $home"
    install tests/nextest.txt --require-hashes ||
        "${CARGO:-cargo}" install --quiet --locked --root "$home" cargo-nextest --version 0.9.148 ||
        fail "cargo-nextest could not be installed; the messages are above."
fi
