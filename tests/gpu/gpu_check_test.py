# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check.sh on a bundle of stand-ins: what it runs, what it writes, where it goes on, and its exit codes.

usage: gpu_check_test.py SOURCE_ROOT
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])
PROGRAM = """#!/bin/bash
echo "program $*" >>"$CALLS"
for word in "$@"; do [[ $word == output.dir=* ]] && dir=${word#output.dir=}; done
dir=${dir//\\"/}
if [[ $1 == train ]]; then mkdir -p "$dir" && echo '{"step": 1, "loss": 2.5}' >"$dir/metrics.jsonl"; fi
if [[ $1 == bench && $2 == step ]]; then
  while (($#)); do [[ $1 == --csv ]] && printf 'ranks,threads,steps,loss,step_ms\\n1,1,30,10.9,150\\n' >"$2"; shift; done
fi
"""
# As Open MPI's, it takes what comes on its standard input.
MPIRUN = """#!/bin/bash
cat >/dev/null
while [[ $1 == -* ]]; do [[ $1 == -np ]] && ranks=$2; case $1 in --oversubscribe) shift ;; *) shift 2 ;; esac; done
RANKS=$ranks exec "$@"
"""
TEST = """#!/bin/bash
[[ $1 == --list ]] && { echo first; echo second; exit 0; }
echo "$(basename "$0") $* on ${RANKS:-1}" >>"$CALLS"
exit $(cat "$0.code" 2>/dev/null || echo 0)
"""
checked = 0


def check(condition, *said):
    global checked
    checked += 1
    if not condition:
        sys.exit("gpu_check_test: " + "\n".join(map(str, said)))


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    bundle, out, machine = root / "bundle", root / "out", root / "machine"
    script(bundle / "bin/slipstream", PROGRAM)
    for name in ("tests/gpu_a_test", "tests/gpu_b_test", "tests/gpu_golden_test", "nccl/gpu_nccl_contract_test", "nccl/gpu_nccl_order_test", "bench/gpu_kernels_bench"):
        script(bundle / name, TEST)
    (bundle / "MANIFEST").write_text("commit=none\ncuda_major=13\n")
    (bundle / "scripts").mkdir()
    shutil.copy(source / "scripts/gpu_check.sh", bundle / "scripts")
    script(machine / "mpirun", MPIRUN)
    calls = root / "calls"

    def run(*arguments, **more):
        calls.write_text("")
        environment = {**os.environ, "PATH": f"{machine}:{os.environ['PATH']}", "CALLS": str(calls), **more}
        result = subprocess.run([bundle / "scripts/gpu_check.sh", "--out", out, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        return result.returncode, result.stdout, calls.read_text().splitlines()

    def lines(stage):
        return [line for line in (out / f"{stage}.txt").read_text().splitlines() if not line.startswith("    |")]

    # No driver: a sentence, code 7, nothing runs.
    script(machine / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    code, said, called = run("--stage", "kernels")
    check(code == 7 and "missing: an NVIDIA driver with a GPU" in said and not called, said)
    script(machine / "nvidia-smi", "#!/bin/sh\necho 'A GPU, 580.0, 80000 MiB'\n")

    # A bundle of a newer machine: its programs would not start.
    manifest = (bundle / "MANIFEST").read_text()
    (bundle / "MANIFEST").write_text(manifest + "glibc=99.1\n")
    code, said, called = run("--stage", "kernels")
    check(code == 7 and "missing: glibc 99.1" in said and not called, said)
    (bundle / "MANIFEST").write_text(manifest + "glibc=2.0\n")

    # A failure is one line and the code; the next call runs only what was not ok.
    (bundle / "tests/gpu_b_test.code").write_text("1")
    code, said, called = run("--stage", "kernels")
    check(code == 1 and called == ["gpu_a_test  on 1", "gpu_b_test  on 1", "gpu_golden_test  on 1"], said, called)
    check([line.split()[0] for line in lines("kernels")] == ["ok", "failed", "ok"], lines("kernels"))
    (bundle / "tests/gpu_b_test.code").unlink()
    code, said, called = run("--stage", "kernels")
    check(code == 0 and called == ["gpu_b_test  on 1"], said, called)
    check(sorted(line.split()[0] for line in lines("kernels")) == ["ok"] * 3, lines("kernels"))

    # A stage that is over begins nothing, and says so; the next call goes on.
    code, said, called = run("--stage", "nccl", SLIPSTREAM_STAGE_SECONDS="0")
    check(code == 3 and "not finished" in said and not any("nccl" in call for call in called), said, called)
    code, said, called = run("--stage", "nccl")
    tests = [call for call in called if call.startswith("gpu_")]
    check(code == 0, said)
    check(tests == [f"gpu_nccl_contract_test {group} on {ranks}" for ranks in (1, 2, 4) for group in ("first", "second")] +
          [f"gpu_nccl_order_test {group} on 3" for group in ("first", "second")], tests)
    check([call.count("train.micro_batch_size=") for call in called if call.startswith("program train")] == [1, 1, 1], called)
    check(run("--stage", "nccl")[2] == [], "a finished stage ran something")

    # A machine without the tool, and one whose tool refuses.
    if not shutil.which("compute-sanitizer") and not list(pathlib.Path("/usr/local").glob("cuda*/bin/compute-sanitizer")):
        code, said, called = run("--stage", "sanitize")
        check(code == 0 and "refused: this machine has no compute-sanitizer" in said, said)
    script(machine / "compute-sanitizer", "#!/bin/sh\necho 'Error: Device not supported'; exit 1\n")
    code, said, called = run("--stage", "sanitize", "--again")
    check(code == 0 and len([line for line in lines("sanitize") if line.startswith("refused")]) == 6, lines("sanitize"))
    check(not any("golden" in line for line in lines("sanitize")), lines("sanitize"))

    # The benchmarks: kernels, the step, overlap; PyTorch is refused where there is none.
    script(machine / "python3", "#!/bin/sh\nexit 1\n")
    code, said, called = run("--stage", "bench")
    check(code == 0 and "436907 tokens/s" in said and "refused: python3 has no PyTorch" in said, said)
    check(sum("bench overlap" in call for call in called) == 2 and any("bench products" in call and "micro_batch_size=64" in call for call in called) and f"gpu_kernels_bench {out}/kernels.csv on 1" in called, called)
    check(len(list(out.iterdir())) <= 8, list(out.iterdir()))
print(f"{checked} checks of gpu_check.sh hold")
