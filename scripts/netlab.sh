#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Hosts on one machine, which are joined by links of a given rate. This file is a command (scripts/netlab.sh --help),
# and benchmarks source it. It needs root.
#
# A host is a network namespace with a host name. All hosts connect to one bridge, and each sends at the line rate (tc
# tbf), so bytes pass through a real TCP stack and queue, in both directions at once. netlab_up creates the hosts, and
# netlab_down removes them. With oversubscription there are two halves with a bridge each, joined by a slower link.

netlab_net=10.201.0  # host i has the address .(i + 1)
netlab_hosts=0
netlab_work=
netlab_name=slipstream  # of a host, before its number

netlab_host() { echo "$netlab_name$1"; }

netlab_down() {
  local i
  for ((i = 0; i < netlab_hosts; ++i)); do
    ip netns del "$(netlab_host $i)" 2>/dev/null || true
    rm -rf "/etc/netns/$(netlab_host $i)"
  done
  ip netns del "$netlab_name-switch" 2>/dev/null || true
  ip netns del "$netlab_name-switch1" 2>/dev/null || true
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
  ip netns add "$netlab_name-switch" && ip -n "$netlab_name-switch" link add bridge type bridge && ip -n "$netlab_name-switch" link set bridge up || return 1
  for ((i = 0; i < $1; ++i)); do
    host=$(netlab_host $i)
    ip netns add "$host" || return 1
    # Without a hosts file, the launcher would wait for an unreachable name server.
    mkdir -p "/etc/netns/$host"
    : >"/etc/netns/$host/resolv.conf"
    echo 127.0.0.1 localhost >"/etc/netns/$host/hosts"
    for ((j = 0; j < $1; ++j)); do echo "$netlab_net.$((j + 1)) $(netlab_host $j)" >>"/etc/netns/$host/hosts"; done
    ip link add wire netns "$host" type veth peer name "port$i" netns "$netlab_name-switch" || return 1
    ip -n "$netlab_name-switch" link set "port$i" master bridge up
    ip -n "$host" addr add "$netlab_net.$((i + 1))/24" dev wire
    ip -n "$host" link set lo up
    ip -n "$host" link set wire up
    # A burst below 256 kB does not reach the line rate, because TCP sends segments of 64 kB.
    tc -n "$host" qdisc add dev wire root handle 1: tbf rate "$2" burst 256kb latency 50ms || return 1
  done
}

netlab_up() { # NAME of the benchmark, HOSTS, RATE as tc spells it (1Gbit)
  netlab_hosts=$2
  netlab_down  # what a run that was killed has left
  netlab_work=$(mktemp -d)
  netlab_make "$2" "$3" || { echo "$1: this machine refuses network namespaces, a bridge, veth or tc tbf (the message is above). Run it on a kernel that has them, as root." >&2; exit 7; }
  netlab_tools
}

netlab_tools() { # the launcher's agent, and the core of a process
  # Open MPI starts its daemons with "AGENT HOST COMMAND".
  cat >"$netlab_work/agent" <<'AGENT'
#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
exec ip netns exec "$1" unshare --uts bash -c "hostname $1 && ${*:2}"
AGENT
  # Each process and all its threads have one core, on both sides, if there are enough cores.
  printf '#!/usr/bin/env bash\nexec taskset -c "$((OMPI_COMM_WORLD_RANK %% %d))" "$@"\n' "$(nproc)" >"$netlab_work/pinned"
  chmod +x "$netlab_work/agent" "$netlab_work/pinned"
}

netlab_mpirun() { # COMMAND...: one pinned process on every host
  local i hosts=
  for ((i = 0; i < netlab_hosts; ++i)); do hosts+="${hosts:+,}$(netlab_host $i):1"; done
  local tcp=(--mca plm_rsh_agent "$netlab_work/agent" --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include "$netlab_net.0/24"
    --mca btl_tcp_if_include "$netlab_net.0/24" --mca pml ob1 --mca btl tcp,self --mca mpi_yield_when_idle 1 --host "$hosts" --bind-to none)
  "$netlab_work/agent" "$(netlab_host 0)" "cd $PWD && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 900 mpirun ${tcp[*]} \
    -np $netlab_hosts $netlab_work/pinned$(printf ' %q' "$@")" </dev/null
}

# --- the command

netlab_state=/run/slipstream-netlab
netlab_most=16

