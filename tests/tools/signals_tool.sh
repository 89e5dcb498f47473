#!/usr/bin/env bash
# Tests that signals at any moment end all processes of a job in time, and that saved files are complete.
# Covers each pair of a target and a state, on 2 and on 4 ranks. Also covers tools without launch. The test
# waits for states instead of fixed times.
#   signals_tool.sh FOLDER_OF_TOOLS JOINED_RANK HELD_FSYNC [JOBS]
. "$(dirname "$0")/tool.sh"
tools=$1 joined=$2 held=$3 most=${4:-6}
launch=$tools/launch train=$tools/train
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TG_JOB TG_PORT TG_TOKEN TG_TOKEN_FILE SLURM_STEP_ID PMI_RANK PMI_SIZE
for v in ${!OMPI_COMM_WORLD_*} ${!TORCHELASTIC_*} ${!MPI_LOCAL*}; do unset "$v"; done
export TG_THREADS=1
for i in $(seq 400); do echo "line $i of a text with numbers $((i * i % 97)) and $((i * 7 % 31))"; done >"$dir/text"
tiny=(--text "$dir/text" --layers 1 --heads 2 --width 16 --context 16 --batch 2 --threads 1 --sample 0 --warmup 0)
endless=("${tiny[@]}" --accumulate 4 --steps 100000000 --eval-every 100000000)
evaluating=("${tiny[@]/#16/64}" --accumulate 4 --steps 100000000 --eval-every 3 --eval-batches 400)

