#!/usr/bin/env bash
# Starts the topology of docker-compose.yml without Docker: nginx, replicas, MariaDB, Redis and
# ZooKeeper, with the configuration files of deploy/. Everything listens on loopback only.
#
# `testkit up` starts the servers. For each process the state directory has NAME.log, and NAME.pid
# with the process id and the start time, so that a reused process id is never taken for it.

set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/replicas.sh up [OPTION...] | status | down [--remove]    each with [--state DIR]

up      starts what does not run; repeat it to restart a replica that was killed
  --replicas N    number of replicas, 1 to 8 [2]
  --lab           lab mode: the page, and ?strategy= on each request
  --binary FILE   the service [target/dist/stocklock]
  --testkit FILE  the program that starts the servers [testkit, beside the service]
  --port PORT     of nginx; the replicas take the next ports; below 32748 [18080]
status  prints what runs and where; exit code 1 if something does not run
down    stops everything and deletes the servers' data; --remove also deletes the logs
  --state DIR     the directory for all files [$TMPDIR/stocklock-replicas-<user id>]

The replicas get all settings of the service (see .env.example) from the environment. If
DATABASE_URL, REDIS_URL or ZOOKEEPER_CONNECT is set, that server is used and no private one started.
Without DATABASE_URL, ENGINE is
  mariadb (the default) or postgres
  galera or patroni: clusters of three servers behind HAProxy, with the files of deploy/galera and deploy/patroni
  sharded: two deployments, each with its own MariaDB and --replicas, behind an nginx that finds the one that has
           the SKU of a request
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Debian installs nginx outside of the usual search path.
PATH=$PATH:/usr/local/sbin:/usr/sbin

say() { printf 'replicas: %s\n' "$*"; }

# Stops what this call has started, and ends.
started=()
fail() {
    local name
    for name in "${started[@]}"; do stop "$name"; done
    printf 'replicas: %s\n' "$@" >&2
    exit 1
}

# Prints the start time of a process in ticks since the boot, or nothing if it has ended.
start_time() { # PID
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    # The fields after the program's name, which can contain blanks.
    read -r -a stat <<<"${stat##*) }"
    [[ ${stat[0]} == [ZX] ]] || echo "${stat[19]}"
}

runs() { # NAME
    local start
    [[ -r $state/$1.pid ]] && read -r pid start <"$state/$1.pid" &&
        [[ $start && $(start_time "$pid") == "$start" ]]
}

start() { # NAME PORT OUTPUT COMMAND...
    [[ ! $2 ]] || ! (exec 3<>"/dev/tcp/127.0.0.1/$2") 2>/dev/null ||
        fail "$1 cannot use port $2, which is in use: choose others with --port"
    # In a new session, so that it survives the terminal. testkit ends with its standard input, so
    # this is a FIFO that the process itself keeps open. The lock (9) is not inherited.
    (cd "$state" && exec setsid "${@:4}") <>"$state/input" >>"$3" 2>>"$state/$1.log" 9>&- &
    echo "$! $(start_time $!)" >"$state/$1.pid"
    started=("$1" "${started[@]}")
}

stop() { # NAME
    local pid signal=TERM end=$((SECONDS + 60))
    # nginx finishes its requests on QUIT, and cuts them on TERM.
    [[ $1 != nginx ]] || signal=QUIT
    if runs "$1"; then
        # CONT, because the process may be paused.
        kill -s "$signal" "$pid" && kill -s CONT "$pid" 2>/dev/null || true
        while runs "$1"; do
            if ((SECONDS > end)); then kill -s KILL "$pid" || true; fi
            sleep 0.05
        done
        say "$1: stopped"
    fi
    rm -f "$state/$1.pid"
}

# Waits until COMMAND succeeds.
await() { # NAME SECONDS COMMAND...
    local end=$((SECONDS + $2))
    until "${@:3}"; do
        runs "$1" && ((SECONDS <= end)) ||
            fail "$1 ended, or is not ready after $2 s; the end of its log:" "$(tail -n 8 "$state/$1.log")"
        sleep 0.1
    done
}

answers() { # PORT PATH
    curl --silent --fail --max-time 2 --noproxy '*' --output /dev/null "http://127.0.0.1:$1$2"
}

