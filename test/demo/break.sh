#!/bin/sh
# The check of the demo: with an old behaviour switched on, the demo must fail, and for that behaviour's reason: exit code 1
# and its figure in the report's line. usage: break.sh path/to/fb-demo nowait|wholebatch
# A busy machine may put more slowly than its device writes: then no put ever finds the pool full, and there is nothing to
# break. So a demo that holds is run again, three times at most.
# Exit code: 0 it failed as it must, 1 it did not, 2 usage.
set -u
tries=4
demo=${1:-}
case ${2:-} in
nowait) wanted='^report A: reused .* [1-9][0-9]* failed puts,' ;;
wholebatch) wanted='^report B: [1-9][0-9]* failed keys,' ;;
*)
    echo "usage: break.sh path/to/fb-demo nowait|wholebatch" >&2
    exit 2
    ;;
esac
code=0
while [ "$code" -eq 0 ] && [ "$tries" -gt 0 ]; do
    out=$("$demo" --break "$2" 2>&1)
    code=$?
    tries=$((tries - 1))
    echo "$out"
done
failed=0
if [ "$code" -ne 1 ]; then
    echo "break: exit code $code, 1 is wanted"
    failed=1
fi
if ! echo "$out" | grep -qE "$wanted"; then
    echo "break: no line is like $wanted"
    failed=1
fi
[ "$failed" -eq 0 ]
