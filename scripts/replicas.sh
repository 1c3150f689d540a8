#!/usr/bin/env bash
# Starts the topology of docker-compose.yml without Docker: nginx, replicas, MariaDB, Redis and
# ZooKeeper, with the configuration files of deploy/. Everything listens on loopback only.
#
# `testkit up` starts the servers. For each process the state directory has NAME.log, and NAME.pid
# with the process id and the start time. A process id that was reused has another start time, so
# the script never stops a process of another program.

set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/replicas.sh up [OPTION...] | status | down [--remove]    each with [--state DIR]

up      starts what does not run; repeat it to restart a replica that was killed
  --replicas N    number of replicas, 1 to 8 [2]
  --lab           lab mode: the page, and ?strategy= on each request
  --binary FILE   the service [target/release/stocklock]
  --testkit FILE  the program that starts the servers [testkit, beside the service]
  --port PORT     of nginx; the replicas take the next ports; below 32748 [18080]
status  prints what runs and where; exit code 1 if something does not run
down    stops everything; --remove also deletes the state directory with data and logs
  --state DIR     the state directory [$TMPDIR/stocklock-replicas-<user id>]

The replicas get all settings of the service (see .env.example) from the environment. If
DATABASE_URL, REDIS_URL or ZOOKEEPER_CONNECT is set, that server is used and no private one started.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Debian installs nginx outside of the usual search path.
PATH=$PATH:/usr/local/sbin:/usr/sbin

say() { printf 'replicas: %s\n' "$*"; }

fail() {
    printf 'replicas: %s\n' "$@" >&2
    exit 1
}

# ---- processes ----------------------------------------------------------------------------------

# Prints the start time of a process in ticks since the boot, or nothing if it has ended.
start_time() { # PID
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    # The fields after the program's name, which can contain blanks.
    read -r -a stat <<<"${stat##*) }"
    [[ ${stat[0]} == [ZX] ]] || echo "${stat[19]}"
}

runs() { # NAME
    local pid start
    [[ -r $state/$1.pid ]] && read -r pid start <"$state/$1.pid" &&
        [[ $start && $(start_time "$pid") == "$start" ]]
}

