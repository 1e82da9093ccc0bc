# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check.sh on a bundle of stand-ins: what its stages run and write, where it continues, and its exit codes.

usage: gpu_check_test.py SOURCE_ROOT
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(source / "tests"))
from checks import all_hold, check  # noqa: E402

PROGRAM = """#!/bin/bash
echo "program $*" >>"$CALLS"
for word in "$@"; do [[ $word == output.dir=* ]] && dir=${word#output.dir=}; done
dir=${dir//\\"/}
if [[ $1 == train ]]; then mkdir -p "$dir" && echo '{"step": 1, "loss": 2.5}' >"$dir/metrics.jsonl"; fi
if [[ $1 == bench && $2 == products ]]; then
  for word in "$@"; do [[ $word == device.algorithms=* ]] && table=${word#device.algorithms=}; done
  echo table >"${table//\\"/}"
  echo "1 of 1 products timed: $table"
fi
if [[ $1 == bench && $2 == overlap ]]; then
  while (($#)); do [[ $1 == --csv ]] && printf 'implementation,compute_ms,hidden_fraction,ratio\\nno_communication,10,1,0.5\\nbucketed,11,0.9,0.5\\n' >"$2"; shift; done
fi
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
    for name in ("gpu_check.sh", "gpu_parts.sh"):
        shutil.copy(source / "scripts" / name, bundle / "scripts")
    script(machine / "mpirun", MPIRUN)
    calls = root / "calls"

    def run(*arguments, **more):
        calls.write_text("")
        environment = {**os.environ, "PATH": f"{machine}:{os.environ['PATH']}", "CALLS": str(calls), **more}
        result = subprocess.run([bundle / "scripts/gpu_check.sh", "--out", out, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
        return result.returncode, result.stdout, calls.read_text().splitlines()

    def lines(pattern=""):
        """Results of the tests whose lines hold the pattern."""
        return [line for line in (out / "tests.txt").read_text().splitlines() if not line.startswith("    |") and re.search(pattern, line)]

    # No driver: a sentence, code 7, nothing runs.
    script(machine / "nvidia-smi", "#!/bin/sh\nexit 9\n")
    code, printed, called = run("--stage", "kernels")
    check(code == 7 and "missing: an NVIDIA driver with a GPU" in printed and not called, printed)
    script(machine / "nvidia-smi", "#!/bin/sh\necho 'A GPU, 580.0, 80000 MiB'\n")

    # A bundle of a newer machine: its programs would not start.
    manifest = (bundle / "MANIFEST").read_text()
    (bundle / "MANIFEST").write_text(manifest + "glibc=99.1\n")
    code, printed, called = run("--stage", "kernels")
    check(code == 7 and "missing: glibc 99.1" in printed and not called, printed)

    # Code for another architecture, and a missing library: one sentence each. Code with "a" runs on one version only.
    script(machine / "nvidia-smi", "#!/bin/sh\ncase $* in *compute_cap*) echo $CAPABILITY ;; *) echo 'A GPU, 580.0, 80000 MiB' ;; esac\n")
    for archs, capability, runs, asked in (("90a", "8.0", False, "80"), ("90a 100a", "10.3", False, "103"), ("80", "9.0", False, "90a"), ("89", "8.0", False, "80"),
                                           ("90a 100", "10.3", True, ""), ("100f", "10.3", True, ""), ("90a", "9.0", True, ""), ("80 90a", "8.6", True, "")):
        (bundle / "MANIFEST").write_text(manifest + f"archs={archs}\n")
        code, printed, called = run("--stage", "kernels", "--again", CAPABILITY=capability)
        sentence = f"missing: code for compute capability {capability}; this build has {archs.replace(' ', ', ')}. Build with -Dgpu_archs={asked}.\n"
        check((code == 0 and called and "missing" not in printed) if runs else (code == 7 and printed.endswith(sentence) and printed.count("missing") == 1 and not called), archs, printed)
    script(machine / "nvidia-smi", "#!/bin/sh\necho 'A GPU, 580.0, 80000 MiB'\n")
    shutil.rmtree(out)
    (bundle / "MANIFEST").write_text(manifest.replace("cuda_major=13", "cuda_major=99"))
    script(machine / "ldd", "#!/bin/sh\necho '	libcudart.so.99 => not found'\n")
    code, printed, called = run("--stage", "kernels")
    check(code == 7 and printed.count("missing") == 1 and not called, printed)
    check("missing: libcudart.so.99 for CUDA 99. Install the CUDA 99 toolkit or PyTorch's wheels for it, or set CUDA_HOME." in printed, printed)
    (machine / "ldd").unlink()
    (bundle / "MANIFEST").write_text(manifest + "glibc=2.0\n")

    # A failure is one line and the code; the next call runs only what was not ok.
    (bundle / "tests/gpu_b_test.code").write_text("1")
    code, printed, called = run("--stage", "kernels")
    check(code == 1 and called == ["gpu_kernels_bench /dev/null trial on 1", "gpu_a_test  on 1", "gpu_b_test  on 1", "gpu_golden_test  on 1"], printed, called)
    check([line.split()[0] for line in lines("_test$") if "canary" not in line] == ["ok", "failed", "ok"], lines())
    (bundle / "tests/gpu_b_test.code").unlink()
    code, printed, called = run("--stage", "kernels")
    check(code == 0 and called == ["gpu_b_test  on 1"], printed, called)
    check(sorted(line.split()[0] for line in lines("_test$")) == ["ok"] * 3, lines())

    # A stage without time left starts no test and names them; the next call continues.
    for seconds in ("29", "soon", ""):
        code, printed, called = run("--seconds", seconds)
        check(code == 2 and printed == f"gpu_check: --seconds '{seconds}' must be a whole number of at least 30.\n", printed)
    code, printed, called = run("--stage", "nccl", "--seconds", "30", SLIPSTREAM_CHECK_SCALE="0")
    check(code == 3 and not any("nccl" in call for call in called), printed, called)
    check(re.search("^not run for lack of time: .*gpu_nccl_contract_test first on 2; .*\\nnot finished: call again", printed, re.M), printed)
    code, printed, called = run("--stage", "nccl")
    tests = [call for call in called if call.startswith("gpu_")]
    check(code == 0, printed)
    check(tests == [f"gpu_nccl_contract_test {group} on {ranks}" for ranks in (1, 2, 4) for group in ("first", "second")] +
          [f"gpu_nccl_order_test {group} on 3" for group in ("first", "second")], tests)
    check([call.count("train.micro_batch_size=") for call in called if call.startswith("program train")] == [1, 1, 1], called)
    check(run("--stage", "nccl")[2] == [], "a finished stage ran something")

    # A machine without the tool, and one whose tool refuses.
    if not shutil.which("compute-sanitizer") and not list(pathlib.Path("/usr/local").glob("cuda*/bin/compute-sanitizer")):
        code, printed, called = run("--stage", "sanitize")
        check(code == 0 and "this machine has no compute-sanitizer" in printed and not called, printed)
    script(machine / "compute-sanitizer", "#!/bin/sh\necho 'Error: Device not supported'; exit 1\n")
    code, printed, called = run("--stage", "sanitize", "--again")
    check(code == 0 and len(lines("^refused .* (mem|race|init|sync)check$")) == 8 and not lines("golden_test memcheck"), lines())

    # The benchmarks: kernels, the step with and without a table, links in three forms, overlap; PyTorch is refused where there is none.
    script(machine / "python3", "#!/bin/sh\necho 'this python3 has no PyTorch'; exit 77\n")
    code, printed, called = run("--stage", "bench")
    check(code == 0 and "GPT-2 124M without a table: 436907 tokens/s" in printed and len(lines("^refused .*PyTorch")) == 4, printed)
    check(sum("bench overlap" in call for call in called) == 5 and f"gpu_kernels_bench {out}/kernels.csv on 1" in called, called)
    for model, sequences in (("gpt2_124m", 64), ("llama_1b", 8)):
        check(any("bench products" in call and model in call and f"micro_batch_size={sequences}" in call and f'device.algorithms="{out}/products.json"' in call
                  for call in called), called)
        steps = [call for call in called if "bench step" in call and model in call]
        # After these GPT-2 has three more steps, one for each choice of a kernel's form.
        check(len(steps) == (5 if model == "gpt2_124m" else 2) and 'device.algorithms=""' in steps[0] and f'device.algorithms="{out}/products.json"' in steps[1], steps)
    check(any("bench overlap" in call and "--forms blocks --ratios 0.6" in call and call.endswith("--ratio-of backward") for call in called), called)
    # 150 ms for 16,384 tokens; compute of 11 ms beside 10.
    for line in ("overlap copies 0.5 hidden,90.0,%", "overlap blocks 0.5 compute slow-down,10.0,%", "Llama 1.2B without a table,109227,tokens/s", "Llama 1.2B,109227,tokens/s",
                 "communication hidden at 0.6 of backward,90.0,%", "compute slow-down at 0.6 of backward,10.0,%"):
        check(line in (out / "measured.csv").read_text().splitlines(), line, (out / "measured.csv").read_text())
    # Every forecast of a step or of overlapped communication has a measurement; the ratio to torch.compile follows from two of them.
    names = {line.split(",")[0] for line in (out / "measured.csv").read_text().splitlines()}
    forecast_names = {row.split(",")[0] for row in (source / "docs/benchmarks/h200-forecast.csv").read_text().splitlines()}
    steps = {name for name in forecast_names if name.startswith(("GPT-2", "Llama", "communication", "compute")) and "/" not in name}
    check(len(steps) == 6 and not steps - names, steps, names)
    check(len(list(out.iterdir())) <= 8, list(out.iterdir()))
all_hold("gpu_check.sh")
