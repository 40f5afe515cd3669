#!/bin/sh
# The check of the checker: each planted bug, switched on, must be found within some seeds. Prints which seed found it; one
# that is not found fails. usage: bugs.sh path/to/fb-sim (a build with test hooks)
# reuse_before_unpin and short_read_as_full are rarely in reach of these seeds: test/unit/engine/log_crash_test.c finds them.
set -u
sim=$1
found=0
missed=0
for bug in skip_checksum ack_before_flush index_before_commit retry_failed_flush trust_stale_incarnation \
    waiter_not_freed tombstone_lost stale_attempt_accepted; do
    line=$("$sim" --seeds 3000 --seconds 60 --bug "$bug" 2>&1 | grep '^violation' | head -n 1)
    if [ -n "$line" ]; then
        found=$((found + 1))
        echo "$bug: $line"
    else
        missed=$((missed + 1))
        echo "$bug: NOT FOUND"
    fi
done
echo "$found passed, $missed failed"
[ "$missed" -eq 0 ]
