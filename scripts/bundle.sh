#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a CUDA build for a machine without network and package manager; scripts/gpu_check.sh runs there from the bundle.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: scripts/bundle.sh [--build DIR] [--out FILE] [--results DIR]
  --build DIR    a build made with -Dcuda=enabled -Dtests=true (default: build)
  --out FILE     the bundle (default: slipstream-gpu.tar.xz)
  --results DIR  results of an earlier gpu_check.sh, which the next call continues

Inside: the program, the tests and benchmarks whose names begin with "gpu_" and those of the suite "gpu", run files,
Open MPI's runtime, and the shared libraries that a bare machine lacks. Excluded: the driver, cudart, cuBLAS and NCCL,
which the GPU machine has; gpu_check.sh finds them there. The bundle may have at most 60 MB.
TEXT
}

build=build
out=slipstream-gpu.tar.xz
results=""
while (($#)); do
  case "$1" in
    -h | --help) usage; exit 0 ;;
    --build) build=${2:?--build needs a directory}; shift 2 ;;
    --out) out=${2:?--out needs a file}; shift 2 ;;
    --results) results=$(realpath -- "${2:?--results needs a directory}"); shift 2 ;;
    *) usage >&2; exit 2 ;;
  esac
done
readonly limit_bytes=60000000

build=$(realpath -- "$build")
out=$(realpath -m -- "$out")
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
[[ -z $results || -f $results/found.txt ]] || { echo "bundle: $results has no found.txt. Give an output folder of gpu_check.sh." >&2; exit 2; }
[[ -x $build/slipstream ]] || { echo "bundle: $build/slipstream does not exist. Build first: ninja -C $build" >&2; exit 3; }
command -v xz >/dev/null || { echo "bundle: xz is needed to pack (Debian: xz-utils)" >&2; exit 7; }
command -v python3 >/dev/null || { echo "bundle: python3 is needed to read the list of tests" >&2; exit 7; }

stage=$(mktemp -d)
trap 'rm -rf -- "$stage"' EXIT
root=$stage/slipstream-gpu
mkdir -p "$root"/{bin,lib,tests,bench,scripts}

cp -- "$build/slipstream" "$root/bin/"
# "tests PATH", "nccl PATH" or "bench PATH" for every GPU program.
list_gpu_programs() {
  python3 - "$build" <<'PY'
import json, os, subprocess, sys
build = sys.argv[1]
for kind, folder in (("--tests", "tests"), ("--benchmarks", "bench")):
    for test in json.loads(subprocess.run(["meson", "introspect", kind, build], check=True, capture_output=True).stdout):
        # With a launcher, the program is its last argument, relative to the build.
        path = os.path.join(build, test["cmd"][-1] if os.path.basename(test["cmd"][0]).startswith("mpi") else test["cmd"][0])
        gpu = os.path.basename(path).startswith("gpu_") or any(s.split(":")[-1] == "gpu" for s in test["suite"])
        if gpu and os.access(path, os.X_OK):
            print("nccl" if "nccl" in os.path.basename(path) else folder, path)
PY
}
while read -r folder path; do
  mkdir -p "$root/$folder"
  cp -f -- "$path" "$root/$folder/"