started=()
start() { # NAME PORT OUTPUT COMMAND...
    local name=$1 port=$2 output=$3
    shift 3
    [[ ! $port ]] || ! (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null ||
        give_up "$name cannot use port $port, which is in use: choose others with --port"
    # In a new session, so that it survives the terminal. testkit ends with its standard input, so
    # this is a FIFO that the process itself keeps open. The lock (9) is not inherited.
    (cd "$state" && exec setsid "$@") <>"$state/input" >>"$output" 2>>"$state/$name.log" 9>&- &
    echo "$! $(start_time $!)" >"$state/$name.pid"
    started=("$name" "${started[@]}")
}

stop() { # NAME
    local name=$1 pid signal=TERM begin=$SECONDS
    # nginx finishes its requests on QUIT, and cuts them on TERM.
    [[ $name != nginx ]] || signal=QUIT
    if runs "$name"; then
        read -r pid _ <"$state/$name.pid"
        # CONT, because the process may be paused.
        kill -s "$signal" "$pid" && kill -s CONT "$pid" || true
        while runs "$name"; do
            if ((SECONDS - begin > 60)); then
                say "$name does not end within 60 s: killing it"
                kill -s KILL "$pid" || true
                begin=$SECONDS
            fi
            sleep 0.05
        done
        say "$name: stopped"
    fi
    rm -f "$state/$name.pid"
}

# Waits until COMMAND succeeds.
await() { # NAME SECONDS COMMAND...
    local begin=$SECONDS
    until "${@:3}"; do
        runs "$1" || give_up "$1 ended; the end of its log:" "$1"
        ((SECONDS - begin <= $2)) || give_up "$1 is not ready after $2 s; the end of its log:" "$1"
        sleep 0.1
    done
}

# Stops what this call has started, and fails with a message and the end of a log.
give_up() { # MESSAGE [NAME]
    local name lines=("$1")
    if [[ ${2:-} ]]; then lines+=("$(tail -n 8 "$state/$2.log")"); fi
    for name in "${started[@]}"; do stop "$name"; done
    fail "${lines[@]}"
}

answers() { # PORT PATH
    # shellcheck disable=SC2016 # for the inner shell
    timeout 2 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$1" &&
        printf "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" "$2" >&3 &&
        IFS= read -r line <&3 && [[ $line == *" 200 "* ]]' answers "$1" "$2" 2>/dev/null
}

# ---- parts of the topology ----------------------------------------------------------------------

# The servers that testkit starts, with commas.
private_servers() {
    local names=
    [[ ${DATABASE_URL:-} ]] || names+=,mariadb
    [[ ${REDIS_URL:-} ]] || names+=,redis
    [[ ${ZOOKEEPER_CONNECT:-} ]] || names+=,zookeeper
    echo "${names#,}"
}

# Name and port of each process, in the order of their start.
processes() {
    local number
    [[ ! $(private_servers) ]] || echo "servers"
    for ((number = 1; number <= replicas; number++)); do echo "replica-$number $((port + number))"; done
    echo "nginx $port"
}

# What must not change while the processes run.
settings() {
    local name
    echo "replicas=$replicas mode=$mode port=$port binary=$binary testkit=$testkit"
    sed -n 's/^# \([A-Z_]*\)=.*/\1/p' "$root/.env.example" | while read -r name; do
        [[ ! ${!name:-} ]] || echo "$name=${!name}"
    done
}

up_servers() {
    # Replicas that still run know the addresses of the old servers.
    stop_all
    [[ -x $testkit ]] || fail "$testkit is missing: run \`make release\`, or name it with --testkit"
    # It gets the passwords.
    (umask 077 && : >"$state/servers.json")
    start servers "" "$state/servers.json" env TMPDIR="$state" "$testkit" up --json \
        --only "$(private_servers)" --config-dir "$root/deploy"
    await servers 180 grep -q '}$' "$state/servers.json"
}

# A field of the line that testkit prints when the servers are ready.
server() { # NAME FIELD
    sed -n "s/.*\"$1\":{[^}]*\"$2\":\"\([^\"]*\)\".*/\1/p" "$state/servers.json"
}

up_replica() { # NAME PORT
    start "$1" "$2" "$state/$1.log" env LISTEN="127.0.0.1:$2" REPLICA_ID="$1" \
        DATABASE_URL="${DATABASE_URL:-$(server mariadb url)}" \
        REDIS_URL="${REDIS_URL:-$(server redis url)}" \
        ZOOKEEPER_CONNECT="${ZOOKEEPER_CONNECT:-$(server zookeeper connect)}" "$binary" "$mode"
}

# deploy/nginx.conf with the addresses of this topology.
nginx_configuration() {
    local number script="s/listen 8080 /listen 127.0.0.1:$port /; /server replica-[2-9]:8080/d"
    script+='; /server replica-1:8080/{h'
    for ((number = 1; number <= replicas; number++)); do
        script+="; g; s/replica-1:8080/127.0.0.1:$((port + number))/p"
    done
    sed "$script; d}" "$root/deploy/nginx.conf" >"$state/nginx.conf"
    [[ $(grep -cE '(server|listen) 127\.0\.0\.1:' "$state/nginx.conf") == $((replicas + 1)) ]] ||
        give_up "deploy/nginx.conf needs servers replica-N:8080 and one \`listen 8080\`"
}

up_nginx() {
    mkdir -p "$state/nginx"
    nginx_configuration
    start nginx "$port" "$state/nginx/access.log" nginx -e stderr -p "$state/nginx/" \
        -c "$state/nginx.conf" -g 'daemon off;'
}

# ---- commands -----------------------------------------------------------------------------------

up() {
    local name its_port program now
    [[ -x $binary ]] || fail "$binary is missing: run \`make release\`, or name it with --binary"
    for program in nginx setsid timeout flock; do
        type -P "$program" >/dev/null || fail "$program is missing: run \`make services\`"
    done
    # The servers run as another user, who must be able to enter the directory.
    umask 022
    mkdir -p "$state"
    # `down --remove` deletes the directory, so it must have been empty.
    [[ -e $state/processes || ! $(ls -A "$state") ]] ||
        fail "$state has other files in it: choose another with --state"
    own_and_lock
    now=$(settings)
    if [[ -r $state/settings && $now != "$(<"$state/settings")" ]] && status | grep -q ': runs'; then
        fail "the replicas run with other settings: \`scripts/replicas.sh down\` first"
    fi
    # The settings can contain passwords.
    (umask 077 && echo "$now" >"$state/settings" && processes >"$state/processes")
    [[ -p $state/input ]] || mkfifo "$state/input"

    if grep -qx servers "$state/processes" && ! runs servers; then up_servers; fi
    while read -r name its_port; do
        [[ $name != replica-* ]] || runs "$name" || up_replica "$name" "$its_port"
    done <"$state/processes"
    while read -r name its_port; do
        [[ $name != replica-* ]] || await "$name" 60 answers "$its_port" /readyz
    done <"$state/processes"
    runs nginx || up_nginx
    await nginx 30 answers "$port" /healthz
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
            read -r pid _ <"$state/$name.pid"
            say "$name: runs, process $pid${its_port:+, http://127.0.0.1:$its_port}"
        else
            say "$name: does not run"
            result=1
        fi
    done <"$state/processes"
    say "data and logs are in $state"
    return "$result"
}

# In the reverse order of the start, so that clients stop before their servers.
stop_all() {
    local name
    tac "$state/processes" | while read -r name _; do stop "$name"; done
}

down() {
    if [[ ! -r $state/processes ]]; then
        say "nothing was started in $state"
        return
    fi
    own_and_lock
    stop_all
    if [[ $remove ]]; then
        rm -rf "$state"
        say "$state: removed"
    fi
}

number() { # OPTION VALUE LEAST MOST
    if [[ ! $2 =~ ^[0-9]{1,5}$ ]] || (($2 < $3 || $2 > $4)); then
        fail "$1 must be a number from $3 to $4, not \`$2\`"
    fi
}

command=${1:-}
[[ $command == up || $command == status || $command == down ]] || {
    usage >&2
    exit 2
}
shift
state=${TMPDIR:-/tmp}/stocklock-replicas-$(id -u)
replicas=2 mode=serve port=18080 binary=$root/target/release/stocklock testkit= remove=
while (($#)); do
    case $command$1 in
    up--lab) mode=lab ;;
    down--remove) remove=yes ;;
    up--replicas | up--binary | up--testkit | up--port | *--state)
        (($# > 1)) || fail "$1 needs a value"
        declare "${1#--}=$2"
        shift
        ;;
    *)
        usage >&2
        exit 2
        ;;
    esac
    shift
done
number --replicas "$replicas" 1 8
number --port "$port" 1024 32747
state=$(realpath -m "$state")
binary=$(realpath -m "$binary")
testkit=$(realpath -m "${testkit:-$(dirname "$binary")/testkit}")
"$command"