netlab_usage() {
  cat <<'TEXT'
usage: scripts/netlab.sh up [--nodes 2] [--rate 1gbit] [--delay 1ms] [--loss 0.1%] [--oversubscribe 2] [--minutes 60]
       scripts/netlab.sh run COMMAND...           one rank of COMMAND on each node, by mpirun over TCP
       scripts/netlab.sh exec NODE COMMAND...     a command on one node
       scripts/netlab.sh rate RATE [NODE]         another line rate, in flight
       scripts/netlab.sh down [NODE]              the link of NODE fails; without NODE, removes everything
       scripts/netlab.sh with [options of up] -- COMMAND...   up, run, down, also after kill -9

Nodes are node0, node1, ..; at most 16. --delay is of one direction and needs netem in the kernel, as --loss does.
--oversubscribe N: two halves, joined by a link of their rates' sum / N. Everything is removed after --minutes.
As root. Exit code 2: usage; 7: not root, a missing tool, or a kernel that refuses; else that of COMMAND.
TEXT
}

netlab_fail() { echo "netlab: $*" >&2; exit 2; }

netlab_load() { # of a network that is up
  [[ -e $netlab_state/ready ]] || netlab_fail "no network is up. Start one: scripts/netlab.sh up --nodes 2 --rate 1gbit"
  netlab_hosts=$(<"$netlab_state/count") netlab_work=$netlab_state
}