# Functions of the cases. $at is the folder of a case, and $pid the process that the case started.
wrong() { echo "$name: $*: $(tail -n 3 "$at/out" 2>/dev/null)" >>"$dir/wrong"; }
await() {  # await COMMAND...: waits until COMMAND succeeds; this may need a long time on a busy machine
  local end=$((SECONDS + 40))
  until "$@"; do
    [ $SECONDS -lt $end ] || { wrong "waited 40 s for $*"; return 1; }
    sleep 0.05
  done
}
begin() { "$@" >"$at/out" 2>&1 </dev/null & pid=$!; }
has_three_rows() { has_rows 3; }
has_rows() { [ "$(wc -l 2>/dev/null <"$at/run/metrics.jsonl" || echo 0)" -ge "$1" ]; }
is_in_state() { grep -qs "^State:[[:space:]]*$2" "/proc/$1/status"; }
is_over() { [ ! -e "/proc/$1" ] || is_in_state "$1" '[ZX]'; }
# A shell starts background processes with SIGINT ignored. So a signal is lost if it is sent before the
# program installs its handler. Until the new process runs the program, it has the shell's handlers.
shell=$(readlink /proc/$$/exe)
catches_interrupts() {  # catches_interrupts PROCESS: also true if the process has ended
  local caught
  [ "$(readlink "/proc/$1/exe")" != "$shell" ] || return
  caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
  (((0x${caught:-2} & 2) != 0))
}
rank_wait() { catches_interrupts "$1" && is_in_state "$1" '[SZ]'; }
rank_rank_wait() { rank_wait "$(process_of "$1")"; }
rank_sleeps() { is_in_state "$(process_of "$1")" S; }
process_of() {  # process_of launch | RANK
  [ "$1" = launch ] && { echo $pid; return; }
  local p
  for p in $(pgrep -P $pid); do
    tr '\0' '\n' 2>/dev/null <"/proc/$p/environ" | grep -qx "RANK=$1" && echo "$p"
  done
}
# When the parent of a stopped process ends, the system continues the process. It does this only if all
# threads of the process are stopped.
are_all_threads_stopped() { ! cat "/proc/$1"/task/*/status 2>/dev/null | grep '^State:' | grep -qv '[[:space:]]T'; }
stop() { kill -STOP "$1" && await is_in_state "$1" T && await are_all_threads_stopped "$1"; }
left() (
  unset TG_CASE  # for grep
  grep -lzsx "TG_CASE=$name" /proc/[0-9]*/environ 2>/dev/null | grep -o '[0-9]*'
)
is_nothing_left() { [ -z "$(left)" ]; }
is_after() { [ $SECONDS -ge "$1" ]; }  # is_after SECOND
# ends CODES SECONDS: checks that the process ends in time with one of these codes, and that no process of its
# job is left. 20 s are added for busy machines.
ends() {
  local code begin=$SECONDS
  wait "$pid" 2>/dev/null
  code=$?
  [[ " $1 " == *" $code "* ]] || wrong "exit code $code, expected $1"
  await is_nothing_left || kill -KILL $(left)
  [ $((SECONDS - begin)) -le $(($2 + 20)) ] || wrong "ended after $((SECONDS - begin)) s, expected $2"
}
resumes() {  # checks that the saved files are complete: trains and saves one more step from them
  local saved next
  saved=$(readlink "$at/run/last") next=$((10#${saved#step-} + 1))
  "$train" --resume --steps $next --out "$at/run" >"$at/resumed" 2>&1 </dev/null || wrong "not resumed: $(tail -n 2 "$at/resumed")"
  [ "$(readlink "$at/run/last")" = "step-$(printf %08d $next)" ] || wrong "after resuming, it did not save step $next"
}
number_of() { kill -l "$1"; }

# Cases: NAME SIGNAL TARGET RANKS. TARGET is launch, 0 or the last rank.
other_than() { [ "$1" = 0 ] && echo $(($2 - 1)) || echo 0; }
trains() { begin "$launch" -n "$ranks" "$@" "$train" "${endless[@]}" --out "$at/run"; await has_rows 3; }
case_running() { trains --grace 60; kill -"$signal" "$(process_of "$target")"; ends 130 0; resumes; }
case_stopped() {  # the target
  trains --grace 60
  local p
  p=$(process_of "$target")
  stop "$p"
  kill -"$signal" "$p"
  ends 130 0
}
case_other_stopped() {
  trains --grace 60
  local p
  p=$(process_of "$target")
  stop "$(process_of "$(other_than "$target" "$ranks")")"
  kill -"$signal" "$p"
  ends 130 0
}
case_in_collective() {  # the other ranks wait for a rank that ignores signals
  local who
  who=$(other_than "$target" "$ranks")
  begin "$launch" -n "$ranks" --grace 1 "$joined" 1000 deaf "$who" 3 "$at/deaf"
  await [ -e "$at/deaf" ]
  kill -"$signal" "$(process_of "$target")"
  # If only this program receives a signal, it does not report the signal to launch.
  [ "$target" = launch ] || kill -"$signal" "$pid"
  ends $((128 + $(number_of "$signal"))) 1
}
case_before_rendezvous() {  # one rank never joins
  local who
  who=$(other_than "$target" "$ranks")
  begin "$launch" -n "$ranks" --grace 60 sh -c '[ $RANK = '"$who"' ] && exec sleep 1000; exec "$@"' sh "$train" "${endless[@]}" --out "$at/run"
  local waits
  [ "$target" = launch ] && waits=$((who == 0 ? 1 : 0)) || waits=$target
  await rank_rank_wait "$waits"
  kill -"$signal" "$(process_of "$target")"
  ends $((128 + $(number_of "$signal"))) 0
}
saves() {  # returns when the second save waits for the disk
  export TG_HOLD=$at/hold
  begin env LD_PRELOAD="$held" "$launch" -n "$ranks" "$@" "$train" "${endless[@]}" --save-every 5 --out "$at/run"
  await [ -e "$at/run/last" ]
  : >"$TG_HOLD"
  await [ -e "$TG_HOLD.held" ]
}
case_saving() {
  saves --grace 1 --save-grace 600
  local first=$SECONDS
  kill -"$signal" "$(process_of "$target")"
  await is_after $((first + 3))  # --grace has expired
  [ -n "$(process_of 0)" ] || wrong "the rank that saves was killed"
  rm "$TG_HOLD"
  ends 130 0
  resumes
}
case_save_too_long() {
  saves --grace 1 --save-grace 2
  kill -"$signal" "$(process_of "$target")"
  ends $((128 + $(number_of "$signal"))) 2
  rm "$TG_HOLD"
  resumes
}
case_evaluating() {
  begin "$launch" -n "$ranks" --grace 60 "$train" "${evaluating[@]}" --out "$at/run"
  await has_rows 2
  kill -"$signal" "$(process_of "$target")"
  ends 130 0
}
case_second_signal() {
  saves --grace 600 --save-grace 600
  kill -"$signal" $pid
  local first=$SECONDS
  await is_after $((first + 2))  # two signals at the same time count as one
  kill -"$signal" $pid
  ends $((128 + $(number_of "$signal"))) 0
  rm "$TG_HOLD"
  resumes
}
case_launch_killed() {
  trains --grace 60
  stop "$(process_of "$target")"
  kill -KILL $pid
  ends 137 8
}
case_launch_killed_in_save() {
  saves --grace 60
  kill -KILL $pid
  await is_over $pid
  rm "$TG_HOLD"
  ends 137 8
  resumes
}
case_rank_killed_in_save() {  # 5 s later, the other ranks are killed; the rank that saves is not killed
  saves --grace 1
  local first=$SECONDS
  kill -KILL "$(process_of $((ranks - 1)))"
  await is_after $((first + 8))
  rm "$TG_HOLD"
  ends 75 0
  resumes
}
case_script() {  # the signal ends the script of the program
  begin "$launch" -n "$ranks" --grace 60 sh -c '"$@"; exit $?' sh "$train" "${endless[@]}" --out "$at/run"
  await has_rows 3
  kill -"$signal" $pid
  ends "130 $((128 + $(number_of "$signal")))" 0
  grep -q '^stopped ' "$at/out" || wrong "not saved"
}
case_output_unread() {
  mkfifo "$at/pipe"
  exec 7<>"$at/pipe"
  "$launch" -n "$ranks" --grace 1 sh -c 'echo >'"$at"'/begun; exec yes' >&7 2>&7 </dev/null 7>&- &
  pid=$!
  await [ -e "$at/begun" ]
  await rank_sleeps $((ranks - 1))  # because its pipe is full
  kill -"$signal" $pid
  ends $((128 + $(number_of "$signal"))) 1
  exec 7>&-
}
# Cases without launch. COMMAND is started in the case's folder and receives the signal when READY succeeds.
single() {  # single CODE SECONDS READY COMMAND...
  local code=$1 seconds=$2 ready=$3
  shift 3
  begin "$@"
  await $ready $pid
  kill -"$signal" $pid
  ends "$code" "$seconds"
}
killed() { echo $((128 + $(number_of "$signal"))); }
case_single_running() { single 130 8 has_three_rows "$train" "${endless[@]}" --out "$at/run"; resumes; }
case_single_twice() {  # as GNU timeout sends them
  begin "$train" "${endless[@]}" --out "$at/run"
  await has_rows 3
  kill -"$signal" $pid && kill -"$signal" $pid
  ends 130 8
  resumes
}
case_single_rendezvous() {
  export RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 TG_JOB="$name$$"
  single "$(killed)" 8 rank_wait "$train" "${endless[@]}" --out "$at/run"
}
case_single_unread() {
  mkfifo "$at/pipe"
  exec 7<>"$at/pipe"
  (yes >&7 & echo $! >"$at/yes"; sleep 0) 2>/dev/null
  await is_in_state "$(cat "$at/yes")" S
  "$train" "${endless[@]}" --out "$at/run" >&7 2>"$at/out" </dev/null 7>&- &
  pid=$!
  await catches_interrupts $pid
  await is_in_state $pid S
  kill -"$signal" $pid
  local code
  wait $pid
  code=$?
  kill "$(cat "$at/yes")"
  exec 7>&-
  [ $code = "$(killed)" ] || wrong "exit code $code, expected $(killed)"
}
case_single_saving() {
  export TG_HOLD=$at/hold
  begin env LD_PRELOAD="$held" "$train" "${endless[@]}" --save-every 5 --out "$at/run"
  await [ -e "$at/run/last" ]
  : >"$TG_HOLD"
  await [ -e "$TG_HOLD.held" ]
  local first=$SECONDS
  kill -"$signal" $pid
  await is_after $((first + 11))
  is_in_state $pid '[RSD]' || wrong "it did not finish its save"
  rm "$TG_HOLD"
  ends 130 8
  resumes
}
case_tool() {  # of $target
  local command
  case $target in
    generate) command="--model $dir/model --max-tokens 100000000" ;;
    evaluate) command="--model $dir/model --text $dir/long --stride 1" ;;
    tokens) command="--text $dir/long --vocabulary 60000 --out $at/tokens" ;;
    gradcheck) command="--all" ;;
    bench) command="train" ;;
  esac
  begin "$tools/$target" $command
  await catches_interrupts $pid
  kill -"$signal" $pid
  ends "$(killed) 0 1 2" 8  # it may have ended earlier
}

