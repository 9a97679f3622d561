#!/usr/bin/env bash
# Compress every log of a directory, on any number of processes, and report each file once.
#
#     examples/batch.sh fill logs out       # put the names of logs/**/*.log; once
#     examples/batch.sh work logs out       # until nothing is left; start it as often as you like, anywhere
#     examples/batch.sh report out          # a line of JSON for each file, and the files that failed
#
# The queue is in the database of $FDBQUEUE_URL, or else ./fdbqueue-data. Logs and results are files:
# processes on several machines need a shared file system.
set -euo pipefail

queue=logs
results=logs-results

usage() {
    sed -n '2,6s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

# A fill that was killed has put a part of the names: the next one begins with an empty queue.
fill() {
    local from=$1 to=$2
    mkdir -p "$to"
    if [ -e "$to/.filled" ]; then
        echo "$to is filled; to begin again, remove $to/.filled" >&2
        return 1
    fi
    fdbqueue create "$queue" --kind fifottl --ttr 60 --if-not-exists
    fdbqueue truncate "$queue" --yes
    (cd "$from" && find . -type f -name '*.log' | sed 's|^\./||' | sort) | fdbqueue put "$queue" --lines -
    touch "$to/.filled"
}

# The output of `one` goes into the results in the transaction of the ack: a line for each file, once.
work() {
    fdbqueue work "$queue" --exec --into "$results" --create --until-empty --quiet \
        --attempts 3 --backoff 0.1 -- "$0" one "$1" "$2" {}
}

# One file. A second run after a kill writes the same file again, and a half-written one has another name.
one() {
    local from=$1 to=$2 name=$3
    local source="$from/$name" target="$to/$name.gz"
    mkdir -p "$(dirname "$target")"
    gzip --no-name --stdout -- "$source" > "$target.$$"
    mv -- "$target.$$" "$target"
    printf '"%s: %d to %d bytes"\n' "$name" "$(stat -c %s -- "$source")" "$(stat -c %s -- "$target")"
}

# Both commands end with status 1 if there is nothing to show. A line that a killed `get` had written comes again.
report() {
    fdbqueue get "$results" -n 1000000 >> "$1/report.txt" || test $? -eq 1
    sort -u "$1/report.txt"
    fdbqueue tasks "$queue" --state buried || test $? -eq 1
}

case "${1-}:$#" in
    fill:3 | work:3) "$1" "$2" "$3" ;;
    one:4) one "$2" "$3" "$4" ;;
    report:2) report "$2" ;;
    *) usage ;;
esac
