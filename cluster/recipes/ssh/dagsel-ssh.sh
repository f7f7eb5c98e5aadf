#!/usr/bin/env bash
# dagsel on machines that can be reached by ssh without a password: a Dask scheduler here, a worker
# on every host of a list, and `dagsel` with what follows the list. Everything that was started is
# stopped at the end, whatever happens.
#
#   ./dagsel-ssh.sh hosts.txt select '/data/*.parquet' --target label --k best -o results
#
# hosts.txt has a host a line, as ssh knows it (user@host, or a name from ~/.ssh/config). A host that
# is named n times gets n workers. Lines that begin with # do not count. The hosts must see the data
# under the same paths, and have the same Python, Dask and dagsel.
#
#   DAGSEL_ENV      environment on the hosts, whose bin/dask is run (default: that of `dask` here)
#   DAGSEL_ADDRESS  name or address under which the hosts reach this machine (default: Dask's choice)
#   DAGSEL_PORT     of the scheduler (default: any)
#   DAGSEL_THREADS  cores that a worker's matrix products may use (default: 1)
#   DAGSEL_MEMORY   limit of each worker, such as 16GB (default: none)
#   DAGSEL_GPUS     GPUs of each host, with a worker for each; a host is then listed once
#   DAGSEL_WAIT     seconds that all workers may take to start (default: 120)
#   DAGSEL_LOGS     folder for logs (default: dagsel-ssh-logs)
set -euo pipefail

say() { printf 'dagsel-ssh: %s\n' "$*" >&2; }
alive() { kill -0 "$1" 2>/dev/null; }
# One word for a POSIX shell.
quote() { printf "'%s'" "${1//\'/\'\\\'\'}"; }

