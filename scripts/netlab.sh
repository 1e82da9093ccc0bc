# SPDX-License-Identifier: Apache-2.0
# Sourced by benchmarks: hosts on one machine, joined by links of a given rate. Needs root.
#
# A host is a network namespace with a host name. All hosts connect to one bridge, and each sends at the line rate (tc
# tbf), so bytes pass a real TCP stack and queue, in both directions at once. netlab_up creates the hosts, netlab_down
# removes them.

netlab_net=10.201.0  # host i has the address .(i + 1)
netlab_hosts=0
netlab_work=

netlab_host() { echo "slipstream$1"; }

netlab_down() {
  local i
  for ((i = 0; i < netlab_hosts; ++i)); do
    ip netns del "$(netlab_host $i)" 2>/dev/null || true
    rm -rf "/etc/netns/$(netlab_host $i)"
  done
  ip netns del slipstream-switch 2>/dev/null || true
  [[ -z $netlab_work ]] || rm -rf "$netlab_work"
}

netlab_require() { # NAME of the benchmark
  local tool
  ((EUID == 0)) || { echo "$1: needs root to make network namespaces. Start it with sudo." >&2; exit 7; }
  for tool in ip tc mpirun taskset unshare; do
    command -v "$tool" >/dev/null || { echo "$1: $tool is missing. Install iproute2, openmpi-bin and util-linux." >&2; exit 7; }
  done
}

netlab_make() { # HOSTS RATE
  local i j host
  ip netns add slipstream-switch && ip -n slipstream-switch link add bridge type bridge && ip -n slipstream-switch link set bridge up || return 1
  for ((i = 0; i < $1; ++i)); do
    host=$(netlab_host $i)
    ip netns add "$host" || return 1
    # Without a hosts file, the launcher waits for an unreachable name server.
    mkdir -p "/etc/netns/$host"
    : >"/etc/netns/$host/resolv.conf"
    echo 127.0.0.1 localhost >"/etc/netns/$host/hosts"
    for ((j = 0; j < $1; ++j)); do echo "$netlab_net.$((j + 1)) $(netlab_host $j)" >>"/etc/netns/$host/hosts"; done
    ip link add wire netns "$host" type veth peer name "port$i" netns slipstream-switch || return 1
    ip -n slipstream-switch link set "port$i" master bridge up
    ip -n "$host" addr add "$netlab_net.$((i + 1))/24" dev wire
    ip -n "$host" link set lo up
    ip -n "$host" link set wire up
    # A burst below 256 kB does not reach the line rate, because a TCP segment has 64 kB.
    tc -n "$host" qdisc add dev wire root tbf rate "$2" burst 256kb latency 50ms || return 1
  done
}

netlab_up() { # NAME of the benchmark, HOSTS, RATE as tc spells it (1Gbit)
  netlab_hosts=$2
  netlab_down  # what a run that was killed has left
  netlab_work=$(mktemp -d)
  netlab_make "$2" "$3" || { echo "$1: this machine refuses network namespaces, a bridge, veth or tc tbf (the message is above). Run it on a kernel that has them, as root." >&2; exit 7; }
  # Open MPI starts its daemons with "AGENT HOST COMMAND".
  cat >"$netlab_work/agent" <<'AGENT'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
exec ip netns exec "$1" unshare --uts bash -c "hostname $1 && ${*:2}"
AGENT
  # One core for each process and all its threads, on both sides, if there are enough cores.
  printf '#!/usr/bin/env bash\nexec taskset -c "$((OMPI_COMM_WORLD_RANK %% %d))" "$@"\n' "$(nproc)" >"$netlab_work/pinned"
  chmod +x "$netlab_work/agent" "$netlab_work/pinned"
}

netlab_mpirun() { # COMMAND...: one pinned process on every host; words must not need quotes
  local i hosts=
  for ((i = 0; i < netlab_hosts; ++i)); do hosts+="${hosts:+,}$(netlab_host $i):1"; done
  local tcp=(--mca plm_rsh_agent "$netlab_work/agent" --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include "$netlab_net.0/24"
    --mca btl_tcp_if_include "$netlab_net.0/24" --mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1 --host "$hosts" --bind-to none)
  "$netlab_work/agent" "$(netlab_host 0)" "cd $PWD && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 900 mpirun ${tcp[*]} \
    -np $netlab_hosts $netlab_work/pinned $*" </dev/null
}
