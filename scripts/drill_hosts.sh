#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Faults of whole hosts, on four network namespaces of one machine: a checkpoint of four hosts is read on three, and a
# run that loses a host continues on the spare one with the same bits.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."

if (($#)); then
  echo "usage: scripts/drill_hosts.sh   (as root; SLIPSTREAM replaces build/slipstream)"
  [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2
fi
program=$(realpath -- "${SLIPSTREAM:-build/slipstream}")
[[ -x $program ]] || { echo "drill_hosts: $program does not exist. Build it (ninja -C build) or set SLIPSTREAM." >&2; exit 2; }
relauncher=$(realpath scripts/slipstream-run)
# shellcheck source=scripts/netlab.sh
source scripts/netlab.sh
netlab_require drill_hosts
work=$(mktemp -d)
trap 'netlab_down; rm -rf "$work"' EXIT
netlab_up drill_hosts 4 1Gbit
# A lost host does not answer the agent of the launcher either.
sed -i "2a while [[ \$1 == -* ]]; do shift; done\n[[ ! -e $work/lost.\$1 ]] || { echo \"ssh: connect to host \$1 port 22: No route to host\" >\&2; exit 255; }" "$netlab_work/agent"

for i in {1..3000}; do echo "the wind carries every sail $((i * 7919 % 1000)) before a quiet harbour"; done >"$work/text.txt"
cat >"$work/run.toml" <<EOF
[model]
family = "gpt2"
layers = 2
heads = 2
width = 32
context = 32
[data]
train = "$work/text.txt"
tokenizer = "bytes"
[train]
micro_batch_size = 1
global_batch_size = 12
eval_batches = 1
[comm]
timeout_seconds = 10
start_timeout_seconds = 60
EOF
run() { # NAME FLAGS...
  netlab_mpirun "$program" train "$work/run.toml" --set output.dir="$work/$1" "${@:2}" >"$work/$1.log" 2>&1 ||
    { cat "$work/$1.log" >&2; echo "drill_hosts: the run '$1' failed" >&2; exit 1; }
}
hash_of() { grep -o '"params_hash": *"[^"]*"' "$work/$1/metrics.jsonl" | tail -n 1; }
fail() { echo "drill_hosts: $*" >&2; exit 1; }

echo "four hosts save, three read:"
run four --set zero.stage=3 --set train.steps=6 --set checkpoint.interval=6
cp -r "$work/four" "$work/three"
netlab_hosts=3
# With a learning rate of 0 the weights stay as they were read.
run three --resume --set zero.stage=3 --set train.steps=7 --set optimizer.learning_rate=0 --set optimizer.min_learning_rate=0 \
  --set optimizer.warmup_steps=0 --set checkpoint.dir="$work/three/checkpoints"
grep "resumed from" "$work/three.log"
[[ $(hash_of four) == "$(hash_of three)" ]] || fail "three hosts read $(hash_of three), four saved $(hash_of four)"
echo "  equal weights: $(hash_of three)"

more=(--set train.steps=600 --set train.log_interval=100)
run calm "${more[@]}"
netlab_hosts=4
for i in 0 1 2 3; do echo "$(netlab_host $i) slots=1"; done >"$work/hosts"
launcher="mpirun --mca plm_rsh_agent $netlab_work/agent --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include $netlab_net.0/24 --mca btl_tcp_if_include $netlab_net.0/24 --mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1 --bind-to none"
lost=$(netlab_host 2)

lose_a_host() { # NAME SOURCE FLAGS...: three hosts train, and one is lost after step 100; the spare one continues from SOURCE
  local name=$1 source=$2 code=0
  ip netns exec "$(netlab_host 0)" unshare --uts bash -c "hostname $(netlab_host 0) && cd $PWD && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    exec $relauncher -np 3 --hostfile $work/hosts --launcher '$launcher' $program train $work/run.toml --set output.dir=$work/$name ${more[*]} ${*:3}" \
    >"$work/$name.log" 2>&1 </dev/null &
  local relauncher_id=$!
  for _ in {1..600}; do
    [[ ! -s $work/$name/metrics.jsonl ]] || (($(wc -l <"$work/$name/metrics.jsonl") < 110)) || break
    sleep 0.1
  done
  touch "$work/lost.$lost"
  ip -n "$lost" link set wire down  # no packet leaves it any more, not even one that closes a connection
  ip netns pids "$lost" | xargs -r kill -9
  wait $relauncher_id || code=$?
  cat "$work/$name.events.jsonl"
  ((code == 0)) || { cat "$work/$name.log" >&2; fail "slipstream-run ended with exit code $code"; }
  grep -q '"spare"' "$work/$name.events.jsonl" || fail "no spare host took part"
  grep "resumed from.*$source" "$work/$name.log" || fail "no start continued from $source"
  [[ $(hash_of calm) == "$(hash_of "$name")" ]] || fail "the run that lost a host has $(hash_of "$name"), without faults $(hash_of calm)"
  echo "  the bits of a run without faults: $(hash_of "$name")"
  rm "$work/lost.$lost"
  ip -n "$lost" link set wire up
}

echo "a host is lost:"
lose_a_host lost step- --set checkpoint.interval=50 --set checkpoint.keep=2
echo "a host is lost, and no checkpoint is on disk:"
lose_a_host remembered "memory of 2 hosts" --set checkpoint.peer_interval=1
