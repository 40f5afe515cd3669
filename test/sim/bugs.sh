#!/bin/sh
# The check of the checker: each planted bug, switched on, must be found within some seeds, and by the crash points too where
# they reach it. Prints what found it; one that is not found fails. usage: bugs.sh path/to/fb-sim (a build with test hooks)
#
# For reuse_before_unpin reads are made slow (knobs.c).
# parser_overread, nowait and wholebatch are not the node's: the fuzzers, and fb-demo --break, find them.
#
# Out of reach of the crash points, whose load has no fault but the cut, no client that dies, and a device that is never
# full: skip_checksum (nothing is damaged), retry_failed_flush and short_read_as_full (no flush fails, no read is short),
# trust_stale_incarnation and reuse_before_unpin (no segment is used twice), waiter_not_freed (no writer ends early with others
# in line).
set -u
sim=$1
found=0
missed=0

# The bug, what ran, and its output: counts, and prints the first violation in it.
judge() {
    line=$(echo "$3" | grep -E '^violation|^sim: script [0-9]+(, cut| without)' | head -n 1)
    if [ -n "$line" ]; then
        found=$((found + 1))
        echo "$1, $2: $line"
    else
        missed=$((missed + 1))
        echo "$1, $2: NOT FOUND"
        echo "$3" | tail -n 2
    fi
}

for bug in skip_checksum ack_before_flush index_before_commit reuse_before_unpin retry_failed_flush \
    short_read_as_full trust_stale_incarnation waiter_not_freed tombstone_lost stale_attempt_accepted; do
    judge "$bug" seeds "$("$sim" --seeds 3000 --seconds 60 --bug "$bug" 2>&1)"
done
for bug in ack_before_flush index_before_commit tombstone_lost stale_attempt_accepted; do
    judge "$bug" "crash points" "$("$sim" --crash-points --bug "$bug" 2>&1)"
done
echo "$found passed, $missed failed"
[ "$missed" -eq 0 ]
