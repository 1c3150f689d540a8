#!/usr/bin/env bash
# Runs the counted promises at full size, and the tests in modules `full`; `make test` runs a small version
# of each. Prints one line for each check: PASS or FAIL, the seconds it took, and the figures. Exits with 1
# if a check failed.
#
# SEED is the seed of all random choices. OLD is the commit of the previous release; its program is built
# in a work tree in target/. CHECKS is an extended regular expression that chooses checks by their name.

set -uo pipefail
cd "$(dirname "$0")/.."
: "${SEED:?is not set: make verify SEED=1}" "${OLD:=d500a4a}" "${CHECKS:=.}" "${CARGO:=cargo}"
target=${CARGO_TARGET_DIR:-$PWD/target}
logs=$target/verify
# All checks together must end within an hour.
ends=$((SECONDS + 3600))
mkdir -p "$logs"
export TEST_SEED=$SEED TEST_BINARY=$target/dist/stocklock

# One check a line: name | variables | filters of the tests in the targets `it` of all packages, after
# options of the test harness. Tests that measure time run one after the other. Add a check here; its
# figures are the lines `figure: …` that its tests print.
checks='
fairness | | --test-threads=1 full::load::
upgrades | TEST_MOVEMENTS=2000000 TEST_OLD_BINARY='$target/verify/old' | upgrade_under_load::
page | | page::full::
schemathesis | TEST_EXAMPLES=1000 | schemathesis::
late-messages | | late_messages:: late_transactions:: attempt_that_waits
times | TEST_TIMES=exact | --test-threads=1 failover:: database_killed:: database_unreachable:: lock_server_killed:: wakeups:: redis_permits::
duplicates | | duplicates::
creations | TEST_CREATIONS=1000 | creations::
returns | TEST_PAIRS=10000 | reversals::concurrent::
kills | TEST_KILLS=20 | kills::
counters | TEST_COUNTER_ROUNDS=20 | --test-threads=1 counters::
ledger-size | TEST_LEDGER_ROWS=10000000 | --test-threads=1 ledger_size:: ledger_order::full::
lock-races | TEST_RACE=full | lock_race::working_lock lock_race::redlock
leftovers | TEST_NAMES=full | leftovers::
package | TEST_PACKAGE=compiled | lock_crate::lock_crate_can_be_packaged
interleavings | EXPLORE=full | interleavings::
failures | TEST_TELLINGS=50 TEST_ANSWERS=all | failures::
faults | | faults::full:: holder_stopped::full:: holder_killed::full:: unknown_commit::full::
databases | | oversell::full:: distant_race::full:: deduct_batch::full:: sold_out::full:: servers::full:: open_operations::full::
locks | | contract::full:: processes::full:: redlock::full:: sql::full::
'

# The program of the previous release, with the dependencies that are already built.
build_old() {
    [[ -x $logs/old && $(cat "$logs/old.commit" 2>/dev/null) == "$OLD" ]] && return
    local tree=$logs/old-tree
    git worktree remove --force "$tree" 2>/dev/null
    git worktree add --force --detach "$tree" "$OLD" >"$logs/old.log" 2>&1 &&
        (cd "$tree" && CARGO_TARGET_DIR=$target "$CARGO" build --release --locked --bin stocklock) \
            >>"$logs/old.log" 2>&1 &&
        cp "$target/release/stocklock" "$logs/old" && echo "$OLD" >"$logs/old.commit"
    local built=$?
    git worktree remove --force "$tree"
    return $built
}

if grep -qE "$CHECKS" <<<upgrades && ! build_old; then
    echo "FAIL the program of $OLD cannot be built: see $logs/old.log" && exit 1
fi
echo "seed $SEED"
failed=0 run=0
while IFS='|' read -r name variables arguments; do
    read -r name <<<"$name"
    [[ -n $name && $name =~ $CHECKS ]] || continue
    run=$((run + 1)) begin=$SECONDS log=$logs/$name.log
    # shellcheck disable=SC2086 # words of the list
    env $variables timeout $((ends > SECONDS ? ends - SECONDS : 1)) "$CARGO" test --locked --workspace \
        --no-fail-fast --test it -- --show-output $arguments >"$log" 2>&1 </dev/null
    result=$?
    passed=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' "$log" | awk '{n += $1} END {print n + 0}')
    verdict=PASS
    # A filter that finds no test proves nothing.
    if [[ $result != 0 || $passed == 0 ]]; then verdict=FAIL failed=1; fi
    echo "$verdict $name: $passed tests, $((SECONDS - begin)) s"
    sed -n 's/^figure: /     /p' "$log"
    if [[ $verdict == FAIL ]]; then echo "     see $log"; fi
done <<<"$checks"
[[ $run != 0 ]] || { echo "FAIL no check has a name like $CHECKS" && failed=1; }
exit $failed