done < <(list_gpu_programs | sort -u)
[[ -n $(ls -A "$root/tests") ]] || { echo "bundle: $build has no GPU tests. Set it up with -Dcuda=enabled -Dnccl=enabled -Dtests=true and build it." >&2; exit 3; }
cp -r configs "$root/"
cp scripts/gpu_check.sh scripts/gpu_parts.sh scripts/gpu_summary.py scripts/bench_gpu_pytorch.py "$root/scripts/"
if [[ -n $results ]]; then cp -r -- "$results" "$root/results"; fi
mkdir -p "$root/docs/benchmarks"
cp docs/benchmarks/h[12]00-forecast.csv "$root/docs/benchmarks/"
mkdir "$root/tests/golden"
cp tests/golden/*.json tests/golden/*.bin "$root/tests/golden/"

# Open MPI is copied by its own list of paths, under the same relative paths. OPAL_PREFIX names the new prefix.
if command -v ompi_info >/dev/null; then
  mpi_path() { ompi_info --path "$1" --parsable | sed 's/^path:[a-z]*://'; }
  prefix=$(mpi_path prefix)
  for what in pkglibdir pkgdatadir; do
    from=$(mpi_path $what)
    to=$root/openmpi/${from#"$prefix"/}
    mkdir -p "$to"
    find "$from" -maxdepth 1 -type f \( -name '*.so' -o -name '*.txt' \) -exec cp -- {} "$to/" \;
  done
  mkdir -p "$root/openmpi/bin"
  if ! command -v orted >/dev/null; then
    echo "bundle: the launcher of Open MPI 5 (PRRTE) is not bundled. Bundle with Open MPI 4." >&2
    exit 2
  fi
  for program in mpirun orted orterun; do
    cp -L -- "$(command -v $program)" "$root/openmpi/bin/$program"
  done
else
  echo "bundle: no Open MPI here, so several ranks on the GPU machine need its own mpirun" >&2
fi

# The libraries that the programs load, except the C library and the libraries of the GPU driver. ldd fails for scripts.
readonly not_bundled='^(linux-vdso|ld-linux|libc\.so|libm\.so|libpthread|libdl\.so|librt\.so|libresolv|libutil|libcuda|libcudart|libcublas|libnccl|libnvidia|libnvrtc|libnvJitLink)'
find "$root" -type f \( -perm -u+x -o -name '*.so' \) ! -name '*.sh' -print0 \
  | { xargs -0 -n 1 ldd 2>/dev/null || true; } \
  | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u \
  | while read -r name path; do
      [[ $name =~ $not_bundled ]] || cp -L -n -- "$path" "$root/lib/$name"
    done
find "$root" -type f \( -perm -u+x -o -name '*.so*' \) ! -name '*.sh' -exec strip --strip-unneeded -- {} + 2>/dev/null || true

# The major version of CUDA that the GPU machine needs.
cuda_major=$(ldd "$build/slipstream" | sed -n 's/.*libcudart\.so\.\([0-9]*\).*/\1/p' | head -n 1)
if [[ -z $cuda_major ]]; then
  cuda_major=$(ldd "$build/slipstream" | sed -n 's/.*libcublas\.so\.\([0-9]*\).*/\1/p' | head -n 1)
fi
{
  echo "commit=$(git rev-parse HEAD 2>/dev/null || echo unknown)"
  echo "cuda_major=${cuda_major:-none}"
  echo "archs=$(grep -o 'code=sm_[0-9]*[af]*' "$build/build.ninja" 2>/dev/null | sed 's/code=sm_//' | sort -u | paste -sd ' ')"
  echo "glibc=$(ldd --version | sed -n '1s/.* //p')"
} >"$root/MANIFEST"
[[ -n $cuda_major ]] || echo "bundle: warning: this build does not use CUDA; configure with -Dcuda=enabled" >&2

# All programs contain the same kernels, so a dictionary that is larger than two programs stores them once. The output
# of gzip is three times larger.
tar -C "$stage" -cf - slipstream-gpu | xz -T1 --lzma2=preset=1,dict=256MiB >"$out"
size=$(stat -c %s -- "$out")
echo "$out: $(((size + 999999) / 1000000)) MB of at most $((limit_bytes / 1000000)), $(find "$root/tests" "$root/nccl" "$root/bench" -type f -perm -u+x 2>/dev/null | wc -l) tests and benchmarks for a GPU, CUDA ${cuda_major:-none}"
if ((size > limit_bytes)); then
  rm -f -- "$out"
  echo "bundle: the bundle has $size bytes, but the limit is $limit_bytes. Build with -Dbuildtype=release and fewer gpu_archs." >&2
  exit 7
fi
