#!/usr/bin/env bash
# Installs selenium and axe-core in the versions of requirements.txt, in a virtual environment in the
# target directory, and Chromium with its driver from the system's packages. Does nothing if they are
# installed. selenium is given both programs, so it never downloads a browser.

set -euo pipefail
cd "$(dirname "$0")/../.."
wanted=tests/page/requirements.txt
home=${CARGO_TARGET_DIR:-target}/page

fail() {
    printf 'page: %s\n' "$@" >&2
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
if cmp -s "$wanted" "$home/installed"; then exit; fi
echo "page: installing selenium and axe-core in $home"
python3 -m venv --clear "$home"
"$home/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$wanted" ||
    fail "pip failed; its messages are above. It needs a package index (PIP_INDEX_URL)."
cp "$wanted" "$home/installed"
