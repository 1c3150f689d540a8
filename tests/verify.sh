#!/usr/bin/env bash
# Runs the counted promises at full size, and the tests in modules `full`; `make test` runs a small version
# of each. Prints one line for each check: PASS or FAIL, the seconds it took, and the figures. Exits with 1
# if a check failed.
#
# SEED is the seed of all random choices. OLD is the commit of the previous release; its program is built
# in a work tree in target/. The checks form parts; each part must end within 20 minutes. PART is an
# extended regular expression that chooses parts by their name, CHECKS one that chooses checks.

set -uo pipefail
cd "$(dirname "$0")/.."
: "${SEED:?is not set: make verify SEED=1}" "${OLD:=d500a4a}" "${PART:=.}" "${CHECKS:=.}" "${CARGO:=cargo}"
target=${CARGO_TARGET_DIR:-$PWD/target}
logs=$target/verify
part_limit_s=1200
mkdir -p "$logs"
export TEST_SEED=$SEED TEST_BINARY=$target/dist/stocklock

# One check a line: part | name | variables | filters of the tests in the targets `it` of all packages,
# after options of the test harness. Tests that measure time run one after the other. Add a check here;
# its figures are the lines `figure: …` that its tests print. The check `mutations` runs mutations.py. The
# explorer computes all the time, so its parts are compiled with optimisation.
checks='
load | fairness | | --test-threads=1 full::load:: full::abandoned_reads::
load | logging | | --test-threads=1 logging::full::
load | times | TEST_TIMES=exact | --test-threads=1 failover:: database_killed:: database_unreachable:: lock_server_killed:: wakeups:: dead_waiters_cost_their_patience_once keys::change_of_keys
page | page | | page::full::
schemathesis | schemathesis | TEST_EXAMPLES=1000 | schemathesis::
rules | late-messages | | late_messages:: late_transactions:: attempt_that_waits
rules | duplicates | | duplicates::
rules | creations | TEST_CREATIONS=1000 | creations::
rules | returns | TEST_PAIRS=10000 | reversals::concurrent::
rules | orders | TEST_ORDER_PAIRS=10000 TEST_ORDER_LEVELS=100 TEST_ORDER_BUYERS=256 TEST_ORDER_SECONDS=6 | --test-threads=1 orders::contended::
rules | failures | TEST_TELLINGS=50 TEST_ANSWERS=all | failures::
holds | holds | TEST_HOLDS=10000 TEST_EXPIRED_HOLDS=1000 | holds:: --skip open_holds --skip kills --skip interleavings
holds | open-holds | TEST_OPEN_HOLDS=1000000 | --test-threads=1 open_holds
hold-kills | hold-kills | TEST_KILLS=100 | kills::holds
faults | kills | TEST_KILLS=20 | kills:: --skip kills::holds
faults | standby | TEST_CANCELS=25 | standby_away::
faults | faults | | faults::full:: holder_stopped::full:: unknown_commit::full::
events | events | TEST_EVENTS=1000000 TEST_EVENT_KILLS=20 TEST_LATE_SECONDS=10 | --test-threads=1 events:: webhooks::
faults | databases | | oversell::full:: distant_race::full:: deduct_batch::full:: sold_out::full:: servers::full::
counters | counters | TEST_COUNTER_ROUNDS=20 | --test-threads=1 counters::
upgrades | upgrades | TEST_MOVEMENTS=2000000 TEST_OLD_BINARY='$target/verify/old' | upgrade_under_load::
bulk | imports | TEST_IMPORT_KILLS=50 | bulk::imports:: --skip memory
bulk | import-rows | TEST_IMPORT_ROWS=1000000 | --test-threads=1 bulk::imports::memory
bulk | beside-sales | TEST_COUNTS=500 TEST_PACED_ROWS=25000 | --test-threads=1 bulk::beside_sales::
galera | galera | TEST_STARTS=20 TEST_DECISIONS=100 | --test-threads=1 galera:: --skip clusters::
galera-faults | galera-faults | TEST_TIMES=exact TEST_FAILOVER_KILLS=10 TEST_FAILOVER_PAUSES=5 TEST_SWITCHOVERS=5 | --test-threads=1 clusters::galera
patroni | patroni | TEST_TIMES=exact TEST_FAILOVER_KILLS=10 TEST_FAILOVER_PAUSES=5 TEST_SWITCHOVERS=5 | --test-threads=1 clusters::patroni --skip among_the_hosts
patroni-hosts | patroni-hosts | TEST_TIMES=exact TEST_FAILOVER_KILLS=10 TEST_FAILOVER_PAUSES=5 TEST_SWITCHOVERS=5 | --test-threads=1 among_the_hosts
ledger | ledger-size | TEST_LEDGER_ROWS=10000000 | --test-threads=1 ledger_size:: ledger_order::full::
locks | lock-races | TEST_RACE=full | lock_race::working_lock
locks | leftovers | TEST_NAMES=full | leftovers::
locks | package | TEST_PACKAGE=compiled | lock_crate::lock_crate_can_be_packaged
locks | locks | | contract::full::
explorer | interleavings | EXPLORE=full CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true | interleavings:: --skip walks::
walks | walks | EXPLORE_SECONDS=1000 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true | walks::
mutations | mutations | | --some 20
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

if [[ upgrades =~ $CHECKS && upgrades =~ $PART ]] && ! build_old; then
    echo "FAIL the program of $OLD cannot be built: see $logs/old.log" && exit 1
fi
# Outside of the parts' limits.
"$CARGO" test --locked --workspace --no-run >"$logs/build.log" 2>&1 ||
    { echo "FAIL the tests cannot be compiled: see $logs/build.log" && exit 1; }
echo "seed $SEED"
failed=0 run=0 part='' ends=0
while IFS='|' read -r in name variables arguments; do
    read -r in <<<"$in" && read -r name <<<"$name"
    [[ -n $name && $in =~ $PART && $name =~ $CHECKS ]] || continue
    [[ $in == "$part" ]] || { part=$in ends=$((SECONDS + part_limit_s)) && echo "part $part"; }
    run=$((run + 1)) begin=$SECONDS log=$logs/$name.log
    command=("$CARGO" test --locked --workspace --no-fail-fast --test it -- --show-output)
    [[ $in == explorer || $in == walks ]] &&
        command=("$CARGO" test --locked --release --package stocklock-core --test it -- --show-output)
    [[ $name == mutations ]] && command=(python3 -u tests/mutations.py)
    # shellcheck disable=SC2086 # words of the list
    env $variables timeout $((ends > SECONDS ? ends - SECONDS : 1)) "${command[@]}" $arguments \
        >"$log" 2>&1 </dev/null
    result=$?
    passed=$(sed -n -e 's/^test result: .* \([0-9]*\) passed.*/\1/p' -e 's/^noticed .*/1/p' "$log" |
        awk '{n += $1} END {print n + 0}')
    verdict=PASS
    # A filter that finds no test proves nothing.
    if [[ $result != 0 || $passed == 0 ]]; then verdict=FAIL failed=1; fi
    echo "$verdict $name: $passed passed, $((SECONDS - begin)) s"
    sed -n 's/^figure: /     /p' "$log"
    if [[ $verdict == FAIL ]]; then echo "     see $log"; fi
done <<<"$checks"
[[ $run != 0 ]] || { echo "FAIL no check of the parts $PART has a name like $CHECKS" && failed=1; }
exit $failed