if (($# < 2)); then
    say "usage: dagsel-ssh.sh HOSTS_FILE select DATA --target NAME …"
    exit 2
fi
mapfile -t hosts < <(sed -e 's/[[:space:]]//g' -e '/^#/d' -e '/^$/d' -- "$1")
shift
if ((${#hosts[@]} == 0)); then
    say "the list of hosts is empty or cannot be read"
    exit 2
fi
for command in dask dagsel python; do
    if ! type "$command" &>/dev/null; then
        say "there is no '$command' on the PATH: activate dagsel's environment"
        exit 2
    fi
done
environment=${DAGSEL_ENV:-$(dirname "$(dirname "$(type -P dask)")")}
wait_seconds=${DAGSEL_WAIT:-120}
threads=${DAGSEL_THREADS:-1}
logs=$(realpath -m "${DAGSEL_LOGS:-dagsel-ssh-logs}")
mkdir -p "$logs"
temporary=$(mktemp -d)

scheduler='' waiting='' job='' ended='' lifeline=''
connections=()
# shellcheck disable=SC2329  # called by `stop`
gone() {
    for _ in {1..100}; do
        kill -0 "$@" 2>/dev/null || return 0
        sleep 0.1
    done
    return 1
}
# For numbers of processes are used again.
forget_ended() {
    local connection left=()
    for connection in "${connections[@]}"; do
        ! alive "$connection" || left+=("$connection")
    done
    connections=("${left[@]}")
}
# shellcheck disable=SC2329
finish() {
    gone "$@" || kill -KILL "$@" 2>/dev/null || true
}
# shellcheck disable=SC2329  # called by a trap
stop() {
    trap '' TERM INT HUP
    local held=("${connections[@]}" ${scheduler:+"$scheduler"} ${waiting:+"$waiting"})
    if [[ -n $job ]]; then
        kill "$job" 2>/dev/null || true
        finish "$job"
    fi
    # See `guarded`: the end of the pipe ends all others.
    [[ -z $lifeline ]] || exec {lifeline}>&-
    ((${#held[@]} == 0)) || finish "${held[@]}"
    rm -rf "$temporary"
}
# At most once, because dagsel takes a second signal for impatience.
interrupt() {
    [[ -z $ended ]] || return 0
    ended=$1
    kill -TERM "$job" 2>/dev/null || true
}
# shellcheck disable=SC2329  # called by traps
terminate() {
    [[ -n $job ]] || exit "$1"
    interrupt "$1"
}
trap stop EXIT
trap 'terminate 143' TERM
trap 'terminate 130' INT
trap 'terminate 129' HUP

# Everything but dagsel reads from this pipe, and only this script can write to it. So they all see
# its end when the script ends, by SIGKILL too, and the hosts when they lose the connection.
mkfifo "$temporary/pipe"
exec {lifeline}<>"$temporary/pipe"
# What a shell runs in place of a command, to end it when standard input ends. A command in the
# background has no standard input, hence the copy as number 3. Dask takes the first signal as a
# request, which a worker that is just starting is slow to fulfil, and ends at the second.
guarded() {
    local command='exec env' word
    for word in "$@"; do command+=" $(quote "$word")"; done
    printf '%s' "exec 3<&0; ($command) 3<&- </dev/null & command=\$!; " \
        "(cat; while kill \"\$command\"; do sleep 3; done) <&3 >/dev/null 2>&1 & " \
        "wait \"\$command\""
}

scheduler_file=$temporary/scheduler.json
# A session of its own, as for all others: Ctrl-C is for this script, which then ends them in order.
setsid sh -c "$(guarded dask scheduler --no-dashboard --port "${DAGSEL_PORT:-0}" \
    --scheduler-file "$scheduler_file" ${DAGSEL_ADDRESS:+--host "$DAGSEL_ADDRESS"})" \
    <"$temporary/pipe" &>"$logs/scheduler.log" {lifeline}>&- &
scheduler=$!
for ((tenths = 0; ; tenths++)); do
    [[ ! -s $scheduler_file ]] || break
    if ((tenths == 10 * wait_seconds)) || ! alive "$scheduler"; then
        say "the scheduler did not start; see $logs/scheduler.log"
        exit 1
    fi
    sleep 0.1
done
address=$(python -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' \
    "$scheduler_file")

worker=(
    "DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON={'OMP_NUM_THREADS': $threads, 'OPENBLAS_NUM_THREADS': $threads, 'MKL_NUM_THREADS': $threads}"
    # For encryption; see docs/deploy/tls.md.
    ${DASK_CONFIG:+"DASK_CONFIG=$DASK_CONFIG"}
)
if [[ -n ${DAGSEL_GPUS:-} ]]; then
    devices=$(seq -s , 0 $((DAGSEL_GPUS - 1)))
    worker+=("CUDA_VISIBLE_DEVICES=$devices" "$environment/bin/dask" cuda worker)
else
    worker+=("$environment/bin/dask" worker --nworkers 1 --memory-limit "${DAGSEL_MEMORY:-0}")
fi
worker+=("$address" --nthreads 1 --no-dashboard --local-directory /tmp --death-timeout "$wait_seconds")
n_workers=$((${#hosts[@]} * ${DAGSEL_GPUS:-1}))
remote=$(guarded "${worker[@]}")
for number in "${!hosts[@]}"; do
    setsid ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 \
        "${hosts[number]}" "exec sh -c $(quote "$remote")" \
        <"$temporary/pipe" &>"$logs/worker-$number.log" {lifeline}>&- &
    connections+=("$!")
done

# For all of them, because dagsel divides its work among those that it finds.
setsid sh -c "$(guarded python -c '
import signal, sys
signal.alarm(int(sys.argv[3]))
from distributed import Client
with Client(sys.argv[1], timeout=sys.argv[3] + "s", set_as_default=False) as client:
    client.wait_for_workers(int(sys.argv[2]))
' "$address" "$n_workers" "$wait_seconds")" <"$temporary/pipe" &>"$logs/waiting.log" {lifeline}>&- &
waiting=$!
status=0
wait -n || status=$?
for number in "${!hosts[@]}"; do
    if ! alive "${connections[number]}"; then
        say "the worker on ${hosts[number]} has ended: $(tail -n 1 "$logs/worker-$number.log")"
        exit 1
    fi
done
if ((status)) || ! alive "$scheduler"; then
    say "$n_workers workers were not there within $wait_seconds s; see the logs in $logs"
    exit 1
fi
waiting=''

setsid dagsel "$@" --scheduler-file "$scheduler_file" </dev/null {lifeline}>&- &
job=$!
# A signal ends `wait`, too. Without workers dagsel would wait for ever.
while alive "$job"; do
    wait -n || true
    forget_ended
    if alive "$job" && { ((${#connections[@]} == 0)) || ! alive "$scheduler"; }; then
        [[ -n $ended ]] || say "the scheduler or all workers have ended; see the logs in $logs"
        interrupt 1
    fi
done
status=0
wait "$job" || status=$?
job=''
((status == 143)) && status=${ended:-143}
exit "$status"
