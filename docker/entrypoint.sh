#!/bin/sh
# Write the cluster file from $FDB_CLUSTER_FILE_CONTENTS, unless there is one: the client keeps its own up to
# date when coordinators move. Then become the command, so that it gets the signals.
set -eu
if [ -n "${FDB_CLUSTER_FILE_CONTENTS:-}" ] && [ ! -s "${FDB_CLUSTER_FILE:?names no file}" ]; then
    printf '%s\n' "$FDB_CLUSTER_FILE_CONTENTS" > "$FDB_CLUSTER_FILE"
fi
exec "$@"
