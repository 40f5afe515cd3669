#!/bin/sh
# The check of the demo: with an old behaviour switched on, the demo must fail, and for that behaviour's reason: exit code 1
# and its figure in the report's line. usage: break.sh path/to/fb-demo nowait|wholebatch
# Exit code: 0 it failed as it must, 1 it did not, 2 usage.
set -u
demo=${1:-}
case ${2:-} in
nowait) wanted='^report A: reused .* [1-9][0-9]* failed puts,' ;;
wholebatch) wanted='^report B: [1-9][0-9]* failed keys,' ;;
*)
    echo "usage: break.sh path/to/fb-demo nowait|wholebatch" >&2
    exit 2
    ;;
esac
out=$("$demo" --break "$2" 2>&1)
code=$?
echo "$out"
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
