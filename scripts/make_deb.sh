#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a package for Debian or Ubuntu from this checkout. The package depends on the libraries of the release on which
# it is built.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/make_deb.sh [--build DIR] [--out FOLDER]
  --build DIR   a build with --prefix=/usr; default: build-deb, made without CUDA if it is missing
  --out FOLDER  folder of slipstream_VERSION_ARCHITECTURE.deb (default: the current folder)

  apt-get install ./slipstream_*.deb installs the package and what it needs. scripts/try_deb.sh tries it in a bare system.
  DEBFULLNAME and DEBEMAIL name its maintainer.
TEXT
}

build="" out=$PWD
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build) build=$(realpath -m -- "${2:?--build needs a directory}"); shift 2 ;;
    --out) out=$(realpath -m -- "${2:?--out needs a folder}"); shift 2 ;;
    *) usage >&2; exit 2 ;;
  esac
done
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
fail() { echo "make_deb: $2" >&2; exit "$1"; }
for command in dpkg-deb dpkg-shlibdeps meson ninja; do
  command -v "$command" >/dev/null || fail 7 "$command is missing. Install it (Debian: dpkg-dev, meson, ninja-build)."
done

if [[ -z $build ]]; then
  build=$PWD/build-deb
  [[ -f $build/build.ninja ]] || meson setup "$build" --prefix=/usr -Dcuda=disabled -Dnccl=disabled
fi
[[ -f $build/build.ninja ]] || fail 2 "$build is no build folder. Make one: meson setup $build --prefix=/usr"
option() { meson introspect --buildoptions "$build" | python3 -c "import json, sys; print(next(o['value'] for o in json.load(sys.stdin) if o['name'] == '$1'))"; }
[[ $(option prefix) == /usr ]] || fail 2 "$build has the prefix $(option prefix). A package needs meson setup --prefix=/usr."
ninja -C "$build" installed

stage=$(mktemp -d)
trap 'rm -rf -- "$stage"' EXIT
root=$stage/root
umask 022
meson install -C "$build" --no-rebuild --quiet --strip --destdir "$root"
# The next lines use the places and the forms of Debian.
mkdir -p "$root/usr/share/zsh" "$root/DEBIAN"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
gzip -9n "$root"/usr/share/man/man1/*.1
rm "$root/usr/share/doc/slipstream/LICENSE" # common-licenses has it
cat >"$root/usr/share/doc/slipstream/copyright" <<'TEXT'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Slipstream

Files: *
Copyright: 2026 The Slipstream authors
License: Apache-2.0
 On Debian systems, the text of the license is in /usr/share/common-licenses/Apache-2.0.
TEXT

# The packages of the libraries that the program loads. mpirun comes from the package of the same MPI.
mkdir -p "$stage/debian"
printf 'Source: slipstream\n\nPackage: slipstream\nArchitecture: any\n' >"$stage/debian/control"
libraries=$(cd "$stage" && dpkg-shlibdeps -O -e"$root/usr/bin/slipstream" | sed -n 's/^shlibs:Depends=//p')
[[ -n $libraries ]] || fail 7 "dpkg-shlibdeps found no packages for the libraries of $build/slipstream."
launcher=""
case "$libraries" in
  *libopenmpi*) launcher=", openmpi-bin" ;;
  *libmpich*) launcher=", mpich" ;;
esac
version=$(meson introspect --projectinfo "$build" | python3 -c "import json, sys; print(json.load(sys.stdin)['version'])")
architecture=$(dpkg --print-architecture)
cat >"$root/DEBIAN/control" <<TEXT
Package: slipstream
Version: $version
Architecture: $architecture
Maintainer: ${DEBFULLNAME:-The Slipstream authors} <${DEBEMAIL:-root@localhost}>
Installed-Size: $(du -ks --exclude=DEBIAN "$root" | cut -f 1)
Depends: $libraries$launcher, python3 (>= 3.11)
Section: science
Priority: optional
Description: transformer training with communication hidden behind compute
 Slipstream trains transformers on CPUs and GPUs with MPI. It decides every
 transfer of a step before training starts, proves that the plan has no deadlock
 and no race, and reports how long compute waited for communication.
TEXT
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
mkdir -p "$out"
package=$out/slipstream_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package: $(($(stat -c %s -- "$package") / 1000)) kB, needs $libraries$launcher, python3"
