#!/usr/bin/env bash
# oha against every strategy in turn, each on a fresh SKU; then the audit.
#
# The service must be in lab mode, where a request may name its strategy. Fails if one that promises
# not to oversell did so, if its ledger has another number of sales than were answered 200, or if it
# sold nothing at all.
#
#   BASE_URL     nginx, or one replica  [http://127.0.0.1:18080]
#   OHA          the program            [oha]
#   ORDERS       for each strategy      [2000]
#   CONNECTIONS  at once                [32]
#   STRATEGIES   names, or all          [all that are available]

set -euo pipefail

base=${BASE_URL:-http://127.0.0.1:18080}
oha=${OHA:-oha}
orders=${ORDERS:-2000}
connections=${CONNECTIONS:-32}

say() { printf 'strategies: %s\n' "$*"; }

fail() {
    printf 'strategies: %s\n' "$@" >&2
    exit 1
}

# One line `name tier home` for each strategy that can be used now; the home is where it finds stock.
available() {
    curl -sSf --max-time 10 "$base/strategies" |
        jq -r '.strategies[] | select(.available) | "\(.name) \(.tier) \(.home)"'
}

# There is one unit for each order, so nobody has to be refused.
race() { # STRATEGY TIER HOME
    local strategy=$1 tier=$2 home=${3/either/sql} sku report audit answered sold verdict
    sku=oha-$strategy-$(date +%s%N)
    curl -sSf --max-time 10 -o /dev/null -X PUT "$base/stock/$sku" \
        -H 'Content-Type: application/json' -d "{\"on_hand\":$orders,\"home\":\"$home\"}"
    report=$("$oha" --no-tui --output-format json -n "$orders" -c "$connections" -t 20s -m POST \
        "$base/stock/deduct?sku=$sku&strategy=$strategy")
    audit=$(curl -sSf --max-time 10 "$base/stock/$sku/audit" | jq '.warehouses[0]')
    answered=$(jq '.statusCodeDistribution["200"] // 0' <<<"$report")
    sold=$(jq .sold <<<"$audit")
    if ((answered == 0)); then
        verdict="BROKEN: sold nothing, answered $(jq -c .statusCodeDistribution <<<"$report")"
        broken+=("$strategy")
    elif [[ $(jq .consistent <<<"$audit") == true && $sold == "$answered" ]]; then
        verdict=exact
    elif [[ $tier == unsafe ]]; then
        verdict="lost stock, as is to be expected"
    else
        verdict=BROKEN
        broken+=("$strategy")
    fi
    printf '%-15s %-8s %-5s %6s %6s %6s %9.0f %9.1f  %s\n' "$strategy" "$tier" "$home" \
        "$answered" "$sold" "$(jq .drift <<<"$audit")" "$(jq .summary.requestsPerSec <<<"$report")" \
        "$(jq '(.latencyPercentiles.p99 // 0) * 1000' <<<"$report")" "$verdict"
}

for program in curl jq "$oha"; do
    type -P "$program" >/dev/null || fail "$program is missing; \`make loadtest\` brings it"
done
say "$orders orders for as many units, $connections at once, $base"
broken=()
raced=0
printf '%-15s %-8s %-5s %6s %6s %6s %9s %9s\n' strategy tier home "200" sold drift req/s "p99 ms"
while read -r strategy tier home; do
    if [[ ${STRATEGIES:-all} == all || " $STRATEGIES " == *" $strategy "* ]]; then
        race "$strategy" "$tier" "$home"
        raced=$((raced + 1))
    fi
done < <(available)
((raced > 0)) || fail "$base offers none of: ${STRATEGIES:-all}"
((${#broken[@]} == 0)) || fail "sold what was not there, counted wrong, or sold nothing: ${broken[*]}"
say "every strategy that promises so was exact"
