# Sourced by replicas.sh: starting, watching and stopping processes of which only the id is kept, and
# asking servers whether they answer. Needs `state`, the directory; a server's log is NAME.log there,
# its process NAME.pid: the id, and when it began, so that nobody else's process is ever stopped.
# shellcheck shell=bash disable=SC2034,SC2154 # some variables are replicas.sh's

say() { printf 'replicas: %s\n' "$*"; }

fail() {
    printf 'replicas: %s\n' "$@" >&2
    exit 1
}

# MariaDB refuses to run as root, and nobody else has to.
if [[ $(id -u) == 0 ]]; then
    server_user=nobody
    as_server=(setpriv "--reuid=nobody" "--regid=$(id -g nobody)" --clear-groups --)
else
    server_user=$(id -un)
    as_server=()
fi

# Prints when the process began, in ticks since the boot: with its id, that names it for good.
# Nothing if it has ended, though nobody may have waited for it yet.
began() {
    local stat
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    # What follows the name, which may have blanks and brackets in it: state, …
    read -r -a stat <<<"${stat##*) }"
    [[ ${stat[0]} == [ZX] ]] || echo "${stat[19]}"
}

runs() { # NAME
    local id start
    [[ -r $state/$1.pid ]] || return 1
    read -r id start <"$state/$1.pid"
    [[ $start && $(began "$id") == "$start" ]]
}

process_id() { # NAME
    local id
    read -r id _ <"$state/$1.pid"
    echo "$id"
}

started=()
start() { # NAME OUTPUT COMMAND...
    local name=$1 output=$2
    shift 2
    # In a session of its own: the end of the terminal is not the end of the servers. The lock is
    # not theirs to keep.
    (cd "$state" && exec setsid "$@") </dev/null >>"$output" 2>>"$state/$name.log" 9>&- &
    echo "$! $(began $!)" >"$state/$name.pid"
    started+=("$name")
}

stop() { # NAME SIGNAL SECONDS
    local name=$1 id begin=$SECONDS
    if runs "$name"; then
        id=$(process_id "$name")
        kill -s "$2" "$id" 2>/dev/null || true
        # It may have been paused.
        kill -s CONT "$id" 2>/dev/null || true
        while runs "$name"; do
            if ((SECONDS - begin > $3)); then
                say "$name does not end within $3 s: killing it"
                kill -s KILL "$id" 2>/dev/null || true
                sleep 1
            fi
            sleep 0.05
        done
        say "$name: stopped"
    fi
    rm -f "$state/$name.pid"
}

# Waits until COMMAND succeeds.
await() { # NAME SECONDS COMMAND...
    local name=$1 seconds=$2 begin=$SECONDS
    shift 2
    until "$@"; do
        runs "$name" || give_up "$name ended; the end of its log:" "$name"
        ((SECONDS - begin <= seconds)) ||
            give_up "$name is not ready after $seconds s; the end of its log:" "$name"
        sleep 0.1
    done
}

# Ends with a message and the end of a log, and stops what this call has started.
give_up() { # MESSAGE [NAME]
    local name index lines=("$1")
    if [[ ${2:-} ]]; then lines+=("$(tail -n 8 "$state/$2.log")"); fi
    for ((index = ${#started[@]} - 1; index >= 0; index--)); do
        name=${started[index]}
        stop "$name" "$(stop_signal "$name")" 15
    done
    fail "${lines[@]}"
}

stop_signal() { # NAME
    # nginx: finish what is under way; a TERM would cut it.
    if [[ $1 == nginx ]]; then echo QUIT; else echo TERM; fi
}

need() { # PROGRAM...
    local program
    for program; do
        if [[ $program == /* ]]; then
            [[ -e $program ]] || fail "$program is missing: run \`make services\`, or install it yourself"
        else
            type -P "$program" >/dev/null || fail "$program is missing: run \`make services\`, or install it yourself"
        fi
    done
}

# Sends PORT a text and prints the answer's first line, within two seconds.
ask() { # PORT TEXT
    # shellcheck disable=SC2016 # for the inner shell
    timeout 2 bash -c '
        exec 3<>"/dev/tcp/127.0.0.1/$1" && printf "$2" >&3 && IFS= read -r line <&3 || [[ $line ]]
        printf "%s" "$line"' ask "$1" "$2" 2>/dev/null || true
}

answers_http() { # PORT PATH
    [[ $(ask "$1" "GET $2 HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n") == *" 200 "* ]]
}

is_free() { # PORT
    ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

take_port() { # NAME PORT
    is_free "$2" || give_up "$1 cannot have port $2, which is in use: choose others with --port"
}
