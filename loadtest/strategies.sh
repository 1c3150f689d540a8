#!/usr/bin/env bash
# Runs oha against each strategy, each with a new SKU, and then reads the audit.
#
# The service must be in lab mode, because a request names its strategy. The script fails if a
# strategy that promises not to oversell did so, if the ledger has another number of sales than oha
# got answers with 200, if a strategy sold nothing, or if there was an answer other than 200 and 503.
#
#   BASE_URL     nginx, or one replica  [http://127.0.0.1:18080]
#   OHA          the program            [oha]
#   ORDERS       per strategy           [2000]
#   CONNECTIONS  at the same time       [32]
#   STRATEGIES   names, with blanks between [all available ones]

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

# Prints one line `name tier` for each available strategy.
available() {
    curl -sSf --max-time 10 "$base/strategies" |
        jq -r '.strategies[] | select(.available) | "\(.name) \(.tier)"'
}

# Checks oha's report: each order was answered with 200 (sold) or 503 (contended), and some were sold.
# shellcheck disable=SC2016 # jq's variables, not the shell's
is_sound='.statusCodeDistribution as $by | ($by["200"] // 0) as $sold
    | $sold > 0 and $sold + ($by["503"] // 0) == $orders and .errorDistribution == {}'

# There is one unit for each order, so none is refused for lack of stock.
race() { # STRATEGY TIER
    local strategy=$1 tier=$2 sku report audit answered sold verdict
    sku=oha-$strategy-$(date +%s%N)
    curl -sSf --max-time 10 -o /dev/null -X PUT "$base/stock/$sku" \
        -H 'Content-Type: application/json' -d "{\"on_hand\":$orders}"
    report=$("$oha" --no-tui --output-format json -n "$orders" -c "$connections" -t 20s -m POST \
        "$base/stock/deduct?sku=$sku&strategy=$strategy")
    audit=$(curl -sSf --max-time 10 "$base/stock/$sku/audit" | jq '.warehouses[0]')
    answered=$(jq '.statusCodeDistribution["200"] // 0' <<<"$report")
    sold=$(jq .sold <<<"$audit")
    if ! jq -e --argjson orders "$orders" "$is_sound" <<<"$report" >/dev/null; then
        verdict="BROKEN: $(jq -c '[.statusCodeDistribution, .errorDistribution]' <<<"$report")"
        broken+=("$strategy")
    elif [[ $(jq .consistent <<<"$audit") == true && $sold == "$answered" ]]; then
        verdict=exact
    elif [[ $tier == unsafe && $sold == "$answered" ]]; then
        verdict="lost updates, as expected"
    else
        verdict=BROKEN
        broken+=("$strategy")
    fi
    printf '%-15s %-8s %6s %6s %6s %9.0f %9.1f  %s\n' "$strategy" "$tier" "$answered" "$sold" \
        "$(jq .drift <<<"$audit")" "$(jq .summary.requestsPerSec <<<"$report")" \
        "$(jq '(.latencyPercentiles.p99 // 0) * 1000' <<<"$report")" "$verdict"
}

for program in curl jq "$oha"; do
    type -P "$program" >/dev/null || fail "$program is missing; \`make loadtest\` installs oha"
done
offered=$(available) || fail "$base does not answer: start the service, or set BASE_URL"
names=" $(cut -d' ' -f1 <<<"$offered" | xargs) "
for strategy in ${STRATEGIES:=$names}; do
    [[ $names == *" $strategy "* ]] || fail "$strategy is not available at $base; available:$names"
done
say "$orders orders for $orders units, $connections at the same time, $base"
broken=()
printf '%-15s %-8s %6s %6s %6s %9s %9s\n' strategy tier "200" sold drift req/s "p99 ms"
while read -r strategy tier; do
    [[ " $STRATEGIES " != *" $strategy "* ]] || race "$strategy" "$tier"
done <<<"$offered"
((${#broken[@]} == 0)) || fail "inconsistent, wrong count, wrong answers, or nothing sold: ${broken[*]}"
say "each strategy that promises not to oversell was exact"
