# Owns a directory and at most one server in it. When standard input closes, however the test process
# ended, it stops the server and removes the directory.
#
# usage: sh -c "$(cat supervise.sh)" supervise DIRECTORY STOP-SIGNAL [SERVER ARGUMENT...]
# commands on standard input, one answer each on standard output:
#   start   starts the server                                -> its process id
#   kill9   kills it and its children, waits until they end  -> dead

directory=$1 stop_signal=$2
shift 2
server=

# False for a zombie, which stays if process 1 does not reap it.
is_alive() {
    grep -q '^State:[[:space:]]*[^XZ[:space:]]' "/proc/$1/status" 2>/dev/null
}

kill9() {
    [ -n "$server" ] || return 0
    # A stopped process cannot fork, so the list of its children is complete.
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
    esac
done

if [ -n "$server" ]; then
    kill -s "$stop_signal" "$server"
    # A test may have stopped it.
    kill -s CONT "$server"
    wait "$server"
fi
for _ in 1 2 3 4 5; do
    rm -rf "$directory" && break
    sleep 1
done
