# SPDX-License-Identifier: Apache-2.0
"""scripts/bundle.sh on a build of stand-ins: what the bundle holds, its manifest, and the refusals.

usage: bundle_test.py SOURCE_ROOT
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

source = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(source / "tests"))
from checks import all_hold, check  # noqa: E402

if not shutil.which("xz"):
    print("SKIPPED: no xz, which packs the bundle")
    sys.exit(77)

with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    build, machine, out = folder / "build", folder / "machine", folder / "bundle.tar.xz"
    machine.mkdir()
    listed = {"--tests": [{"cmd": [f"{build}/tests/gpu/gpu_a_test"], "suite": ["slipstream:gpu"]},
                          {"cmd": ["/usr/bin/mpirun", "-np", "2", "tests/gpu/gpu_nccl_b_test"], "suite": ["slipstream:gpu"]},
                          {"cmd": [f"{build}/tests/cpu_test"], "suite": ["slipstream:engine"]}],
              "--benchmarks": [{"cmd": [f"{build}/tests/gpu/gpu_kernels_bench"], "suite": ["slipstream:gpu"]}]}
    (machine / "meson").write_text(f"#!/usr/bin/env python3\nimport sys\nprint({ {kind: json.dumps(rows) for kind, rows in listed.items()} !r}[sys.argv[2]])\n")
    (machine / "meson").chmod(0o755)

    def bundle(*arguments):
        ran = subprocess.run([source / "scripts/bundle.sh", "--build", build, "--out", out, *arguments], capture_output=True, text=True,
                             env={**os.environ, "PATH": f"{machine}:{os.environ['PATH']}"})
        return ran.returncode, ran.stdout + ran.stderr

    build.mkdir()
    code, printed = bundle()
    check(code == 3 and f"bundle: {build}/slipstream does not exist. Build first: ninja -C {build}" in printed, code, printed)
    (build / "tests/gpu").mkdir(parents=True)
    shutil.copy("/bin/true", build / "slipstream")
    code, printed = bundle()
    check(code == 3 and "has no GPU tests" in printed and not out.exists(), code, printed)
    for path in ("tests/gpu/gpu_a_test", "tests/gpu/gpu_nccl_b_test", "tests/gpu/gpu_kernels_bench", "tests/cpu_test"):
        shutil.copy("/bin/true", build / path)
    (build / "build.ninja").write_text("-gencode=arch=compute_90a,code=sm_90a -gencode=arch=compute_80,code=sm_80\n")
    code, printed = bundle("--results", folder)
    check(code == 2 and f"{folder} has no found.txt" in printed, code, printed)
    # Scripts among the executables have no libraries: they stop nothing.
    code, printed = bundle()
    check(code == 0 and "MB of at most 60, 3 tests and benchmarks for a GPU, CUDA none" in printed, code, printed)
    check("this build does not use CUDA" in printed, printed)
    with tarfile.open(out) as archive:
        inside = {member.name.removeprefix("slipstream-gpu/") for member in archive.getmembers()}
        manifest = archive.extractfile("slipstream-gpu/MANIFEST").read().decode()
        archive.extractall(folder / "there", filter="data")
    check({"bin/slipstream", "tests/gpu_a_test", "nccl/gpu_nccl_b_test", "bench/gpu_kernels_bench", "scripts/gpu_check.sh", "scripts/gpu_parts.sh", "scripts/gpu_summary.py",
           "docs/benchmarks/h200-forecast.csv", "configs/runs/gpt2_124m.toml", "tests/golden/gpt2.bin"} <= inside, sorted(inside))
    check(not any(path.endswith("cpu_test") or path.startswith(("lib/libc.so", "lib/libcuda")) for path in inside), sorted(inside))
    check("archs=80 90a\n" in manifest and "cuda_major=none\n" in manifest and "glibc=" in manifest, manifest)
    ran = subprocess.run([folder / "there/slipstream-gpu/scripts/gpu_check.sh", "--out", folder / "out", "--stage", "kernels"], capture_output=True, text=True)
    check(ran.returncode == 7 and "missing: CUDA in the program itself" in ran.stdout, ran.returncode, ran.stdout)

    # --bundle unpacks beside the bundle, once, and runs the check that is inside; without xz Python opens the archive.
    def check_bundle(*arguments):
        ran = subprocess.run([source / "scripts/gpu_check.sh", "--stage", "kernels", "--bundle", out, "--out", folder / "out", *arguments], capture_output=True, text=True,
                             env={**os.environ, "PATH": f"{machine}:{os.environ['PATH']}"})
        return ran.returncode, ran.stdout + ran.stderr

    unpacked = folder / "slipstream-gpu"
    for with_xz in (True, False):
        shutil.rmtree(unpacked, ignore_errors=True)
        if not with_xz:
            (machine / "tar").write_text("#!/bin/sh\necho 'tar (child): xz: Cannot exec' >&2\nexit 2\n")
            (machine / "tar").chmod(0o755)
        code, printed = check_bundle()
        check(code == 7 and f"bundle of commit {manifest.split('commit=')[1].split()[0]}\n" in printed and "missing: CUDA in the program itself" in printed, printed)
        check((unpacked / "MANIFEST").read_text() == manifest and os.access(unpacked / "bin/slipstream", os.X_OK), list(unpacked.iterdir()))
    (unpacked / "MANIFEST").write_text("commit=unpacked\ncuda_major=none\n")
    check("bundle of commit unpacked\n" in check_bundle()[1], "a bundle is unpacked twice")
    out.write_bytes(out.read_bytes()[:1000])
    code, printed = check_bundle()
    check(code == 7 and f"gpu_check: cannot unpack {out}: it needs tar with xz, or a python3 with lzma, and room in {folder}." in printed, printed)
    out.unlink()
    code, printed = check_bundle()
    check(code == 2 and printed == f"gpu_check: there is no bundle {out}. scripts/bundle.sh makes one.\n", printed)
    (machine / "tar").unlink()

    # One byte too much.
    (machine / "xz").write_text("#!/bin/sh\ncat >/dev/null\nhead -c 60000001 /dev/zero\n")
    (machine / "xz").chmod(0o755)
    code, printed = bundle()
    check(code == 7 and not out.exists() and "bundle: the bundle has 60000001 bytes, but the limit is 60000000." in printed, code, printed)
all_hold("bundle.sh")
