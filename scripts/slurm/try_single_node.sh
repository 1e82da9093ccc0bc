#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries train.sbatch and the job arrays of sweep.py on a Slurm of its own: a controller and one node on this machine, as
# root, without accounting. A job of two ranks that needs several time limits must end within ten minutes with the bits
# of a run without a limit.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

fail() { echo "try_single_node: $*" >&2; exit 1; }
if (($#)); then
  echo "usage: scripts/slurm/try_single_node.sh   (as root; SLIPSTREAM replaces build/slipstream)"
  [[ $1 == -h || $1 == --help ]] && exit 0 || exit 2
fi
program=$(realpath -- "${SLIPSTREAM:-build/slipstream}")
[[ -x $program ]] || fail "$program does not exist. Build it (ninja -C build) or set SLIPSTREAM."
((EUID == 0)) || fail "the daemons of Slurm need root."
packages=(slurmctld slurmd slurm-client munge)
for command in slurmctld slurmd sbatch munged; do
  command -v "$command" >/dev/null ||
    DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "${packages[@]}" >/dev/null ||
    fail "apt-get could not install ${packages[*]}."
done

work=$(mktemp -d)
chmod 755 "$work"
daemons=()
tear_down() {
  if ((${#daemons[@]})); then
    scancel --full --signal=KILL --state=RUNNING 2>/dev/null || true
    kill "${daemons[@]}" 2>/dev/null || true
    wait "${daemons[@]}" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap tear_down EXIT

host=$(hostname -s)
export SLURM_CONF=$work/slurm.conf
mkdir "$work"/{state,spool,munge,submit}
head -c 1024 /dev/urandom >"$work/munge/key"
chmod 400 "$work/munge/key"
# Slurm holds a requeued job until its old credential has expired.
cat >"$SLURM_CONF" <<EOF
ClusterName=try
SlurmctldHost=$host
SlurmUser=root
AuthInfo=socket=$work/munge/socket,cred_expire=5
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=try Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE
EOF
munged --foreground --force --key-file="$work/munge/key" --socket="$work/munge/socket" --pid-file="$work/munge/pid" \
  --log-file="$work/munge/log" --seed-file="$work/munge/seed" &>"$work/munge/out" &
daemons+=($!)
for _ in {1..50}; do [[ -S $work/munge/socket ]] && break || sleep 0.1; done
slurmctld -D &>"$work/slurmctld.out" &
daemons+=($!)
slurmd -D &>"$work/slurmd.out" &
daemons+=($!)
for _ in {1..100}; do [[ $(sinfo -h -o %T 2>/dev/null) == idle ]] && break || sleep 0.3; done
[[ $(sinfo -h -o %T) == idle ]] || { cat "$work"/slurm*.log >&2; fail "the node is not idle within 30 s."; }

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
steps = 200
micro_batch_size = 1
global_batch_size = 2
eval_batches = 1
hash_interval = 1
[device]
threads = 1
EOF
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun --oversubscribe --bind-to none -np 2 "$program" train "$work/run.toml" --set output.dir="$work/whole" >"$work/whole.log" 2>&1 ||
  { cat "$work/whole.log" >&2; fail "the run without a limit failed."; }

cat >"$work/sweep.toml" <<EOF
run = "$work/run.toml"
repeats = 2
[set]
ranks = 2
"train.steps" = 6
[grid]
"overlap.bucket_size" = ["4KiB", "16KiB"]
EOF
sweep() { scripts/sweep.py "$work/sweep.toml" --dir "$work/sweep" --program "$program" "$@"; }
sweep --slurm
for _ in {1..120}; do [[ -z $(squeue -h) ]] && break || sleep 1; done
sweep --collect | grep "4 of 4 runs" || { cat "$work"/sweep/array-*.log >&2; fail "the sweep's arrays did not make all runs."; }

# An emulated link makes steps long, which changes no bits. Slurm's shortest limit is one minute, and the signal comes
# up to a minute before its time.
mkdir "$work/submit/build"
ln -s "$program" "$work/submit/build/slipstream"
job=$(cd "$work/submit" &&
  sbatch --parsable --nodes=1 --ntasks-per-node=2 --cpus-per-task=1 --time=1 --signal=B:USR1@20 --output="$work/job.log" \
    "$OLDPWD/scripts/slurm/train.sbatch" "$work/run.toml" --set output.dir="$work/limited" \
    --set comm.emulate.bandwidth=8Mbit/s --set comm.emulate.latency=20ms)
state=PENDING
for _ in {1..540}; do
  state=$(scontrol show job "$job" | grep -o 'JobState=[A-Z_]*' | cut -d= -f2)
  case "$state" in PENDING | CONFIGURING | RUNNING | COMPLETING | REQUEUED) sleep 1 ;; *) break ;; esac
done
grep -E "a signal ended|resumed from|begins at step|requeued" "$work/job.log" || true
requeues=$(scontrol show job "$job" | grep -o 'Restarts=[0-9]*' | cut -d= -f2)
[[ $state == COMPLETED ]] || { tail -n 40 "$work/job.log" "$work/slurmctld.log" >&2; fail "the job ended as $state."; }
((requeues > 0)) || { tail -n 20 "$work/job.log" >&2; fail "the job was never requeued: make its steps longer."; }
bits() { grep -o '"step": *[0-9]*\|"loss": *[^,]*\|"params_hash": *"[^"]*"' "$work/$1/metrics.jsonl"; }
cmp <(bits whole) <(bits limited) || fail "the metrics differ from those of the run without a limit."
echo "job $job was requeued $requeues times; its $(grep -c step "$work/limited/metrics.jsonl") steps have the bits of a run without a limit"
