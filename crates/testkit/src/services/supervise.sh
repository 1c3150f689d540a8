# Owns a directory and at most one server in it, and outlives the test process by a moment: when
# standard input closes, however that process ended, it stops the server and removes the directory.
#
# usage: sh -c "$(cat supervise.sh)" supervise DIRECTORY STOP-SIGNAL [SERVER ARGUMENT...]
# orders on standard input, answers on standard output:
#   start   starts the server                              -> its process id
#   kill9   kills it and its children, waits for their end -> dead

directory=$1 stop_signal=$2
shift 2
server=

# A dead process may stay as a zombie where process 1 does not reap.
is_alive() {
    grep -q '^State:[[:space:]]*[^XZ[:space:]]' "/proc/$1/status" 2>/dev/null
}

kill9() {
    [ -n "$server" ] || return 0
    # A stopped process forks no more, so the list of its children is complete.
    kill -s STOP "$server"
    children=$(cat "/proc/$server/task/$server/children" 2>/dev/null)
    # shellcheck disable=SC2086 # one word for each child
    kill -s KILL "$server" $children
    wait "$server"
    for child in $children; do
        while is_alive "$child"; do sleep 0.01; done
    done
    server=
}

while read -r order; do
    case $order in
    start)
        "$@" </dev/null >>"$directory/log" 2>&1 &
        server=$!
        echo "$server"
        ;;
    kill9)
        kill9
        echo dead
        ;;
    esac
done

if [ -n "$server" ]; then
    kill -s "$stop_signal" "$server"
    # A test may have left it paused.
    kill -s CONT "$server"
    wait "$server"
fi
for _ in 1 2 3 4 5; do
    rm -rf "$directory" && break
    sleep 1
done