netlab_node() { # node2 or 2: prints the number
  local number=${1#node}
  [[ $number =~ ^[0-9]+$ ]] && ((number < netlab_hosts)) || netlab_fail "'$1' is no node. Use node0 to node$((netlab_hosts - 1))."
  echo "$number"
}

netlab_is_rate() { [[ ${1,,} =~ ^[0-9]+(\.[0-9]+)?[kmg]bit$ ]]; }

netlab_remove() { # what this command has made, also if it was killed
  local i guard
  [[ -r $netlab_state/count ]] || return 0
  netlab_hosts=$(<"$netlab_state/count") netlab_work=
  for ((i = 0; i < netlab_hosts; ++i)); do
    { ip netns pids "$(netlab_host $i)" | xargs -r kill -9; } 2>/dev/null || true
  done
  netlab_down
  guard=$(cat "$netlab_state/guard" 2>/dev/null || true)
  [[ -z $guard || $guard == "$BASHPID" ]] || kill "$guard" 2>/dev/null || true
  rm -rf "$netlab_state"
}

netlab_split() { # NODES RATE N: moves the second half to a bridge of its own
  local half=$(($1 / 2)) i uplink
  uplink=$(awk -v rate="${2,,}" -v n="$half" -v over="$3" 'BEGIN {
    factor = rate ~ /gbit/ ? 1e6 : rate ~ /mbit/ ? 1e3 : 1; printf "%dkbit", rate * factor * n / over}')
  ip netns add "$netlab_name-switch1" && ip -n "$netlab_name-switch1" link add bridge type bridge && ip -n "$netlab_name-switch1" link set bridge up || return 1
  ip link add uplink netns "$netlab_name-switch" type veth peer name uplink netns "$netlab_name-switch1" || return 1
  for i in "$netlab_name-switch" "$netlab_name-switch1"; do
    ip -n "$i" link set uplink master bridge up
    tc -n "$i" qdisc add dev uplink root tbf rate "$uplink" burst 256kb latency 50ms || return 1
  done
  for ((i = half; i < $1; ++i)); do
    ip -n "$netlab_name-switch" link set "port$i" netns "$netlab_name-switch1"
    ip -n "$netlab_name-switch1" link set "port$i" master bridge up
  done
}

netlab_guard() { # SECONDS [PROCESS]: removes everything after the time, or when PROCESS has ended
  setsid bash -c 'end=$((SECONDS + $2))
    while ((SECONDS < end)) && { [[ -z $3 ]] || kill -0 "$3" 2>/dev/null; }; do sleep 0.5; done
    source "$1" && netlab_name=node && netlab_remove' guard "$(realpath -- "${BASH_SOURCE[0]}")" "$1" "${2:-}" </dev/null >/dev/null 2>&1 &
  echo $! >"$netlab_state/guard"
}

netlab_command_up() { # [--owner PROCESS] options
  local nodes=2 rate=1gbit delay= loss= oversubscribe=1 minutes=60 owner= i
  while (($#)); do
    case "$1" in
      --nodes | --rate | --delay | --loss | --oversubscribe | --minutes | --owner)
        (($# >= 2)) || netlab_fail "$1 needs a value. See --help."
        printf -v "${1#--}" %s "$2"
        shift 2 ;;
      *) netlab_fail "unknown option '$1'. See --help." ;;
    esac
  done
  [[ $nodes =~ ^[0-9]+$ ]] && ((nodes >= 2 && nodes <= netlab_most)) || netlab_fail "--nodes $nodes must be from 2 to $netlab_most."
  netlab_is_rate "$rate" || netlab_fail "--rate $rate must be a rate such as 1gbit or 500mbit."
  [[ $minutes =~ ^[0-9]+$ ]] && ((minutes >= 1 && minutes <= 1440)) || netlab_fail "--minutes $minutes must be from 1 to 1440."
  [[ $oversubscribe =~ ^[0-9]+(\.[0-9]+)?$ ]] && awk -v n="$oversubscribe" 'BEGIN {exit !(n >= 1)}' || netlab_fail "--oversubscribe $oversubscribe must be a number from 1."
  [[ -z $delay || $delay =~ ^[0-9]+(\.[0-9]+)?(us|ms)$ ]] || netlab_fail "--delay $delay must be a time such as 1ms or 50us."
  [[ -z $loss || $loss =~ ^[0-9]+(\.[0-9]+)?%$ ]] || netlab_fail "--loss $loss must be a share such as 0.1%."
  netlab_require netlab
  [[ ! -e $netlab_state/ready ]] || netlab_fail "a network is up. Remove it first: scripts/netlab.sh down"
  netlab_remove  # what a killed start has left
  mkdir -p "$netlab_state"
  echo "$nodes" >"$netlab_state/count"
  netlab_guard $((minutes * 60)) "$owner"
  netlab_work=$netlab_state netlab_hosts=$nodes
  if ! { netlab_make "$nodes" "$rate" && { [[ $oversubscribe == 1 ]] || netlab_split "$nodes" "$rate" "$oversubscribe"; }; }; then
    netlab_remove
    echo "netlab: this machine refuses network namespaces, a bridge, veth or tc tbf (the message is above). Use the emulated link instead: --set comm.emulate.bandwidth=1Gbit/s" >&2
    exit 7
  fi
  if [[ -n $delay$loss ]]; then
    for ((i = 0; i < nodes; ++i)); do
      tc -n "$(netlab_host $i)" qdisc add dev wire parent 1:1 handle 10: netem ${delay:+delay $delay} ${loss:+loss $loss} limit 100000 || {
        netlab_remove
        echo "netlab: this kernel has no netem, which --delay and --loss need. Leave them out, or use the emulated link: --set comm.emulate.latency=1ms" >&2
        exit 7
      }
    done
  fi
  netlab_tools
  for ((i = 0; i < nodes; ++i)); do echo "$(netlab_host $i) slots=1"; done >"$netlab_state/hosts"
  touch "$netlab_state/ready"
  echo "$nodes nodes at $rate${delay:+, $delay each way}${loss:+, $loss lost}; removed in $minutes minutes. Host file: $netlab_state/hosts"
}

netlab_main() {
  netlab_name=node netlab_net=10.202.0  # beside a benchmark's network
  local command=${1:-} i owned=()
  shift || true
  case "$command" in
    -h | --help) netlab_usage; exit 0 ;;
    up) netlab_command_up "$@" ;;
    with)
      while (($#)) && [[ $1 != -- ]]; do owned+=("$1"); shift; done
      (($# >= 2)) || netlab_fail "with needs a command after --. See --help."
      netlab_command_up --owner $$ "${owned[@]}"
      trap netlab_remove EXIT
      trap 'exit 130' INT TERM HUP
      netlab_mpirun "${@:2}" ;;
    run) netlab_load; (($#)) || netlab_fail "run needs a command. See --help."; netlab_mpirun "$@" ;;
    exec)
      netlab_load
      (($# >= 2)) || netlab_fail "exec needs a node and a command. See --help."
      i=$(netlab_node "$1") || exit 2
      exec ip netns exec "$(netlab_host "$i")" unshare --uts bash -c 'hostname "$0"; exec "$@"' "$(netlab_host "$i")" "${@:2}" ;;
    rate)
      netlab_load
      (($# == 1 || $# == 2)) || netlab_fail "rate needs a rate and, if it is not for all, a node. See --help."
      netlab_is_rate "$1" || netlab_fail "$1 must be a rate such as 1gbit or 500mbit."
      if (($# == 2)); then owned=("$(netlab_node "$2")") || exit 2; else for ((i = 0; i < netlab_hosts; ++i)); do owned+=("$i"); done; fi
      for i in "${owned[@]}"; do tc -n "$(netlab_host "$i")" qdisc change dev wire root handle 1: tbf rate "$1" burst 256kb latency 50ms || exit 7; done ;;
    down)
      if (($#)); then
        netlab_load
        i=$(netlab_node "$1") || exit 2
        ip -n "$(netlab_host "$i")" link set wire down
      else
        netlab_require netlab
        netlab_remove
      fi ;;
    *) netlab_usage >&2; exit 2 ;;
  esac
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then
  set -euo pipefail
  netlab_main "$@"
fi
