#!/usr/bin/env bash
# Tests ranks on two hosts. They are started in the same way as by torchrun. Training must be bitwise
# identical to one rank. Also tests the token, a killed rank, and a disconnected host. If the system permits
# network namespaces, each host is a namespace. Otherwise, both hosts are this host.
#   hosts_tool.sh LAUNCH TRAIN JOINED_RANK
set -uo pipefail
launch=$(realpath "$1") train=$(realpath "$2") joined=$(realpath "$3")
if [ -z "${TG_OWN_NAMESPACES+x}" ]; then
  export TG_OWN_NAMESPACES=
  as_root=r
  [ "$(id -u)" = 0 ] && as_root=
  if unshare -${as_root}nm sh -c 'mount -t tmpfs none /run && ip netns add a && ip link add va type veth peer name vb' 2>/dev/null; then
    TG_OWN_NAMESPACES=yes exec unshare -${as_root}nm "$0" "$@"
  fi
fi
dir=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$dir"' EXIT
fail() { echo "hosts_tool: $*" >&2; exit 1; }
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT TG_JOB TG_PORT TG_TOKEN TG_TOKEN_FILE SLURM_STEP_ID
for v in ${!OMPI_COMM_WORLD_*} ${!TORCHELASTIC_*} ${!MPI_LOCAL*} ${!PMI_*}; do unset "$v"; done

if [ -n "$TG_OWN_NAMESPACES" ]; then
  mount -t tmpfs none /run
  address=10.77.0.1
  ip netns add a && ip netns add b
  ip link add va netns a type veth peer name vb netns b
  for host in a b; do
    nsenter --net=/run/netns/$host ip link set lo up
    nsenter --net=/run/netns/$host ip link set v$host up
  done
  nsenter --net=/run/netns/a ip address add 10.77.0.1/24 dev va
  nsenter --net=/run/netns/b ip address add 10.77.0.2/24 dev vb
  on() { nsenter --net=/run/netns/"$1" "${@:2}"; }
else
  echo "hosts_tool: network namespaces are not permitted: both hosts are this one"
  address=127.0.0.1
  on() { "${@:2}"; }
fi
port=$((21000 + $$ % 9000))
umask 077
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$dir/token"

# rank R N COMMAND…: executes COMMAND in this process as rank R of N. The first half of the ranks is on host
# a.
rank() {
  local r=$1 n=$2 host=a
  [ "$r" -ge $((n / 2)) ] && host=b
  on $host env RANK="$r" WORLD_SIZE="$n" LOCAL_RANK=$((r % (n / 2))) LOCAL_WORLD_SIZE=$((n / 2)) MASTER_ADDR=$address \
    MASTER_PORT=$port TORCHELASTIC_RUN_ID=run TORCHELASTIC_RESTART_COUNT="$host" TG_TOKEN_FILE="${token_file-$dir/token}" "${@:3}"
}
# all N COMMAND…: runs all ranks. Their output is in $dir/rank.R, and their exit codes are in codes.
all() {
  local n=$1 pids=() pid
  shift
  for r in $(seq 0 $((n - 1))); do
    rank "$r" "$n" "$@" >"$dir/rank.$r" 2>&1 &
    pids+=($!)
  done
  codes=
  for pid in "${pids[@]}"; do
    wait "$pid"
    codes+="$? "
  done
}
ended() { [ "$codes" = "$1" ] || fail "exit codes $codes, expected $1: $(head -n 3 "$dir"/rank.*)"; }
says() { grep -q -- "$2" "$dir/rank.$1" || fail "rank $1 does not print '$2': $(cat "$dir/rank.$1")"; }

# Tests joining and lost ranks.
all 4 "$joined" 200
ended "0 0 0 0 "
for r in 0 1 2 3; do says $r "rank $r of 4: 800 by"; done
for killed in 0 1 3; do
  all 4 "$joined" 200 kill $killed 100
  for r in 0 1 2 3; do [ $r = $killed ] || says $r "rank $killed is lost: its process exited without reporting an error, or was killed"; done
done
all 4 "$joined" 200 fail 2 100
ended "75 75 1 75 "
for r in 0 1 3; do says $r 'rank 2 failed: \[test\] planted'; done
all 4 "$joined" 200 hang 3 100
ended "75 75 75 75 "
for r in 0 1 2; do says $r 'rank 3 made no progress for .* after step 99'; done

