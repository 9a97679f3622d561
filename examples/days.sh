#!/usr/bin/env bash
# Cut a log into one compressed file for each day, in a script that holds a lease over several commands.
#
#     fdbqueue create days                  # in the database of $FDBQUEUE_URL, or else ./fdbqueue-data
#     fdbqueue put days 20261130 20261201
#     examples/days.sh app.log out          # until no task is ready; start it as often as you like, anywhere
#
# A script that is killed leaves its day to another one, when the lease is over.
set -euo pipefail

queue=days
log=${1:?} to=${2:?}
ttr=${TTR:-60}
mkdir -p -- "$to"

while :; do
    task=$(fdbqueue take "$queue" --ttr "$ttr") || { status=$?; break; }
    IFS=$'\t' read -r _ token day <<< "$task"
    if ! grep -- "^$day " "$log" > "$to/$day.$$"; then
        rm -f -- "$to/$day.$$"
        fdbqueue bury "$queue" "$token" --failure NoLines --reason "$log has no line of $day"
        continue
    fi
    fdbqueue touch "$queue" "$token" --ttr "$ttr"
    gzip --no-name --stdout -- "$to/$day.$$" > "$to/$day.gz.$$"
    mv -- "$to/$day.gz.$$" "$to/$day.gz"
    rm -- "$to/$day.$$"
    fdbqueue ack "$queue" "$token"
done
# 1: no task is ready. Any other status is an error.
test "$status" -eq 1
