#!/usr/bin/env bash
# Checks that the programs for `make test` are installed, and installs what is missing from Debian's
# packages if it may (root, or sudo without a password). With the argument `bench`, also checks the
# programs for `make bench`.
#
# The tests start their own private servers. They never use a server that already runs here.

set -euo pipefail

# name | programs and files | Debian packages
needed=(
    "C compiler and make|cc make|gcc libc6-dev make"
    "MariaDB|mariadbd mariadb-install-db mariadb-admin|mariadb-server"
    "Galera, and rsync, which copies a node|/usr/lib/galera/libgalera_smm.so rsync|galera-4 rsync"
    "PostgreSQL|postgres initdb|postgresql"
    "PgBouncer|pgbouncer|pgbouncer"
    "Patroni, with etcd|patroni etcd|patroni etcd-server"
    "HAProxy|haproxy|haproxy"
    "Redis|redis-server|redis-server"
    "ZooKeeper|java /usr/share/java/zookeeper.jar|zookeeper default-jre-headless"
    "Apache Curator|/usr/share/java/curator-recipes.jar /usr/share/java/bsh.jar|libcurator-recipes-java bsh"
    "nginx, and curl, which checks that it answers|nginx curl|nginx curl"
    "docker-compose, which checks docker-compose.yml|docker-compose|docker-compose"
    "promtool, which checks the alert rules|promtool|prometheus"
    "Node.js and TypeScript, for an example|node tsc|nodejs node-typescript"
    "Python|python3|python3 python3-venv"
    "Chromium|chromium chromedriver|chromium chromium-driver"
    "faketime, for a replica whose clock is wrong|faketime|faketime"
)
if [[ ${1:-} == bench ]]; then
    needed+=(
        "wrk|wrk|wrk"
        "clients|mariadb mariadb-slap pgbench psql redis-cli|mariadb-client postgresql postgresql-client redis-tools"
    )
fi

say() { printf 'services: %s\n' "$*"; }

fail() {
    printf 'services: %s\n' "$@" >&2
    exit 1
}

# Prints the paths of programs and files. Fails if one is missing. Debian installs some servers in
# sbin, and those of PostgreSQL in one directory per version.
locate() {
    local bin program found=() search_path=$PATH:/usr/local/sbin:/usr/sbin
    for bin in /usr/lib/postgresql/*/bin; do search_path+=:$bin; done
    for program in $1; do
        if [[ $program == /* ]]; then
            [[ -e $program ]] || return 1
            found+=("$program")
        else
            found+=("$(PATH=$search_path type -P "$program")") || return 1
        fi
    done
    echo "${found[*]}"
}

as_root() {
    if [[ $(id -u) == 0 ]]; then "$@"; else sudo -n "$@"; fi
}

may_install() { type -P apt-get >/dev/null && as_root true 2>/dev/null; }

# Debian starts a server when it is installed, unless this file forbids it. An existing file belongs
# to the administrator and is not changed.
policy=/usr/sbin/policy-rc.d
install_packages() {
    if [[ ! -e $policy ]]; then
        # However the script ends, the machine must be able to start services again.
        trap 'as_root rm -f "$policy"' EXIT
        trap 'exit 130' INT TERM
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    as_root apt-get update -qq </dev/null &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$@" </dev/null
}

# Prints what is installed. Sets `missing` and `packages` to what is not.
look() {
    local entry name programs package where
    packages=()
    missing=()
    for entry in "${needed[@]}"; do
        IFS='|' read -r name programs package <<<"$entry"
        if where=$(locate "$programs"); then
            say "$name: $where"
        else
            missing+=("$name")
            # shellcheck disable=SC2206 # one word for each package
            packages+=($package)
        fi
    done
}

look
if [[ ${#missing[@]} -gt 0 ]]; then
    say "missing: $(IFS=';' && echo "${missing[*]}")"
    may_install || fail "Install these Debian packages, or the same programs in another way:" \
        "    apt-get install --no-install-recommends ${packages[*]}" \
        "or run the tests in a container, for example:" \
        "    docker run --rm -v \"\$PWD\":/src -w /src rust:bookworm make test"
    say "installing ${packages[*]}"
    install_packages "${packages[@]}" || fail "apt-get failed; its messages are above."
    look
    [[ ${#missing[@]} == 0 ]] || fail "still missing after the installation: ${missing[*]}"
fi