# Tests a missing token, a token file that other users can read, and different tokens.
token_file= all 2 "$joined" 5
ended "2 2 "
says 0 'cannot be read'
rank 0 2 env -u TG_TOKEN_FILE "$joined" 5 >"$dir/rank.0" 2>&1 && fail "joined without a token"
says 0 'neither TG_TOKEN nor TG_TOKEN_FILE is set: expected a secret, the same on all hosts, for example from: openssl rand -hex 32'
chmod 640 "$dir/token"
all 2 "$joined" 5
ended "2 2 "
says 1 'whose mode is 0640: expected 0600'
chmod 600 "$dir/token"
rank 0 2 "$joined" 5 >"$dir/rank.0" 2>&1 &
pid=$!
rank 1 2 env -u TG_TOKEN_FILE TG_TOKEN=0123456789abcdef0123456789abcdef "$joined" 5 >"$dir/rank.1" 2>&1
[ $? = 2 ] || fail "another token: exit code $?"
says 1 'has a different token'
wait $pid
[ $? = 75 ] || fail "after another token rank 0 ended with $?"
says 0 "rank 1 did not join within 5.0 s (1 of 2 joined); rank 0 listens on $address:$((port + 1)); connections with a different token: "
# Tests two different programs.
cp "$joined" "$dir/other" && printf x >>"$dir/other"
all 2 sh -c 'if [ $RANK = 1 ]; then exec '"$dir/other"' 5; else exec '"$joined"' 5; fi'
ended "2 2 "
for r in 0 1; do says $r 'rank 1 runs build [0-9a-f]*, rank 0 [0-9a-f]*: expected the same program'; done

# A disconnected host cannot report anything, not even its end.
if [ -n "$TG_OWN_NAMESPACES" ]; then
  rm -f "$dir"/ready.*
  export TG_READY=$dir/ready
  (while [ ! -e "$dir/ready.0" ] || [ ! -e "$dir/ready.1" ]; do sleep 0.05; done; sleep 0.3; on b ip link set vb down) &
  all 2 "$joined" 100000 slow 0 0
  ended "75 75 "
  for r in 0 1; do grep -qE "rank $((1 - r)) is (lost: its host does not answer|stopped)" "$dir/rank.$r" || fail "rank $r: $(cat "$dir/rank.$r")"; done
  on b ip link set vb up
fi

# Training must be bitwise identical to one rank. Then a rank on the other host is killed, and the run is
# resumed on one rank. The result must again be identical.
for i in $(seq 400); do echo "line $i of a text with numbers $((i * i % 97)) and $((i * 7 % 31))"; done >"$dir/text"
options="--text $dir/text --layers 1 --heads 2 --width 64 --context 16 --batch 2 --accumulate 4 --steps 100 --eval-every 20 --eval-batches 5
  --threads 1 --dropout 0.1 --dtype bf16 --sample 0"
same() {
  local file
  for file in last/model.safetensors last/optimizer.safetensors best/model.safetensors; do
    cmp "$dir/alone/$file" "$dir/$1/$file" || fail "$file of $1 differs from one rank"
  done
}
"$train" $options --out "$dir/alone" >/dev/null || fail "train ended with $?"
for n in 2 4; do
  all $n "$train" $options --out "$dir/on$n"
  [ "${codes//0 /}" = "" ] || fail "training on $n ranks: $codes $(cat "$dir"/rank.*)"
  says 0 "^ranks  *$n on several hosts, each $((4 / n)) of 4 batches"
  same on$n
done
(
  while [ ! -e "$dir/killed/last" ]; do sleep 0.01; done
  for process in $(pgrep -f -- "--out $dir/killed"); do
    grep -qz '^RANK=3$' /proc/$process/environ 2>/dev/null && kill -9 $process
  done
) &
all 4 "$train" $options --out "$dir/killed"
[ "$codes" = "75 75 75 137 " ] || fail "exit codes $codes after rank 3 was killed: $(cat "$dir"/rank.*)"
for r in 0 1 2; do says $r 'rank 3 is lost'; done
"$train" --resume --out "$dir/killed" --threads 1 >/dev/null || fail "it is not resumed"
same killed

# launch runs on each host. A rank is killed, both launchers restart all ranks, and the run continues.
for host in 1 0; do
  name=a
  [ $host = 1 ] && name=b
  on $name env TG_PORT=$((port + 1)) TG_TOKEN_FILE="$dir/token" "$launch" -n 2 --hosts 2 --host $host --address $address --restarts 1 \
    sh -c '[ ! -e "$1/last" ] || again=--resume; shift; exec "$@" $again' sh "$dir/launched" "$train" $options --out "$dir/launched" >"$dir/launch.$host" 2>&1 &
done
while [ ! -e "$dir/launched/last" ]; do sleep 0.01; done
for process in $(pgrep -f -- "^$train .*--out $dir/launched"); do
  grep -qz '^RANK=2$' /proc/$process/environ 2>/dev/null && kill -9 $process
done
wait
for host in 0 1; do
  grep -q 'starting all again, 1 of 1' "$dir/launch.$host" || fail "launch on host $host: $(cat "$dir/launch.$host")"
done
same launched

# One host finds a different checkpoint at the same path.
cp -r "$dir/alone" "$dir/elsewhere" && "$train" --resume --steps 120 --out "$dir/elsewhere" >/dev/null
mkdir "$dir/link"
ln -s "$dir/alone" "$dir/link/0" && ln -s "$dir/elsewhere" "$dir/link/1"
all 2 sh -c 'exec "$@" --out '"$dir"'/link/$RANK' sh "$train" --resume --steps 200
ended "1 1 "
says 1 'rank 1 finds a different checkpoint in .* from rank 0: expected a directory that all hosts share'
echo "hosts_tool: passed"
