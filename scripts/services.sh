#!/usr/bin/env bash
# Makes sure that what `make test` needs is on this machine, and says what it found or did. With
# the argument `bench`, also what `make bench` needs beside it.
#
# The tests start their own private servers; nothing that runs on this machine is used or touched.
# What is missing is installed from Debian's packages where that is allowed (root, or sudo without
# a password); otherwise this ends with one message that says what to do.

set -euo pipefail

# name | programs and files that it consists of | Debian package | variable that names a server to use instead
needed=(
    "C compiler|cc|gcc libc6-dev|"
    "make|make|make|"
    "MariaDB|mariadbd mariadb-install-db mariadb-admin|mariadb-server|TEST_MYSQL_URL"
    "PostgreSQL|postgres initdb|postgresql|TEST_POSTGRES_URL"
    "Redis|redis-server|redis-server|TEST_REDIS_URL"
    "ZooKeeper|java /usr/share/java/zookeeper.jar|zookeeper default-jre-headless|TEST_ZOOKEEPER_CONNECT"
    "nginx|nginx|nginx|"
    "docker-compose, which checks docker-compose.yml|docker-compose|docker-compose|"
)
if [[ ${1:-} == bench ]]; then
    needed+=(
        "Python|python3|python3|"
        "wrk|wrk|wrk|"
        "clients of the databases|pgbench psql pg_isready mariadb mariadb-slap|postgresql postgresql-client mariadb-client|"
    )
fi

say() { printf 'services: %s\n' "$*"; }

fail() {
    printf 'services: %s\n' "$@" >&2
    exit 1
}

# Prints where the programs are; fails if one of them is nowhere. Debian keeps servers in sbin and
# PostgreSQL's in a directory for each version, so neither is in everybody's search path.
locate() {
    local bin program found=() search_path=$PATH:/usr/local/sbin:/usr/sbin
    for bin in /usr/lib/postgresql/*/bin; do
        search_path+=:$bin
    done
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

may_install() {
    type -P apt-get >/dev/null && as_root true 2>/dev/null
}

# Debian starts a server as soon as it is installed, unless this file says no. One that is there
# already is the administrator's, and stays.
policy=/usr/sbin/policy-rc.d
install_packages() {
    local ours=
    if [[ ! -e $policy ]]; then
        # Whatever ends this script, the machine must be able to start services again.
        trap 'as_root rm -f "$policy"' EXIT
        trap 'exit 130' INT TERM
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        ours=yes
    fi
    local result=0
    as_root apt-get update -qq </dev/null &&
        as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$@" </dev/null || result=$?
    if [[ $ours ]]; then as_root rm -f "$policy"; fi
    return "$result"
}

# Tells what is there, and leaves in `packages` and `missing` what is not.
look() {
    local entry name programs package variable where
    packages=()
    missing=()
    for entry in "${needed[@]}"; do
        IFS='|' read -r name programs package variable <<<"$entry"
        if where=$(locate "$programs"); then
            say "$name: $where"
        else
            missing+=("$name")
            # shellcheck disable=SC2206 # one word for each package
            packages+=($package)
        fi
        if [[ $variable && ${!variable:-} ]]; then
            say "$name: the tests that share a server use the one that $variable names"
        fi
    done
}

look
if [[ ${#missing[@]} -gt 0 ]]; then
    names=$(printf ', %s' "${missing[@]}")
    say "not here: ${names:2}"
    if ! may_install; then
        fail "Install these Debian packages, or what provides the same programs on your system:" \
            "    apt-get install --no-install-recommends ${packages[*]}" \
            "or run the tests where that is possible, for example in a container:" \
            "    docker run --rm -v \"\$PWD\":/src -w /src rust:bookworm make test" \
            "(A server elsewhere is not enough: some tests kill the server that they use.)"
    fi
    say "installing ${packages[*]}"
    install_packages "${packages[@]}" || fail "apt-get failed; its messages are above."
    look
    [[ ${#missing[@]} == 0 ]] || fail "still not here after the installation: ${missing[*]}"
fi
