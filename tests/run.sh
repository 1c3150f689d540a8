#!/usr/bin/env bash
# Runs the tests, except those in modules `full`: .config/nextest.toml says how. All run, although one
# fails. Then prints the slowest tests, how many were flaky, and how many servers were restarted. Arguments
# go to cargo-nextest: tests/run.sh -E 'test(/^oversell::/)'
#
# NEXTEST_PROFILE=ci repeats a test that fails.

set -uo pipefail
cd "$(dirname "$0")/.."
: "${CARGO:=cargo}"
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
report=target/nextest/${NEXTEST_PROFILE:-default}/junit.xml
# With the cargo-nextest that tests/install.sh has installed, if it had to.
export PATH=$target/python/bin:$PATH
# What would be stored for the next change takes a third of the time and of the disk.
export CARGO_INCREMENTAL=0
# If a server that a test has killed crashes during its recovery, the test restarts it. It records each such
# restart as a line of this file.
TEST_CRASHES_FILE=$(mktemp) || exit
export TEST_CRASHES_FILE
trap 'rm -f "$TEST_CRASHES_FILE"' EXIT
trap 'exit 130' INT

# With an example, because cargo then selects the features of the tests, and compiles nothing twice.
"$CARGO" build --workspace --locked --bin testkit --example hold || exit
rm -f "$report"
failed=0
# The servers start before the rest is compiled: Redis masters vote only after they have been up for longer
# than the longest lease.
"$target/debug/testkit" run -- "$CARGO" nextest run --workspace --locked "$@" || failed=1
# The examples in documents, which cargo-nextest cannot run. Those of stocklock-locks; with all packages, so
# that cargo selects the same features.
"$CARGO" test --doc --workspace --locked --no-fail-fast || failed=1
python3 tests/report.py "$report" || failed=1
echo "servers restarted after a crash: $(wc -l <"$TEST_CRASHES_FILE")"
exit $failed