# The servers that testkit starts, with commas.
private_servers() {
    local names=
    [[ ${DATABASE_URL:-} ]] || names+=,$engine
    [[ ${REDIS_URL:-} ]] || names+=,redis
    [[ ${ZOOKEEPER_CONNECT:-} ]] || names+=,zookeeper
    echo "${names#,}"
}

# Name and port of each process, in the order of their start.
processes() {
    local number
    [[ ! $(private_servers) ]] || echo servers
    for ((number = 2; number <= shards; number++)); do echo "servers-$number"; done
    for ((number = 1; number <= shards * replicas; number++)); do echo "replica-$number $((port + number))"; done
    echo "nginx $port"
}

# What must not change while the processes run.
settings() {
    local name
    echo "shards=$shards replicas=$replicas mode=$mode engine=$engine port=$port binary=$binary testkit=$testkit"
    sed -n 's/^# \([A-Z_]*\)=.*/\1/p' "$root/.env.example" | while read -r name; do
        [[ ! ${!name:-} ]] || echo "$name=${!name}"
    done
}

up_servers() { # NAME
    local names=mariadb
    [[ $1 != servers ]] || names=$(private_servers)
    # Replicas that still run know the addresses of the old servers.
    stop_all "$1"
    # The output has passwords.
    (umask 077 && : >"$state/$1.json")
    start "$1" "" "$state/$1.json" env TMPDIR="$state" "$testkit" up \
        --only "$names" --config-dir "$root/deploy"
    await "$1" 180 grep -q '}$' "$state/$1.json"
}

# A field of the line that testkit prints when the servers are ready.
server() { # NAME FIELD [SERVERS]
    sed -n "s/.*\"$1\":{[^}]*\"$2\":\"\([^\"]*\)\".*/\1/p" "$state/${3:-servers}.json"
}

