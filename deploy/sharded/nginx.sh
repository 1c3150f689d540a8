#!/bin/sh
# Prints the configuration of nginx in front of several deployments: deploy/nginx.conf, with an upstream for each
# deployment, and the hash of the SKU that chooses one. The replicas are named shard-K-replica-N:8080.
#
#   deploy/sharded/nginx.sh 4 3 >nginx.conf     four deployments of three replicas each

set -eu

shards=${1:?how many deployments} replicas=${2:-3} conf=${3:-$(dirname "$0")/../nginx.conf}

# The service computes the same (crates/core/src/stock/shard.rs): a thousand slots of equal width, of which each
# deployment has a range. One line of 50% would have another border than 500 of 0.1%, because nginx rounds.
slots() {
    slot=0 shard=1
    while [ "$slot" -lt 999 ]; do
        [ "$slot" -lt $((1000 * shard / shards)) ] || shard=$((shard + 1))
        echo "        0.1% shard-$shard;"
        slot=$((slot + 1))
    done
    echo "        * shard-$shards;"
}

upstreams() {
    shard=1
    while [ "$shard" -le "$shards" ]; do
        sed -n '/^    upstream replicas {/,/^    }/p' "$conf" |
            sed "/^ *#/d; s/\(upstream\) replicas/\1 shard-$shard/; s/\(zone\) replicas/\1 shard-$shard/
                s/server replica-/server shard-$shard-replica-/"
        shard=$((shard + 1))
    done
}

# Keeps `replicas` servers of each deployment.
servers() {
    awk -v most="$replicas" '{
        if (match($0, /server shard-[0-9]+-replica-[0-9]+:/)) {
            number = substr($0, RSTART, RLENGTH - 1)
            sub(/.*-/, "", number)
            if (number + 0 > most) next
        }
        print
    }'
}

routing() {
    cat <<'TEXT'
    # The SKU of a request: X-Sku, or the one in the path, or ?sku= if it has no encoded character, which nginx does
    # not decode there. In the path it does. Without a SKU, the first deployment gets the request.
    map $http_x_sku $sku {
        ""      $sku_of_path;
        default $http_x_sku;
    }
    map $uri $sku_of_path {
        "~^/stock/(?!deduct(?:/|$))(?<sku_in_path>[^/]+)" $sku_in_path;
        default $sku_of_query;
    }
    map $arg_sku $sku_of_query {
        "~^[0-9A-Za-z._-]+$" $arg_sku;
        default              "";
    }
    split_clients $sku $shard {
TEXT
    slots
    echo '    }'
}

most=$(sed -n '/^    upstream replicas {/,/^    }/p' "$conf" | grep -c 'server replica-') || true
if [ "$replicas" -gt "$most" ]; then
    echo "nginx.sh: $conf has $most servers in \`upstream replicas {\`, so $replicas replicas cannot be served" >&2
    exit 1
fi
{
    echo "# nginx in front of $shards deployments: deploy/nginx.conf, changed by deploy/sharded/nginx.sh."
    echo
    sed '1,/^$/d; /^    upstream replicas {/,$d' "$conf"
    upstreams | servers
    echo
    routing
    sed '1,/^    upstream replicas {/d' "$conf" | sed '1,/^    }/d; s/proxy_pass http:\/\/replicas;/proxy_pass http:\/\/$shard;/'
}
