#!/usr/bin/env bash
# Tests launch. Its ranks must end together, with the right exit code. Usage: launch_tool.sh PATH/TO/launch
# PATH/TO/joined_rank
. "$(dirname "$0")/tool.sh"
launch=$1 joined=$2
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TG_JOB TG_PORT TG_TOKEN TG_TOKEN_FILE TG_THREADS SLURM_STEP_ID PMI_RANK PMI_SIZE
for v in ${!OMPI_COMM_WORLD_*} ${!TORCHELASTIC_*} ${!MPI_LOCAL*}; do unset "$v"; done

# ends CODE SECONDS COMMAND...: checks the exit code and the time limit. The output is in $dir/out and
# $dir/err.
ends() {
  local code=$1 most=$2 begin=$SECONDS got
  shift 2
  timeout -s KILL 60 "$@" >"$dir/out" 2>"$dir/err" </dev/null
  got=$?
  [ $got = "$code" ] || fail "exit code $got, expected $code: $* ($(cat "$dir/err"))"
  [ $((SECONDS - begin)) -le "$most" ] || fail "$((SECONDS - begin)) s, expected at most $most: $*"
}
has() { [ "$(grep -c -- "$2" "$dir/$1")" = "$3" ] || fail "not $3 lines with '$2' in $1: $(cat "$dir/$1")"; }  # has out|err WORD COUNT

