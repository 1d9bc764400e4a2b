#!/usr/bin/env bash
# One training run on this machine, from the checks to its end.
#
#   launch/one_node.sh CONFIG WORKDIR [FLAGS OF metaagent_x.train ...]
#   launch/one_node.sh configs/qwen3_4b.py runs/qwen3_4b --config.model.path=models/qwen3-4b-cold-start
#
# Preflight first: all of it for a new run, only the checks for one that goes on. Then the run; after a crash (exit code
# 1, or a signal that it did not expect) the same command again, at most RESTARTS times in a row without a further step;
# not if a guard stopped it (docs/operations.md), which would do so again.
# A signal is passed on, and nothing is started again. What is printed goes to WORKDIR/log too.
#
# Ends with the code of the run: 0 done, 2 bad input or a check that failed, 3 interrupted (the same command goes on),
# anything else: it crashed too often, or stopped itself.
#
# PYTHON     interpreter of the learner (.venv/bin/python, or else python3)
# RESTARTS   5; 0: none
# BACKOFF_S  30, before the first restart; doubles with every further one, up to 600
set -euo pipefail
(($# >= 2)) || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
config=$1 run=$2
shift 2
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-}
[[ $python ]] || { [[ -x .venv/bin/python ]] && python=.venv/bin/python || python=python3; }
restarts=${RESTARTS:-5} backoff=${BACKOFF_S:-30}

command -v "$python" > /dev/null || { echo "no interpreter $python; see docs/launch.md, or set PYTHON" >&2; exit 2; }
[[ -f $config ]] || { echo "no config $config in $PWD" >&2; exit 2; }
mkdir -p "$run"
# tee outlives the signals that this script hears, and what is printed on the way out is in the log.
exec > >(trap '' INT TERM; exec tee -a "$run/log") 2>&1
tee=$!
# The log is whole when this script ends; a stray process that holds its end of the line is not waited for.
finish() {
  exec >&- 2>&-
  for _ in {1..50}; do kill -0 "$tee" 2> /dev/null || break; sleep 0.1; done
}
trap finish EXIT

say() { echo "$(date -u +%FT%TZ) one_node: $*"; }

asked='' child=''
hear() { asked=$1 heard=1; say "SIG$1"; [[ -z $child ]] || kill -TERM "$child" 2> /dev/null || true; }
trap 'hear INT' INT
trap 'hear TERM' TERM

# Runs a command to its end, whatever this script hears meanwhile. Returns its code.
attend() {
  local code
  "$@" < /dev/null &
  child=$!
  [[ -z $asked ]] || kill -TERM "$child" 2> /dev/null || true # heard before there was anyone to tell
  while heard=''; code=0; wait "$child" || code=$?; [[ $heard ]]; do :; done
  child=''
  return "$code"
}

# Whether a guard of the run has just ended it: its last words are in the log, a moment later at most.
stopped() {
  sleep 0.5
  [[ -n $(tail -n "+$((before + 1))" "$run/log" | grep '^stopped:') ]]  # all of it is read: no broken pipe
}

steps() { [[ -f $run/metrics.jsonl ]] && wc -l < "$run/metrics.jsonl" || echo 0; }

train=("$python" -m metaagent_x.train "--config=$config" "--workdir=$run" "$@")
code=0
if [[ -s $run/metrics.jsonl ]]; then
  attend "${train[@]}" --preflight --preflight_steps=0 || code=$?
else
  attend "${train[@]}" --preflight || code=$?
fi
[[ -z $asked ]] || { say "interrupted before the run"; exit 3; }
((code == 0)) || { say "preflight ended with code $code; nothing was started"; exit "$code"; }

tries=0 furthest=$(steps) pause=$backoff
while :; do
  say "${train[*]}"
  code=0 before=$(wc -l < "$run/log")
  attend "${train[@]}" || code=$?
  say "exit code $code"
  case $code in 0 | 2 | 3) exit "$code" ;; esac
  if stopped; then
    say "it stopped itself, as it would again: change what it names"
    exit "$code"
  fi
  [[ -z $asked ]] || exit "$((code > 128 ? 3 : code))" # by the signal itself: nothing had begun
  if (($(steps) > furthest)); then
    tries=0 furthest=$(steps) pause=$backoff
  fi
  ((tries < restarts)) || { say "given up after $tries restarts without a further step"; exit "$code"; }
  tries=$((tries + 1))
  say "restart $tries of $restarts in $pause s"
  attend sleep "$pause" || true
  [[ -z $asked ]] || { say "interrupted between two tries"; exit 3; }
  pause=$((pause * 2 < 600 ? pause * 2 : 600))
done
