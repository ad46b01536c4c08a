#!/usr/bin/env bash
# What a quarter of an hour on a machine with a GPU can tell, in at most eleven minutes: tests, first calls, K·V by
# blocks and by Warp, a million rows, float64 beside float32. Each part is a process with a limit of time, and writes
# what it finds as soon as it has it: --out then holds on_device.json and on_device.md, the log, and pytest's reports.
#
#     benchmarks/on_device.sh [--out FOLDER] [--minutes 11] [--only "calls million"] [--small] [--tests "PATHS"]
#
# --out is $OUT, or else a new folder below the current one. --small takes sizes for a CPU. --tests names those to run
# in place of the parts' own. --die PART kills that part after its first row, to see that the others go on. $PYTHON is
# the interpreter, or else python3.
set -uo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
out=${OUT:-$PWD/on-device-$(date +%Y%m%d-%H%M%S)}
minutes=11
chosen="devices float32 calls products million float64"
dies=
options=()

needs() { [ "$1" -ge 2 ] || { echo "$2 needs a value" >&2; exit 2; }; }
while [ $# -gt 0 ]; do
    case $1 in
        --small) options+=(--small --workers 0) ;;
        --out) needs $# "$1"; out=$2; shift ;;
        --minutes) needs $# "$1"; minutes=$2; shift ;;
        --only) needs $# "$1"; chosen=$2; shift ;;
        --tests) needs $# "$1"; read -ra paths <<<"$2"; options+=(--tests "${paths[@]}"); shift ;;
        --die) needs $# "$1"; dies=$2; shift ;;
        *) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
    esac
    shift
done
case $minutes in '' | *[!0-9]* | 0*) echo "--minutes must be a whole number from 1 on: $minutes" >&2; exit 2 ;; esac

# Hundredths of all the time, 89 together: what is left is for programs that must be killed, and for the tables.
share() {
    case $1 in
        about) echo 4 ;;
        devices) echo 10 ;;
        float32) echo 29 ;;
        calls) echo 17 ;;
        products) echo 8 ;;
        million) echo 12 ;;
        float64) echo 9 ;;
        *) echo "--only: there is no part $1" >&2; exit 2 ;;
    esac
}
read -ra parts <<<"$chosen"
for part in "${parts[@]}"; do share "$part" >/dev/null || exit 2; done

mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
cd "$root" || exit 2
export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
tell() { "$python" benchmarks/on_device.py "$@" --out "$out" || exit 1; }

# Of a part alone, which ends its own processes; killed where it does not. Leaves the code in $code.
run() {
    local limit began=$SECONDS kill_after=5 die=()
    limit=$(($(share "$1") * minutes * 60 / 100))
    [ "$1" != "$dies" ] || die=(--die)
    case $1 in devices | float32) kill_after=12 ;; esac # workers of pytest end first
    code=0
    echo "=== $1, at most $limit s" >>"$out/on_device.log"
    timeout --foreground --kill-after="$kill_after" "$limit" "$python" benchmarks/on_device.py "$1" --out "$out" \
        ${die[@]+"${die[@]}"} ${options[@]+"${options[@]}"} >>"$out/on_device.log" 2>&1 || code=$?
    tell ended --only "$1" --code "$code" --took $((SECONDS - began)) --limit "$limit"
}

tell begin --only about "${parts[@]}"
run about
[ "$code" != 1 ] || { tail -n 1 "$out/on_device.log" >&2; exit 1; }
for part in "${parts[@]}"; do run "$part"; done
cat "$out/on_device.md"
