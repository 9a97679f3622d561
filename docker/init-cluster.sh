#!/bin/sh
# Make a new cluster's database, once: double redundancy, ssd. A cluster that has one is left as it is.
set -u
cli() { "${FDBCLI:-fdbcli}" -C "${FDB_CLUSTER_FILE:?names no file}" --timeout "$1" --exec "$2"; }

[ -z "${FDB_CLUSTER_FILE_CONTENTS:-}" ] || printf '%s\n' "$FDB_CLUSTER_FILE_CONTENTS" > "$FDB_CLUSTER_FILE"
tries=${TRIES:-60}
while [ "$tries" -gt 0 ]; do
    case "$(cli 5 'status minimal' 2>&1)" in
        *"is available"*) echo "the database is available"; exit 0 ;;
    esac
    # Refused, and harmless, where there is a database that has merely not answered yet.
    cli 20 'configure new double ssd'
    tries=$((tries - 1))
    sleep "${PAUSE_S:-1}"
done
echo "the database did not become available" >&2
exit 1
