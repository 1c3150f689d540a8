#!/usr/bin/env bash
# The topology of docker-compose.yml without Docker: replicas behind nginx, on a private MariaDB,
# Redis and ZooKeeper, with the same files of deploy/.
#
# Everything lives in one directory, listens on loopback only, and is stopped by its process id.
# What it needs is Debian's; `make services` installs it.

set -euo pipefail

usage() {
    cat <<'TEXT'
usage: scripts/replicas.sh up [--replicas N] [--lab] [--binary FILE] [--port PORT] [--state DIR]
       scripts/replicas.sh status [--state DIR]
       scripts/replicas.sh down [--remove] [--state DIR]

up      starts what does not run yet; repeat it to bring a killed replica back
        --replicas  how many, 1 to 8 [2]
        --lab       in lab mode: ?strategy= on each request, and the page
        --binary    the program [target/release/stocklock]
        --port      nginx's; MariaDB, Redis and ZooKeeper take the next three, the replicas those
                    from the eleventh on; below 32748 [18080]
status  tells what runs, and where; exit code 1 if something does not
down    stops everything; --remove also removes the directory, with the data and the logs
        --state     the directory [$TMPDIR/stocklock-replicas-<user id>]

Every setting of the service (see .env.example) goes on to the replicas from the environment. With
DATABASE_URL, REDIS_URL or ZOOKEEPER_CONNECT that server is used, and no private one started.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Debian keeps servers where not everybody looks.
PATH=$PATH:/usr/local/sbin:/usr/sbin
jars=/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar

# shellcheck source=scripts/processes.sh
source "$root/scripts/processes.sh"

# ---- servers ------------------------------------------------------------------------------------

server_directory() { # NAME
    mkdir -p "$state/$1"
    if [[ ${as_server[*]} ]]; then chown "$server_user" "$state/$1"; fi
}

up_mariadb() {
    local home=$state/mariadb
    take_port mariadb "$mariadb_port"
    server_directory mariadb
    cp "$root/deploy/mariadb.cnf" "$state/mariadb.cnf"
    chmod 644 "$state/mariadb.cnf"
    if [[ ! -d $home/data ]]; then
        say "mariadb: making its data directory"
        # Under another name until it is whole.
        rm -rf "$home/unfinished"
        "${as_server[@]}" mariadb-install-db --no-defaults --datadir="$home/unfinished" \
            --tmpdir="$home" --skip-test-db --innodb-log-file-size=32M \
            --auth-root-authentication-method=socket --auth-root-socket-user="$server_user" \
            >>"$state/mariadb.log" 2>&1 </dev/null ||
            give_up "mariadb cannot make its data directory; the end of its log:" mariadb
        mv "$home/unfinished" "$home/data"
    fi
    [[ -s $state/password ]] || (umask 077 && head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$state/password")
    # Given by the file's owner before it has a content that nobody else may read.
    install -m 600 /dev/null "$state/init.sql"
    if [[ ${as_server[*]} ]]; then chown "$server_user" "$state/init.sql"; fi
    cat >"$state/init.sql" <<SQL
CREATE DATABASE IF NOT EXISTS stocklock;
CREATE OR REPLACE USER stocklock@'127.0.0.1' IDENTIFIED BY '$(<"$state/password")';
GRANT ALL ON stocklock.* TO stocklock@'127.0.0.1';
SQL
    # The log file's size as above, or the first start would write the log anew.
    start mariadb "$state/mariadb.log" "${as_server[@]}" mariadbd \
        --defaults-file="$state/mariadb.cnf" --datadir="$home/data" --tmpdir="$home" \
        --socket="$home/socket" --pid-file="$home/pid" --init-file="$state/init.sql" \
        --port="$mariadb_port" --bind-address=127.0.0.1 --innodb-log-file-size=32M \
        --innodb-buffer-pool-size=64M --innodb-use-native-aio=OFF --performance-schema=OFF
}

up_redis() {
    take_port redis "$redis_port"
    server_directory redis
    cp "$root/deploy/redis.conf" "$state/redis.conf"
    chmod 644 "$state/redis.conf"
    start redis "$state/redis.log" "${as_server[@]}" redis-server "$state/redis.conf" \
        --bind 127.0.0.1 --port "$redis_port" --dir "$state/redis"
}

up_zookeeper() {
    take_port zookeeper "$zookeeper_port"
    server_directory zookeeper
    cat >"$state/zookeeper.cfg" <<CFG
tickTime=2000
dataDir=$state/zookeeper
clientPort=$zookeeper_port
clientPortAddress=127.0.0.1
admin.enableServer=false
autopurge.purgeInterval=6
4lw.commands.whitelist=ruok,srvr
CFG
    start zookeeper "$state/zookeeper.log" "${as_server[@]}" java -Xmx128m -XX:+UseSerialGC \
        -XX:TieredStopAtLevel=1 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$jars" \
        org.apache.zookeeper.server.ZooKeeperServerMain "$state/zookeeper.cfg"
}

up_replica() { # NUMBER
    local port=$((first_replica_port + $1 - 1))
    take_port "replica-$1" "$port"
    start "replica-$1" "$state/replica-$1.log" env \
        DATABASE_URL="$database_url" REDIS_URL="$redis_url" ZOOKEEPER_CONNECT="$zookeeper_connect" \
        LISTEN="127.0.0.1:$port" REPLICA_ID="replica-$1" "$binary" "$mode"
}

# deploy/nginx.conf with our replicas and our port in it, and nothing else changed.
nginx_configuration() {
    local number servers=
    for ((number = 0; number < replicas; number++)); do
        servers+=" 127.0.0.1:$((first_replica_port + number))"
    done
    awk -v servers="${servers# }" -v port="$port" '
        $1 == "server" && $2 ~ /^replica-[0-9]+:8080$/ {
            if (found++) next
            line = $0
            count = split(servers, server, " ")
            for (i = 1; i <= count; i++) { $0 = line; sub($2, server[i]); print }
            next
        }
        $1 == "listen" && $2 == "8080" { sub("8080", "127.0.0.1:" port); listens++ }
        { print }
        END { exit !(found && listens == 1) }' "$root/deploy/nginx.conf"
}

up_nginx() {
    take_port nginx "$port"
    server_directory nginx
    nginx_configuration >"$state/nginx.conf" ||
        give_up "nginx: deploy/nginx.conf has no servers replica-N:8080, or not one \`listen 8080\`"
    chmod 644 "$state/nginx.conf"
    # It opens its standard output by name, as whoever it runs as.
    "${as_server[@]}" touch "$state/nginx/access.log"
    start nginx "$state/nginx/access.log" "${as_server[@]}" nginx -e stderr -p "$state/nginx/" \
        -c "$state/nginx.conf" -g 'daemon off;'
}

answers_redis() { [[ $(ask "$redis_port" 'PING\r\n') == +PONG* ]]; }

# It says imok before it serves; `srvr` begins with the version once it does.
answers_zookeeper() { [[ $(ask "$zookeeper_port" srvr) == "Zookeeper version"* ]]; }

# It takes connections at once, and greets once it has carried out the file of --init-file.
answers_mariadb() {
    mariadb-admin --no-defaults --protocol=tcp --host=127.0.0.1 --port="$mariadb_port" \
        --connect-timeout=2 ping >/dev/null 2>&1
}

# ---- commands -----------------------------------------------------------------------------------

# Everything that `up` was told: as an answer to the question whether a second one says the same.
settings() {
    local name
    echo "replicas=$replicas mode=$mode port=$port binary=$binary"
    sed -n 's/^# \([A-Z_]*\)=.*/\1/p' "$root/.env.example" | while read -r name; do
        if [[ ${!name:-} ]]; then echo "$name=${!name}"; fi
    done
}

# Those that are ours to run, in the order in which they start.
names() {
    local number
    [[ ${DATABASE_URL:-} ]] || echo mariadb
    [[ ${REDIS_URL:-} ]] || echo redis
    [[ ${ZOOKEEPER_CONNECT:-} ]] || echo zookeeper
    for ((number = 1; number <= replicas; number++)); do echo "replica-$number"; done
    echo nginx
}

up() {
    local name now
    [[ -x $binary ]] || fail "$binary is missing: cargo build --release --locked"
    binary=$(realpath "$binary")
    need nginx setsid awk timeout
    [[ ${DATABASE_URL:-} ]] || need mariadbd mariadb-install-db mariadb-admin
    [[ ${REDIS_URL:-} ]] || need redis-server
    [[ ${ZOOKEEPER_CONNECT:-} ]] || need java "${jars%%:*}"
    # The servers' user must be able to pass.
    (umask 022 && mkdir -p "$state")
    [[ ! -L $state && -O $state ]] || fail "$state is not yours: choose another with --state"
    # What `down --remove` removes must be ours from the beginning.
    [[ -e $state/names || ! $(ls -A "$state") ]] ||
        fail "$state has other files in it: choose another with --state"
    exec 9>"$state/lock"
    flock -n 9 || fail "another replicas.sh is at work in $state"

    now=$(settings)
    if any_runs && [[ $now != "$(<"$state/settings")" ]]; then
        fail "it runs with other settings: \`scripts/replicas.sh down\` first"
    fi
    (umask 077 && echo "$now" >"$state/settings" && names >"$state/names")

    for name in mariadb redis zookeeper; do
        if is_ours "$name" && ! runs "$name"; then "up_$name"; fi
    done
    if is_ours mariadb; then await mariadb 60 answers_mariadb; fi
    if is_ours redis; then await redis 30 answers_redis; fi
    if is_ours zookeeper; then await zookeeper 60 answers_zookeeper; fi

    database_url=${DATABASE_URL:-mysql://stocklock:$(cat "$state/password" 2>/dev/null || true)@127.0.0.1:$mariadb_port/stocklock}
    redis_url=${REDIS_URL:-redis://127.0.0.1:$redis_port}
    zookeeper_connect=${ZOOKEEPER_CONNECT:-127.0.0.1:$zookeeper_port}
    local number
    for ((number = 1; number <= replicas; number++)); do
        runs "replica-$number" || up_replica "$number"
    done
    for ((number = 1; number <= replicas; number++)); do
        await "replica-$number" 60 answers_http $((first_replica_port + number - 1)) /readyz
    done
    runs nginx || up_nginx
    await nginx 30 answers_http "$port" /healthz
    report
}

is_ours() { grep -qx "$1" "$state/names"; }

any_runs() {
    local name
    [[ -r $state/names ]] || return 1
    while read -r name; do
        if runs "$name"; then return 0; fi
    done <"$state/names"
    return 1
}

# Tells what runs; fails if something does not.
report() {
    local name result=0
    while read -r name; do
        if runs "$name"; then
            say "$name: runs, process $(process_id "$name"), port $(port_of "$name")"
        else
            say "$name: does not run"
            result=1
        fi
    done <"$state/names"
    say "http://127.0.0.1:$port is nginx; data and logs are in $state"
    return "$result"
}

port_of() { # NAME
    case $1 in
    mariadb) echo "$mariadb_port" ;;
    redis) echo "$redis_port" ;;
    zookeeper) echo "$zookeeper_port" ;;
    nginx) echo "$port" ;;
    replica-*) echo $((first_replica_port + ${1#replica-} - 1)) ;;
    esac
}

status() {
    [[ -r $state/settings ]] || fail "nothing has been started in $state"
    port=$(sed -n '1s/.* port=\([0-9]*\) .*/\1/p' "$state/settings")
    assign_ports
    report
}

# In the order opposite to their start: who asks stops before who answers.
down() {
    local all index
    if [[ ! -r $state/names ]]; then
        say "nothing has been started in $state"
        return
    fi
    [[ ! -L $state && -O $state ]] || fail "$state is not yours"
    exec 9>"$state/lock"
    flock -w 120 9 || fail "another replicas.sh is at work in $state"
    mapfile -t all <"$state/names"
    for ((index = ${#all[@]} - 1; index >= 0; index--)); do
        stop "${all[index]}" "$(stop_signal "${all[index]}")" 30
    done
    if [[ $remove ]]; then
        rm -rf "$state"
        say "$state: removed"
    fi
}

assign_ports() {
    mariadb_port=$((port + 1))
    redis_port=$((port + 2))
    zookeeper_port=$((port + 3))
    first_replica_port=$((port + 11))
}

number() { # OPTION VALUE LEAST MOST
    if [[ ! $2 =~ ^[0-9]{1,5}$ ]] || (($2 < $3 || $2 > $4)); then
        fail "$1: a number from $3 to $4 is wanted, not \`$2\`"
    fi
}

command=${1:-}
[[ $command == up || $command == status || $command == down ]] || {
    usage >&2
    exit 2
}
shift
state=${TMPDIR:-/tmp}/stocklock-replicas-$(id -u)
replicas=2 mode=serve port=18080 binary=$root/target/release/stocklock remove=
while (($#)); do
    option=$1
    case $command$option in
    up--lab) mode=lab ;;
    down--remove) remove=yes ;;
    up--replicas | up--binary | up--port | *--state)
        (($# > 1)) || fail "$option wants a value"
        declare "${option#--}=$2"
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
assign_ports
"$command"
