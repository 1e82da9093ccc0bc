#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the missing packages of the build on Debian 12 or Ubuntu 24.04.
set -euo pipefail

usage() {
  echo "usage: scripts/setup.sh [--tests] [--docs] [--fuzz] [--optional]"
  echo "  Installs the compiler, the build tools, Open MPI, oneDNN and the other libraries with apt-get (root or sudo)."
  echo "  --tests     also the packages of the tests"
  echo "  --docs      also the packages of the Doxygen pages"
  echo "  --fuzz      also clang with libFuzzer"
  echo "  --optional  tries the optional packages also where nothing else is missing"
}

# docs/dependencies.md has the purpose of each package.
needed=(g++ meson ninja-build pkgconf openmpi-bin libopenmpi-dev libdnnl-dev libeigen3-dev libtomlplusplus-dev libcli11-dev
  nlohmann-json3-dev libspdlog-dev libfmt-dev libxxhash-dev libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev
  python3-yaml)
# Optional packages: without them, the quickstart trains on another text and builds take longer.
optional=(bible-kjv)
asked_for_optional=0
for argument in "$@"; do
  case "$argument" in
    --tests) needed+=(catch2 python3 git) optional+=(ccache chromium clang-format-14 lld) ;;
    --docs) needed+=(doxygen) ;;
    --fuzz) needed+=(clang libclang-rt-dev) ;;
    --optional) asked_for_optional=1 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done

installed() { dpkg -s "$1" 2>/dev/null | grep -q '^Status: install ok installed$'; }
missing_of() { for package in "$@"; do installed "$package" || echo "$package"; done; }

if ! command -v dpkg >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: this script installs with apt-get, which this system lacks. Install the equivalents of: ${needed[*]}" >&2
  exit 1
fi
mapfile -t missing < <(missing_of "${needed[@]}")
mapfile -t missing_optional < <(missing_of "${optional[@]}")
if ((${#missing[@]} + ${#missing_optional[@]} == 0)); then
  echo "setup: everything is installed"
  exit 0
fi
# A distribution may lack an optional package for good, so a missing one alone is no reason to run apt-get on every
# call.
if ((${#missing[@]} == 0 && !asked_for_optional)); then
  echo "setup: everything needed is installed; scripts/setup.sh --optional tries ${missing_optional[*]}"
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if command -v sudo >/dev/null; then
    as_root=(sudo)
  elif ((${#missing[@]} == 0)); then
    echo "setup: all required packages are installed; continuing without ${missing_optional[*]}"
    exit 0
  else
    echo "setup: neither root nor sudo, so ${#missing[@]} packages cannot be installed. Ask for: apt-get install ${missing[*]}" >&2
    exit 1
  fi
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dpkg::Use-Pty=0 "$@" </dev/null; }

echo "setup: installing ${missing[*]} ${missing_optional[*]}"
apt update >/dev/null || echo "setup: apt-get update failed; trying with the package lists that are here" >&2
if ((${#missing[@]})); then
  if ! apt install --no-install-recommends "${missing[@]}"; then
    echo "setup: apt-get could not install ${missing[*]}. Its messages are above; a Debian 12 or Ubuntu 24.04 (with universe) has them all." >&2
    exit 1
  fi
fi
for package in "${missing_optional[@]}"; do
  apt install --no-install-recommends "$package" || echo "setup: continuing without $package"
done
