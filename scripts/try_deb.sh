#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tries a package of make_deb.sh in a bare Debian system: installs it with its dependencies, plans, trains on two ranks
# as an ordinary user, and removes it. This takes two to four minutes. Exit code 77: root or debootstrap is missing.
set -euo pipefail

case "${1:-}" in
  -h | --help | "")
    echo "usage: scripts/try_deb.sh PACKAGE.deb   (as root; debootstrap takes the release and the mirror of this system)"
    [[ ${1:-} ]] && exit 0 || exit 2
    ;;
esac
package=$(realpath -- "$1")
[[ -f $package ]] || { echo "try_deb: $package does not exist. Make it: scripts/make_deb.sh" >&2; exit 2; }
skip() { echo "SKIPPED try_deb: $*"; exit 77; }
((EUID == 0)) || skip "a system of its own needs root"
command -v debootstrap >/dev/null || skip "debootstrap is not installed"
unshare --mount --pid --fork true 2>/dev/null || skip "this container may not mount file systems"

suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Codename: $suite" | head -n 1)
[[ -n $mirror ]] || skip "apt has no mirror of $suite"
work=$(mktemp -d)
trap 'rm -rf --one-file-system -- "$work"' EXIT
root=$work/root
echo "try_deb: $suite"
debootstrap --variant=minbase "$suite" "$root" "$mirror" >"$work/debootstrap.log" 2>&1 ||
  { tail -n 20 "$work/debootstrap.log" >&2; echo "try_deb: debootstrap failed" >&2; exit 1; }
rm -rf "$root"/etc/apt/sources.list*
cp -r /etc/apt/sources.list* "$root/etc/apt/"
cp -r /usr/share/keyrings/. "$root/usr/share/keyrings/"
apt-config dump Acquire | grep -E '^Acquire::(http|https)::' >"$root/etc/apt/apt.conf.d/90host" || true
cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
cp "$package" "$root/slipstream.deb"

cat >"$root/try.sh" <<'INSIDE'
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sysfs /sys 2>/dev/null || true
mkdir -p /dev/shm && mount -t tmpfs tmpfs /dev/shm
apt-get -q update >/dev/null
apt-get -q -y -o Dpkg::Use-Pty=0 install --no-install-recommends /slipstream.deb >/tmp/install.log 2>&1 || { tail -n 30 /tmp/install.log; exit 1; }
useradd -m tester
cat >/home/tester/try.sh <<'USER'
set -euo pipefail
mkdir work && cd work
slipstream --version
slipstream plan gpt2_xl --ranks 16 --machine h100x8 | grep "rehearsed step"
cat /usr/share/common-licenses/* /usr/share/common-licenses/* >text.txt
quickly="--set data.train=text.txt --set train.steps=20 --set train.eval_batches=2 --set device.threads=1"
# Prints the lines of a command's output that match, or all of it.
show() { "${@:2}" >log.txt 2>&1 && grep -E "$1" log.txt || { cat log.txt; exit 1; }; }
show "step +20/|overlap:" mpirun --oversubscribe --bind-to none -np 2 slipstream train quickstart $quickly
show "tokens|^" slipstream generate runs/quickstart --prompt "The " --tokens 20
slipstream report runs/quickstart
show "the run is complete" slipstream-run -np 2 --launcher 'mpirun --oversubscribe --bind-to none' slipstream train quickstart \
  $quickly --set output.dir=again
slipstream-sweep --help >/dev/null
bash -c 'source /usr/share/bash-completion/completions/slipstream; complete -p slipstream'
USER
chown tester /home/tester/try.sh
su - tester -c "bash try.sh"
apt-get -q -y -o Dpkg::Use-Pty=0 purge slipstream >/dev/null
left=$(find / -xdev -not -path '/proc/*' -iname '*slipstream*' -not -path '/home/*' -not -path '/slipstream.deb' -not -path '/var/log/*' -not -path '/tmp/*')
[[ -z $left ]] || { echo "try_deb: these files stay after the removal:" >&2; echo "$left" >&2; exit 1; }
INSIDE
unshare --mount --pid --fork --mount-proc chroot "$root" bash /try.sh
echo "try_deb: $(basename "$package") installs, plans, trains on two ranks, reports and leaves nothing behind in a bare $suite"