up_replica() { # NAME PORT
    local shard=$(((${1#replica-} - 1) / replicas + 1)) of_shard=()
    ((shards == 1)) || of_shard=(SHARD="$shard/$shards")
    local servers=servers
    ((shard == 1)) || servers=servers-$shard
    start "$1" "$2" "$state/$1.log" env LISTEN="127.0.0.1:$2" REPLICA_ID="$1" AUTH="${AUTH:-none}" \
        "${of_shard[@]}" DATABASE_URL="${DATABASE_URL:-$(server "$engine" url $servers)}" \
        REDIS_URL="${REDIS_URL:-$(server redis url)}" \
        ZOOKEEPER_CONNECT="${ZOOKEEPER_CONNECT:-$(server zookeeper connect)}" "$binary" "$mode"
    await "$1" 60 answers "$2" /readyz
}

# deploy/nginx.conf with the addresses of this topology.
nginx_of_one() {
    local number script="s/listen 8080 /listen 127.0.0.1:$port /; /server replica-[2-9]:8080/d"
    script+='; /server replica-1:8080/{h'
    for ((number = 1; number <= replicas; number++)); do
        script+="; g; s/replica-1:8080/127.0.0.1:$((port + number))/p"
    done
    sed "$script; d}" "$root/deploy/nginx.conf"
}

# The same for several deployments.
nginx_of_shards() {
    local shard number its_port=$port script="s/listen 8080 /listen 127.0.0.1:$port /"
    for ((shard = 1; shard <= shards; shard++)); do
        for ((number = 1; number <= replicas; number++)); do
            its_port=$((its_port + 1))
            script+="; s/shard-$shard-replica-$number:8080/127.0.0.1:$its_port/"
        done
    done
    "$root/deploy/sharded/nginx.sh" "$shards" "$replicas" | sed "$script"
}

up_nginx() {
    if ((shards == 1)); then nginx_of_one; else nginx_of_shards; fi >"$state/nginx.conf"
    [[ $(grep -cE '(server|listen) 127\.0\.0\.1:' "$state/nginx.conf") == $((shards * replicas + 1)) ]] ||
        fail "deploy/nginx.conf needs servers replica-N:8080 and one \`listen 8080\`"
    mkdir -p "$state/nginx"
    start nginx "$port" "$state/nginx/access.log" nginx -e stderr -p "$state/nginx/" \
        -c "$state/nginx.conf" -g 'daemon off;'
    await nginx 30 answers "$port" /healthz
}

up() {
    local program name its_port now
    for program in nginx curl setsid flock; do
        type -P "$program" >/dev/null || fail "$program is missing: run \`make services\`"
    done
    for program in "$binary" "$testkit"; do
        [[ -x $program ]] || fail "$program is missing: run \`make up\`, or name it with --binary"
    done
    # The servers run as another user, who must be able to enter the directory.
    umask 022
    mkdir -p "$state"
    # `down --remove` deletes the directory, so it must have been empty.
    [[ -e $state/processes || ! $(ls -A "$state") ]] ||
        fail "$state has other files in it: choose another with --state"
    own_and_lock
    now=$(settings)
    if [[ -r $state/settings && $now != "$(<"$state/settings")" && $(status) == *": runs,"* ]]; then
        fail "the replicas run with other settings: \`scripts/replicas.sh down\` first"
    fi
    # The settings can contain passwords.
    (umask 077 && echo "$now" >"$state/settings" && processes >"$state/processes")
    [[ -p $state/input ]] || mkfifo "$state/input"
    while read -r name its_port; do
        runs "$name" || "up_${name%-*}" "$name" "$its_port"
    done <"$state/processes"
    status
}

own_and_lock() {
    [[ ! -L $state && -O $state ]] || fail "$state is not yours: choose another with --state"
    exec 9>"$state/lock"
    flock -w 120 9 || fail "another replicas.sh works in $state"
}

status() {
    local name its_port pid result=0
    [[ -r $state/processes ]] || fail "nothing was started in $state"
    while read -r name its_port; do
        if runs "$name"; then
            say "$name: runs, process $pid${its_port:+, http://127.0.0.1:$its_port}"
        else
            say "$name: does not run"
            result=1
        fi
    done <"$state/processes"
    say "data and logs are in $state"
    return "$result"
}

# In the reverse order of the start, so that clients stop before their servers. NAME: only to this one.
stop_all() { # [NAME]
    local name
    tac "$state/processes" | while read -r name _; do
        stop "$name"
        [[ $name != "${1:-}" ]] || break
    done
}

down() {
    [[ -r $state/processes ]] || { say "nothing was started in $state" && return; }
    own_and_lock
    stop_all
    [[ ! $remove ]] || { rm -rf "$state" && say "$state: removed"; }
}

command=${1:-}
state=${TMPDIR:-/tmp}/stocklock-replicas-$(id -u)
engine=${ENGINE:-mariadb}
shards=1 replicas=2 mode=serve port=18080 binary=$root/target/dist/stocklock testkit= remove=
while (($# > 1)); do
    case $command$2 in
    up--lab) mode=lab ;;
    down--remove) remove=yes ;;
    up--replicas | up--binary | up--testkit | up--port | *--state)
        (($# > 2)) || fail "$2 needs a value"
        declare "${2#--}=$3"
        shift
        ;;
    *) command=usage ;;
    esac
    shift
done
[[ $command == @(up|status|down) ]] || {
    usage >&2
    exit 2
}
[[ $engine == @(mariadb|postgres|galera|patroni|sharded) ]] ||
    fail "ENGINE needs mariadb, postgres, galera, patroni or sharded"
[[ $replicas == [1-8] ]] || fail "--replicas needs a number from 1 to 8"
[[ $port =~ ^[0-9]{4,5}$ ]] && ((port >= 1024 && port <= 32747)) ||
    fail "--port needs a number from 1024 to 32747"
if [[ $command == up && $engine == sharded ]]; then
    [[ ! ${DATABASE_URL:-} ]] || fail "ENGINE=sharded starts a database for each deployment: unset DATABASE_URL"
    [[ ! ${SHARD:-} && $mode == serve ]] || fail "ENGINE=sharded sets SHARD, which the lab does not have"
    engine=mariadb shards=2
fi
state=$(realpath -m "$state")
binary=$(realpath -m "$binary")
testkit=$(realpath -m "${testkit:-$(dirname "$binary")/testkit}")
"$command"