run() {  # run CASE SIGNAL TARGET RANKS
  signal=$2 target=$3 ranks=$4 name=$1.$2.$3.$4 at=$dir/$1.$2.$3.$4
  mkdir "$at"
  (
    trap - EXIT
    export TG_CASE=$name
    case_"$1"
  ) 2>"$at/trace" &
  while [ "$(jobs -rp | wc -l)" -ge "$most" ]; do wait -n; done
  count=$((count + 1))
}
count=0
"$train" "${tiny[@]}" --steps 2 --out "$dir/model" >/dev/null || fail "training"
for i in $(seq 100); do cat "$dir/text"; done >"$dir/long"
[ -n "${CASES-}" ] || for signal in TERM INT; do
  for target in generate evaluate tokens gradcheck bench; do [ -x "$tools/$target" ] && run tool $signal $target 1; done
  for case in running twice rendezvous unread saving; do run single_$case $signal none 1; done
done
for ranks in 2 4; do
  for signal in TERM INT; do
    for case in ${CASES-running stopped other_stopped in_collective before_rendezvous saving evaluating}; do
      for target in launch 0 $((ranks - 1)); do run $case $signal $target $ranks; done
    done
  done
  [ -n "${CASES-}" ] && continue
  run save_too_long TERM launch $ranks
  run second_signal INT launch $ranks
  run launch_killed TERM $((ranks - 1)) $ranks
  run launch_killed_in_save TERM launch $ranks
  run rank_killed_in_save TERM launch $ranks
  run script TERM launch $ranks
  run output_unread TERM launch $ranks
done
wait
[ ! -e "$dir/wrong" ] || fail "$(cat "$dir/wrong")"
[ $failed = 0 ] && echo "signals: $count cases, no process remains"
exit $failed
