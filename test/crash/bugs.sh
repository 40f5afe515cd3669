#!/bin/bash
# Checks the checker: fb-crash must find each planted bug that lies in its reach, within a bounded
# number of cycles. Usage: bugs.sh [build folder, build/hooks by default] [bug ...]
# Exit code: 0 all found, 1 one was not.
set -u
build=${1:-build/hooks}
shift || true

# The bug, and the options that bring it within reach.
plan() {
    case $1 in
    ack_before_flush) echo "--cycles 60 --forget 1" ;;
    skip_checksum) echo "--cycles 120" ;;
    index_before_commit) echo "--cycles 120" ;;
    trust_stale_incarnation) echo "--cycles 400 --ssd-mib 24" ;;
    tombstone_lost) echo "--cycles 60" ;;
    *) return 1 ;;
    esac
}

bugs=("$@")
if [ ${#bugs[@]} -eq 0 ]; then
    bugs=(ack_before_flush skip_checksum index_before_commit trust_stale_incarnation tombstone_lost)
fi

missed=0
for bug in "${bugs[@]}"; do
    options=$(plan "$bug") || { echo "bugs: $bug is not in the reach of fb-crash"; exit 1; }
    # shellcheck disable=SC2086
    out=$(timeout 300 "$build/fb-crash" --seed 7 --bug "$bug" $options 2>&1)
    code=$?
    if [ $code -eq 1 ] && grep -q '^crash: FAILED' <<<"$out"; then
        echo "bugs: $bug found: $(grep -m1 '^crash: FAILED' <<<"$out" | cut -c1-160)"
        # What a planted bug leaves behind is of no use.
        sed -n 's/^crash: kept \(.*\) and \(.*\)\/state$/\1\n\2/p' <<<"$out" |
            while read -r d; do case $d in */forebay-crash*) rm -rf "$d" ;; esac; done
    else
        echo "bugs: $bug NOT found (exit code $code)"
        missed=$((missed + 1))
    fi
done
echo "bugs: ${#bugs[@]} planted, $((${#bugs[@]} - missed)) found"
[ $missed -eq 0 ]
