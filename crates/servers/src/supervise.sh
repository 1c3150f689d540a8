# Owns a directory and at most one server in it. When standard input closes, however the test process
# ended, it ends the server and removes the directory.
#
# usage: sh -c "$(cat supervise.sh)" supervise DIRECTORY END-SIGNAL [SERVER ARGUMENT...]
# commands on standard input, one answer each on standard output:
#   start   starts the server                                          -> its process id
#   kill9   kills it and all that it has started, waits until they end -> dead
#   freeze  pauses them                                                -> their process ids
#   thaw    continues them                                             -> thawed

# If the test process is killed while a server is paused, the kernel sends this signal. It must not end the shell.
trap : HUP

directory=$1 end_signal=$2
shift 2
server=
frozen=

# False for a zombie, which stays if process 1 does not reap it.
is_alive() {
    grep -q '^State:[[:space:]]*[^XZ[:space:]]' "/proc/$1/status" 2>/dev/null
}

# Prints the process id of PostgreSQL, which Patroni does not start as its child.
postmaster() {
    [ -r "$directory/data/postmaster.pid" ] || return
    read -r found <"$directory/data/postmaster.pid"
    [ "$found" != "$server" ] && grep -qF "$directory/data" "/proc/$found/cmdline" && echo "$found"
}

# Pauses processes and all below them, and prints their ids. A paused process cannot fork, so the list of
# its children is complete.
freeze() {
    for process in "$@"; do
        kill -s STOP "$process" || continue
        echo "$process"
        # shellcheck disable=SC2046 # one word for each child
        freeze $(cat "/proc/$process/task/"*/children)
    done
}

# Sets `frozen` to the server and all that it has started.
freeze_all() {
    # Patroni first, because it starts PostgreSQL again.
    frozen=$(freeze "$server")
    # shellcheck disable=SC2046 # no word if there is none
    frozen="$frozen $(freeze $(postmaster))"
}

kill9() {
    [ -n "$server" ] || return 0
    freeze_all
    # shellcheck disable=SC2086 # one word for each
    kill -s KILL $frozen
    wait "$server"
    for process in $frozen; do
        while is_alive "$process"; do sleep 0.01; done
    done
    server= frozen=
}

while read -r command; do
    case $command in
    start)
        "$@" </dev/null >>"$directory/log" 2>&1 &
        server=$!
        echo "$server"
        ;;
    kill9)
        kill9
        echo dead
        ;;
    freeze)
        freeze_all
        # shellcheck disable=SC2086 # on one line
        echo $frozen
        ;;
    thaw)
        # shellcheck disable=SC2086 # one word for each
        kill -s CONT $frozen
        frozen=
        echo thawed
        ;;
    esac
done

if [ -n "$server" ]; then
    database=$(postmaster)
    kill -s "$end_signal" "$server"
    # At this signal PostgreSQL removes its shared memory.
    [ -z "$database" ] || kill -s QUIT "$database"
    # A test may have paused them.
    # shellcheck disable=SC2086 # one word for each
    kill -s CONT "$server" $frozen
    wait "$server"
    while [ -n "$database" ] && is_alive "$database"; do sleep 0.01; done
fi
for _ in 1 2 3 4 5; do
    rm -rf "$directory" && break
    sleep 1
done