# Tests environment variables of the ranks, and forwarding of their output.
cat >"$dir/program" <<'END'
echo "out $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:${MASTER_PORT:+port} ${TG_JOB:+job} $*"
echo "err $RANK" >&2
printf 'no end'
END
ends 0 5 "$launch" -n 3 sh "$dir/program" a 'b  c' --help
[ "$(cat "$dir/out")" = "out 0/3 0/3 127.0.0.1:port job a b  c --help
no end" ] || fail "rank 0's output: $(cat "$dir/out")"
[ "$(LC_ALL=C sort "$dir/err")" = "[rank 1] err 1
[rank 1] no end
[rank 1] out 1/3 1/3 127.0.0.1:port job a b  c --help
[rank 2] err 2
[rank 2] no end
[rank 2] out 2/3 2/3 127.0.0.1:port job a b  c --help
err 0" ] || fail "the others' output: $(cat "$dir/err")"
[ "$(TG_THREADS=3 "$launch" -n 1 sh -c 'echo $TG_THREADS')" = 3 ] || fail "TG_THREADS is not kept"
[ "$("$launch" --ranks 1000000000 true 2>&1 | wc -l)" = 1 ] || fail "a billion ranks"
[ "$("$launch" -n 64 sh -c 'echo $TG_THREADS' 2>/dev/null)" -ge 1 ] || fail "TG_THREADS of 64 ranks"
[ "$("$launch" --ranks=1 -- echo -n x)" = x ] || fail "options of the program are not passed on"
[ "$(echo from stdin | "$launch" -n 2 sh -c '[ $RANK = 1 ] || cat')" = "from stdin" ] || fail "rank 0's input"

# Tests launch on one of several hosts.
ends 0 5 "$launch" -n 2 --hosts 3 --host 2 --address 10.1.2.3 sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $TG_JOB'
[ "$(cat "$dir/out" "$dir/err")" = "4/6 0/2 10.1.2.3:29500 launch
[rank 5] 5/6 1/2 10.1.2.3:29500 launch" ] || fail "ranks of a third host: $(cat "$dir/out" "$dir/err")"
refuses_command 3 "rank 5 ended with exit code 3" "$launch" -n 2 --hosts 3 --host 2 --address a sh -c '[ $RANK = 4 ] || exit 3'
refuses_command 2 "several --hosts need --address" "$launch" -n 2 --hosts 2 true
refuses_command 2 "several --hosts need --address" "$launch" -n 2 --address a true
refuses_command 2 "host is 2 of 2 hosts: expected 0 to 1" "$launch" -n 2 --hosts 2 --host 2 --address a true
ends 2 5 "$launch" -n 2 --hosts 2 --address 127.0.0.1 "$joined" 5
has err 'neither TG_TOKEN nor TG_TOKEN_FILE is set' 2

# Tests invalid command lines, and programs that cannot be started.
refuses_command 2 "missing --ranks" "$launch" true
refuses_command 2 "missing the program" "$launch" -n 2
refuses_command 2 "--ranks got '0'" "$launch" -n 0 true
refuses_command 2 "unknown option -x" "$launch" -x -n 2 true
refuses_command 127 "cannot run no_such_program: No such file" "$launch" -n 3 no_such_program
refuses_command 127 "cannot run /: Permission denied" "$launch" -n 3 /

# The exit code must be the exit code of the first rank that failed by itself. Later events must not change
# it.
refuses_command 3 "rank 1 ended with exit code 3" "$launch" -n 3 sh -c '[ $RANK != 1 ] || exit 3'
refuses_command 3 "rank 1 ended with exit code 3" "$launch" -n 3 sh -c 'sleep 0.$RANK; [ $RANK = 1 ] && { sleep 0.5; exit 3; } || exit 75'
refuses_command 75 "rank 2 was ended by signal 9 (Killed)" "$launch" -n 3 sh -c '[ $RANK != 2 ] || kill -9 $$'
refuses_command 139 "rank 0 was ended by signal 11" "$launch" -n 2 sh -c '[ $RANK != 0 ] || kill -SEGV $$'
ends 4 4 "$launch" -n 3 --grace 1 sh -c '[ $RANK = 0 ] && exit 4; sleep 30 & wait; sleep 30'
has err "rank 0 ended with exit code 4; others still ran 1 s later and were killed" 1

# If a rank never stops writing, it must not block launch.
ends 3 8 "$launch" -n 3 --grace 1 sh -c '[ $RANK = 1 ] && exec yes; [ $RANK = 2 ] && { sleep 1; exit 3; }; sleep 30'
# Lines must be complete even if ranks end before their output is read. A pipe holds 64 KiB.
{
  "$launch" -n 4 sh -c '[ $RANK = 1 ] && for c in 1 2 3; do printf "%060000d\n" $c; done; sleep 0.$RANK'
} 2>&1 >/dev/null | { sleep 1 && cat; } >"$dir/err"
[ "$(wc -c <"$dir/err")" = 180030 ] || fail "lines of rank 1 were cut: $(wc -c <"$dir/err") bytes, expected 180030"
# A rank may start processes that remain after its end. launch must kill them before the id of the rank's
# process can be reused.
ends 0 5 "$launch" -n 2 sh -c 'if [ $RANK = 1 ]; then echo $$ >'"$dir/process"'; else sleep 0.5; kill -0 $(cat '"$dir/process"'); fi'

# Tests ranks that join the group.
ends 0 5 "$launch" -n 4 "$joined" 1000
has out 'rank 0 of 4: 4000 by' 1
has err '^\[rank [1-3]\] rank [1-3] of 4: 4000 by' 3
ends 0 5 "$launch" -n 1 "$joined" 10
ends 0 5 "$joined" 10
for rank in 0 1 2; do
  ends 75 5 "$launch" -n 3 "$joined" 1000 kill $rank $((RANDOM % 1000))
  has err "joined_rank: \[ranks\] rank $rank is lost: its process exited without reporting an error, or was killed" 2
  has err "^launch: rank $rank was ended by signal 9 (Killed)$" 1
  ends 1 5 "$launch" -n 3 "$joined" 1000 fail $rank $((RANDOM % 1000))
  has err "joined_rank: \[ranks\] rank $rank failed: \[test\] planted" 2
  has err "^launch: rank $rank ended with exit code 1$" 1
done
ends 75 5 "$launch" -n 3 "$joined" 1000 hang 1 7
has err "joined_rank: \[ranks\] rank 1 made no progress for [12].[0-9] s after step 6; rank [02] is waiting for it" 2
has err "^\[rank 1\] \[ranks\] rank 1 made no progress for .* after step 6" 1  # rank 1 is then ended, too

# launch must restart after a loss, up to the given number of times. It must not restart after an error.
ends 0 5 "$launch" -n 3 --restarts 2 "$joined" 100 kill 1 50 "$dir/once"
has err '^launch: rank 1 was ended by signal 9 (Killed): starting all again, 1 of 2$' 1
has out 'rank 0 of 3: 300 by' 1
ends 75 5 "$launch" -n 2 --restarts 2 "$joined" 100 kill 1 50
has err '^launch: ' 3
has err 'starting all again, 2 of 2$' 1
ends 1 5 "$launch" -n 2 --restarts 2 "$joined" 100 fail 1 50
has err '^launch: ' 1

await() {  # await COMMAND...: waits until it succeeds; starting a process may need seconds on a busy machine
  for _ in $(seq 200); do
    "$@" && return
    sleep 0.1
  done
  fail "waited 20 s for: $*"
}
are_ready() { [ "$(find "$dir" -name 'ready.*' | wc -l)" = "$1" ]; }
lines_are() { [ "$(wc -l <"$1")" = "$2" ]; }

# Signals must be forwarded to all ranks, once.
export TG_READY=$dir/ready
for signal in INT TERM HUP; do
  rm -f "$dir"/ready.*
  env --default-signal=HUP "$launch" -n 3 --restarts 2 "$joined" 100000000 slow 1 0 >"$dir/out" 2>"$dir/err" &
  await are_ready 3
  kill -$signal $!
  wait $!
  got=$?
  [ $got = 130 ] || fail "exit code $got after SIG$signal: $(cat "$dir/err")"
  [ -s "$dir/err" ] && fail "SIG$signal: $(cat "$dir/err")"
done
rm -f "$dir"/ready.*
"$launch" -n 2 sh -c 'trap "echo INT of \$RANK >&2" INT; : >$TG_READY.$RANK; while :; do sleep 0.05; done' >"$dir/out" 2>"$dir/err" &
await are_ready 2
kill -INT $!
await lines_are "$dir/err" 2
sleep 0.3  # two signals within 0.2 s count as one
kill -INT $!  # kills the ranks
wait $!
got=$?
[ $got = 130 ] || fail "exit code $got after a second SIGINT"
# Tests a closed terminal, which sends SIGHUP. With nohup, SIGHUP is ignored.
rm -f "$dir"/ready.*
(trap '' HUP; exec "$launch" -n 2 sh -c ': >$TG_READY.$RANK; sleep 1; kill -HUP $$; echo $RANK ended') >"$dir/out.nohup" 2>&1 &
await are_ready 2
kill -HUP $!
wait $! || fail "exit code $? after an ignored SIGHUP"
[ "$(sort "$dir/out.nohup")" = "0 ended
[rank 1] 1 ended" ] || fail "an ignored SIGHUP: $(cat "$dir/out.nohup")"
unset TG_READY
has err "^INT of 0" 1
has err "^\[rank 1\] INT of 1" 1
has err "^launch: a second signal killed the ranks$" 1
# If launch is killed, no rank may remain.
: >"$dir/processes"
"$launch" -n 2 sh -c 'echo $$ >>'"$dir/processes"'; while :; do sleep 0.1; done' 2>/dev/null &
await lines_are "$dir/processes" 2
kill -9 $!
{ wait $!; } 2>/dev/null
are_gone() {
  while read -r p; do ! grep -qs '^State:[[:space:]]*[A-Y]' "/proc/$p/status" || return 1; done <"$dir/processes"
}
await are_gone
# If some ranks cannot be started, no rank may remain, even if ranks ignore signals.
: >"$dir/processes"
(ulimit -n 100
 refuses_command 127 "pipe failed: Too many open files" "$launch" -n 200 sh -c 'trap "" TERM; echo $$ >>$0; while [ -e $0 ]; do sleep 0.1; done' "$dir/processes"
 exit $failed) || failed=1
[ -s "$dir/processes" ] || fail "no rank was started"
await are_gone

# If the environment prevents ranks from joining, launch must end immediately with one line and exit code 2.
wrong() {  # wrong WORD VARIABLES...
  local word=$1
  shift
  refuses_command 2 "$word" env "$@" "$joined" 1
}
wrong "RANK is 2 but WORLD_SIZE is 2: expected 0 to 1" RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2
wrong "WORLD_SIZE is 'two': expected 1 to 1024" RANK=0 WORLD_SIZE=two
wrong "WORLD_SIZE is 2 but RANK is not set" WORLD_SIZE=2
wrong "so there are several hosts, but MASTER_ADDR is not set" RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1
wrong "OMPI_COMM_WORLD_RANK is 7" OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_SIZE=2
wrong "SLURM_STEP_TASKS_PER_NODE is not set" SLURM_STEP_ID=1 SLURM_PROCID=0 SLURM_NTASKS=2 SLURM_LOCALID=0
wrong "PMI_SIZE is not set" PMI_RANK=0
# Tests two different programs.
cp "$joined" "$dir/other" && printf x >>"$dir/other"
ends 2 5 "$launch" -n 3 sh -c '[ $RANK = 2 ] && exec '"$dir/other"' 1; exec '"$joined"' 1'
has err "\[ranks\] rank 2 runs build [0-9a-f]*, rank 0 [0-9a-f]*: expected the same program" 3
# Tests ranks with the environment of mpirun, ranks without a job name, and a rank that does not join.
for rank in 0 1; do
  PMI_RANK=$rank PMI_SIZE=2 MPI_LOCALRANKID=$rank MPI_LOCALNRANKS=2 "$joined" 10 >"$dir/out$rank" 2>&1 &
done
wait
has out0 'rank 0 of 2: 20 by' 1
has out1 'rank 1 of 2: 20 by' 1
refuses_command 75 "rank 1 did not join within 5.0 s (1 of 2 joined)" env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 "$joined" 1
[ $failed = 0 ] && echo "launch: all as it must be"
exit $failed
