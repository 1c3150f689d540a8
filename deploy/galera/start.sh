#!/usr/bin/env bash
# Starts a node of Galera in the image of MariaDB: start.sh NODE [NODE...]
#
# The first one is this node. If all nodes are stopped together, the others leave the cluster before it.
# The node that can read the data of the others, in /nodes, creates the cluster, if no node has data. Later, every node
# joins the cluster. But the one that was the last node in it starts it again.

set -euo pipefail

node=$1
others=("${@:2}")
data=/var/lib/mysql
state=$data/grastate.dat
server=(docker-entrypoint.sh mariadbd "--wsrep-node-name=$node" "--wsrep-node-address=$node")

say() { printf 'start.sh: %s: %s\n' "$node" "$*"; }

# Galera empties the uuid while the data is incomplete. Then the node gets a copy of all data.
uuid=$(sed -n 's/^uuid: *//p' "$state" 2>/dev/null) || true
if [[ $uuid && $uuid != 00000000-* ]]; then
    # As Debian's service does: a node that was killed looks up which changes it has, and gets only those after them.
    log=$(gosu mysql mariadbd --wsrep-recover --disable-log-error 2>&1) || { say "$log" && exit 1; }
    position=$(sed -n 's/.*WSREP: Recovered position: *//p' <<<"$log" | tail -n 1)
    say "its last change is $position"
    server+=("--wsrep-start-position=$position")
    # Galera writes this while a node is the only one of a cluster, and has the majority.
    if grep -q '^safe_to_bootstrap: 1' "$state"; then
        say "it was the last node, and starts the cluster again"
        server+=(--wsrep-new-cluster)
    fi
elif [[ -e /nodes && ! -e $data/mysql ]]; then
    if compgen -G '/nodes/*/stocklock' >/dev/null; then
        say "it has no data, but another node has some"
    else
        say "no node has data; it creates the cluster"
        # The image executes this file after it has created the database.
        echo 'CREATE USER haproxy;' >/docker-entrypoint-initdb.d/haproxy.sql
        server+=(--wsrep-new-cluster)
    fi
fi
((${#others[@]})) || exec "${server[@]}"

others_are_there() {
    local members name
    members=$(mariadb --no-defaults --connect-timeout=2 --host=127.0.0.1 --user=haproxy --skip-column-names \
        --execute="SHOW STATUS LIKE 'wsrep_incoming_addresses'") || return
    for name in "${others[@]}"; do
        [[ $members != *"$name:"* ]] || return 0
    done
    return 1
}

# Two nodes that leave at the same moment are half of the cluster or more: then no node has the majority, or knows that
# it is the last one, and none starts the cluster again.
leave() {
    local end=$((SECONDS + 5 * ${#others[@]}))
    while ((SECONDS < end)) && others_are_there; do sleep 0.2; done
    kill "$process"
}

"${server[@]}" &
process=$!
trap leave TERM
until
    wait "$process"
    result=$?
    ! kill -0 "$process" 2>/dev/null
do :; done
exit "$result"
