#!/usr/bin/env bash
# oha against every strategy in turn, each on a fresh SKU; then the audit.
#
# The service must be in lab mode, where a request may name its strategy. Fails if one that promises
# not to oversell did so, if its ledger has another number of sales than were answered 200, if it
# sold nothing at all, or if anything but 200 and 503 was answered.
#
#   BASE_URL     nginx, or one replica  [http://127.0.0.1:18080]
#   OHA          the program            [oha]
#   ORDERS       for each strategy      [2000]
#   CONNECTIONS  at once                [32]
#   STRATEGIES   their names            [all that are available]

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

# Of oha's report: every order was answered, sold or refused as contended, and some were sold.
# shellcheck disable=SC2016 # jq's variables, not the shell's
is_sound='.statusCodeDistribution as $by | ($by["200"] // 0) as $sold
    | $sold > 0 and $sold + ($by["503"] // 0) == $orders and .errorDistribution == {}'

# What was sold in Redis is in SQL a moment later.
settled_audit() { # SKU
    local audit attempt
    for ((attempt = 0; attempt < 100; attempt++)); do
        audit=$(curl -sSf --max-time 10 "$base/stock/$1/audit" | jq '.warehouses[0]')
        [[ $(jq .pending <<<"$audit") != 0 ]] || break
        sleep 0.1
    done
    echo "$audit"
}

# There is one unit for each order, so nobody has to be refused.
race() { # STRATEGY TIER HOME
    local strategy=$1 tier=$2 home=${3/either/sql} sku report audit answered sold verdict
    sku=oha-$strategy-$(date +%s%N)
    curl -sSf --max-time 10 -o /dev/null -X PUT "$base/stock/$sku" \
        -H 'Content-Type: application/json' -d "{\"on_hand\":$orders,\"home\":\"$home\"}"
    report=$("$oha" --no-tui --output-format json -n "$orders" -c "$connections" -t 20s -m POST \
        "$base/stock/deduct?sku=$sku&strategy=$strategy")
    audit=$(settled_audit "$sku")
    answered=$(jq '.statusCodeDistribution["200"] // 0' <<<"$report")
    sold=$(jq .sold <<<"$audit")
    if ! jq -e --argjson orders "$orders" "$is_sound" <<<"$report" >/dev/null; then
        verdict="BROKEN: $(jq -c '[.statusCodeDistribution, .errorDistribution]' <<<"$report")"
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
offered=$(available) || fail "$base does not answer; is the service there, or BASE_URL wrong?"
names=" $(cut -d' ' -f1 <<<"$offered" | xargs) "
for strategy in ${STRATEGIES:=$names}; do
    [[ $names == *" $strategy "* ]] || fail "$strategy is not available at $base, but:$names"
done
say "$orders orders for as many units, $connections at once, $base"
broken=()
printf '%-15s %-8s %-5s %6s %6s %6s %9s %9s\n' strategy tier home "200" sold drift req/s "p99 ms"
while read -r strategy tier home; do
    [[ " $STRATEGIES " != *" $strategy "* ]] || race "$strategy" "$tier" "$home"
done <<<"$offered"
((${#broken[@]} == 0)) || fail "sold what was not there, counted wrong, or did not sell: ${broken[*]}"
say "every strategy that promises so was exact"
