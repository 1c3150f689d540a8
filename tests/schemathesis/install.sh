#!/usr/bin/env bash
# Installs schemathesis in the versions of requirements.txt, in a virtual environment in the target
# directory. Does nothing if they are installed.

set -euo pipefail
cd "$(dirname "$0")/../.."
wanted=tests/schemathesis/requirements.txt
home=${CARGO_TARGET_DIR:-target}/schemathesis

fail() {
    printf 'schemathesis: %s\n' "$@" >&2
    exit 1
}

if cmp -s "$wanted" "$home/installed"; then exit; fi
python3 -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' ||
    fail "Python 3.10 or later with venv is missing. Install it:" \
        "    apt-get install --no-install-recommends python3 python3-venv"
echo "schemathesis: installing it in $home"
python3 -m venv --clear "$home"
"$home/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$wanted" ||
    fail "pip failed; its messages are above. It needs a package index (PIP_INDEX_URL)."
cp "$wanted" "$home/installed"
