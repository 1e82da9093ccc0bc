# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_check.sh on a bundle of stand-ins: what it runs, what it writes, where it goes on, its exit codes, and its time limits
with parts that hang, crash and fill the disk. scripts/gpu_summary.py on tables of its format.

usage: gpu_check_test.py SOURCE_ROOT
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

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

    # Code for another architecture, and a missing library: one sentence each. Code with "a" runs on one version only.
    script(machine / "nvidia-smi", "#!/bin/sh\ncase $* in *compute_cap*) echo $CAPABILITY ;; *) echo 'A GPU, 580.0, 80000 MiB' ;; esac\n")
    for archs, capability, runs, asked in (("90a", "8.0", False, "80"), ("90a 100a", "10.3", False, "103"), ("80", "9.0", False, "90a"), ("89", "8.0", False, "80"),
                                           ("90a 100", "10.3", True, ""), ("100f", "10.3", True, ""), ("90a", "9.0", True, ""), ("80 90a", "8.6", True, "")):
        (bundle / "MANIFEST").write_text(manifest + f"archs={archs}\n")
        code, said, called = run("--stage", "kernels", "--again", CAPABILITY=capability)
        sentence = f"missing: code for compute capability {capability}; this build has {archs.replace(' ', ', ')}. Build with -Dgpu_archs={asked}.\n"
        check((code == 0 and called and "missing" not in said) if runs else (code == 7 and said.endswith(sentence) and said.count("missing") == 1 and not called), archs, said)
    script(machine / "nvidia-smi", "#!/bin/sh\necho 'A GPU, 580.0, 80000 MiB'\n")
    shutil.rmtree(out)
    (bundle / "MANIFEST").write_text(manifest.replace("cuda_major=13", "cuda_major=99"))
    script(machine / "ldd", "#!/bin/sh\necho '	libcudart.so.99 => not found'\n")
    code, said, called = run("--stage", "kernels")
    check(code == 7 and said.count("missing") == 1 and not called, said)
    check("missing: libcudart.so.99 for CUDA 99. Install the CUDA 99 toolkit or PyTorch's wheels for it, or set CUDA_HOME." in said, said)
    (machine / "ldd").unlink()
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

    # A stage without time left starts no test and prints it; the next call continues.
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
        check(code == 0 and "this machine has no compute-sanitizer" in said and not called, said)
    script(machine / "compute-sanitizer", "#!/bin/sh\necho 'Error: Device not supported'; exit 1\n")
    code, said, called = run("--stage", "sanitize", "--again")
    check(code == 0 and len([line for line in lines("sanitize") if line.startswith("refused")]) == 8, lines("sanitize"))
    check(not any("golden" in line for line in lines("sanitize")), lines("sanitize"))

    # The benchmarks: kernels, the step with and without a table, links in three forms, overlap; PyTorch is refused where there is none.
    script(machine / "python3", "#!/bin/sh\nexit 1\n")
    code, said, called = run("--stage", "bench")
    check(code == 0 and "GPT-2 124M without a table: 436907 tokens/s" in said and "python3 has no PyTorch" in said, said)
    check(sum("bench overlap" in call for call in called) == 5 and f"gpu_kernels_bench {out}/kernels.csv on 1" in called, called)
    for model, sequences in (("gpt2_124m", 64), ("llama_1b", 8)):
        check(any("bench products" in call and model in call and f"micro_batch_size={sequences}" in call and f'device.algorithms="{out}/products.json"' in call
                  for call in called), called)
        steps = [call for call in called if "bench step" in call and model in call]
        check(len(steps) == 2 and 'device.algorithms=""' in steps[0] and f'device.algorithms="{out}/products.json"' in steps[1], steps)
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

# --- The three calls, rehearsed under the script's own limits, scaled: parts that hang, crash and fill the disk stop no other part.
SCALE = 0.1
STUB = """#!/bin/bash
name=$(basename "$0")
[[ $1 == --list ]] && { echo first; exit 0; }
echo "$name $*" >>"$CALLS"
case $(cat "$0.does" 2>/dev/null) in
  hangs) trap '' TERM; while :; do sleep 1; done ;;
  crashes) kill -SEGV $$ ;;
  fills) head -c 100M /dev/zero >"$TMPDIR/all"; exit $? ;;
  floods) head -c 100M /dev/zero; exit $? ;;
esac
if [[ $name == slipstream && $2 == products ]]; then
  for word in "$@"; do [[ $word == device.algorithms=* ]] && table=${word#device.algorithms=}; done
  table=${table//\\"/}
  timed=$(cat "$table" 2>/dev/null | wc -l)
  for ((i = timed; i < 30; ++i)); do
    if [[ $(cat "$0.products") == slow ]]; then sleep 1; fi
    { cat "$table" 2>/dev/null; echo "product $i"; } >"$table.tmp" && mv "$table.tmp" "$table"
  done
  echo "30 of 30 products timed: $table"
elif [[ $name == slipstream && $2 == step ]]; then
  while (($#)); do [[ $1 == --csv ]] && printf 'ranks,threads,steps,loss,step_ms\\n1,1,30,10.9,150\\n' >"$2"; shift; done
elif [[ $name == slipstream && $1 == train ]]; then
  for word in "$@"; do [[ $word == output.dir=* ]] && dir=${word#output.dir=}; done
  dir=${dir//\\"/}
  mkdir -p "$dir" && echo '{"step": 1, "loss": 2.5}' >"$dir/metrics.jsonl"
elif [[ $name == slipstream && $2 == overlap ]]; then
  while (($#)); do [[ $1 == --csv ]] && printf 'implementation,compute_ms,hidden_fraction,ratio\\nno_communication,10,1,0.5\\nbucketed,11,0.9,0.5\\n' >"$2"; shift; done
elif [[ $name == gpu_kernels_bench ]]; then
  printf 'op,shape,us,spread,tflops,gbytes\\ncopy,1024 MiB,500,0,0,4000\\nadamw,7,10,0,0,3000\\n' >"$1"
fi
"""
KERNELS = [f"gpu_{name}_test" for name in "abcd"]
CALL_1 = ["GPT-2 124M without a table", "PyTorch: GPT-2 124M eager", "PyTorch: GPT-2 124M default", "gpu_kernels_bench",
          "PyTorch: kernels", "products", "GPT-2 124M", "Llama 1.2B without a table", "ncu attention_forward", "ncu attention_backward", "ncu layer_norm_backward",
          "ncu cross_entropy", "nsys overlapped step"]
CALL_2 = ["gpu_nccl_contract_test first on 2", "gpu_nccl_order_test first on 3", "training on 2", "overlap at 0.6 of backward",
          *(f"overlap of 8 ranks, 7 imitated, {form}" for form in ("gate", "copies", "blocks")), "products of Llama 1.2B", "Llama 1.2B", "overlap on 2 ranks"]
PROGRAMS = ["bin/slipstream", *(f"tests/{name}" for name in KERNELS), "nccl/gpu_nccl_contract_test", "nccl/gpu_nccl_order_test", "bench/gpu_kernels_bench"]

with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    bundle, out, machine, calls = root / "bundle", root / "out", root / "machine", root / "calls"
    for path in PROGRAMS:
        script(bundle / path, STUB)
    (bundle / "MANIFEST").write_text("commit=one\ncuda_major=13\n")
    (bundle / "scripts").mkdir()
    for name in ("gpu_check.sh", "gpu_summary.py"):
        shutil.copy(source / "scripts" / name, bundle / "scripts")
    script(machine / "nvidia-smi", "#!/bin/sh\necho 'A GPU, 580.0, 80000 MiB'\n")
    script(machine / "mpirun", MPIRUN)

    def does(path, what):
        (bundle / f"{path}.does").write_text(what)

    def call(*arguments, scale=SCALE, before=(), **more):
        """Exit code, seconds and output of one call."""
        calls.write_text("")
        environment = {**os.environ, "PATH": f"{machine}:{os.environ['PATH']}", "CALLS": str(calls), "SLIPSTREAM_CHECK_SCALE": str(scale),
                       "SLIPSTREAM_CHECK_FILE_MIB": "16", **more}
        began = time.monotonic()
        result = subprocess.run([*before, bundle / "scripts/gpu_check.sh", "--out", out, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=200)
        return result.returncode, time.monotonic() - began, result.stdout

    def results(*stages):
        """[(result, name)] in the order written."""
        lines = [line for stage in stages if (out / f"{stage}.txt").exists() for line in (out / f"{stage}.txt").read_text(errors="replace").splitlines()]
        return [(line.split()[0], line.split(" s  ", 1)[1]) for line in lines if not line.startswith("    |")]

    def fresh():
        shutil.rmtree(out, ignore_errors=True)

    # The parts of a call have as much time as a call.
    for row in re.findall(r'run_call ([a-z_:0-9 ]+) ;;', (source / "scripts/gpu_check.sh").read_text()):
        check(sum(int(part.split(":")[1]) for part in row.split()) <= 570, row)

    # A hang, a crash, a full disk and endless output among the tests of kernels: each is one line, and every other part runs.
    does("tests/gpu_a_test", "hangs")
    does("tests/gpu_b_test", "crashes")
    does("tests/gpu_c_test", "fills")
    (bundle / "bin/slipstream.products").write_text("quick")
    code, seconds, said = call("--call", "1")
    check(code == 1, said)
    check(sorted(results("kernels")) == [("failed", "gpu_b_test"), ("failed", "gpu_c_test"), ("ok", "gpu_d_test"), ("timeout", "gpu_a_test")], results("kernels"), said)
    check([name for _, name in results("bench")] == CALL_1, results("bench"))
    refused = [name for name in CALL_1 if name.startswith(("PyTorch", "ncu", "nsys"))]
    check(all((result == "refused") == (name in refused) for result, name in results("bench")), results("bench"))
    check(all(result in ("ok", "refused") for result, _ in results("bench")), results("bench"))
    check(2 <= seconds <= 570 * SCALE + 3, seconds)
    check(len(list(out.iterdir())) <= 8, list(out.iterdir()))
    check("# GPU check: A GPU" in said and "has no forecast" in said and "- timeout: gpu_a_test" in said, said)
    # Numbers stand above a test's output, and the step comes before everything that may take long.
    text = (out / "bench.txt").read_text().splitlines()
    check(text[1] == "    | GPT-2 124M without a table: 436907 tokens/s", text[:4])

    # The next call: what never ran first, then what was not ok; what passed is left alone.
    (bundle / "tests/gpu_a_test.does").unlink()
    does("tests/gpu_c_test", "floods")
    code, seconds, said = call("--call", "1")
    programs = [line.split()[0] for line in calls.read_text().splitlines()]
    check(code == 1 and programs == ["gpu_a_test", "gpu_b_test", "gpu_c_test"], programs, said)
    check(("ok", "gpu_a_test") in results("kernels") and ("failed", "gpu_c_test") in results("kernels"), results("kernels"))
    check((out / "kernels.txt").stat().st_size < 1 << 20, "a test that floods its output fills the results")
    for name in ("gpu_b_test", "gpu_c_test"):
        (bundle / f"tests/{name}.does").unlink()
    check(call("--call", "1")[0] == 0, results("kernels"))

    # Every part of a call hangs, crashes or fills the disk: each gets its own limit, the call ends within all of them, and each has a
    # line that is not "ok".
    for number, what, scale in ((1, "hangs", 0.04), (2, "hangs", 0.04), (1, "crashes", 0.04), (2, "crashes", 0.04), (1, "fills", 0.04), (2, "fills", 0.04)):
        fresh()
        for path in PROGRAMS:
            does(path, what)
        code, seconds, said = call("--call", str(number), scale=scale)
        # Starting some hundred processes takes time that no scale shortens, more of it beside other tests.
        check(code == 1 and seconds <= 600 * scale + 12, number, what, seconds, said)
        check([name for _, name in results("nccl", "bench")] == (CALL_1, CALL_2)[number - 1], number, what, results("nccl", "bench"), said)
        check(all(result in ("cut", "refused", "timeout" if what == "hangs" else "failed") for result, _ in results("kernels", "nccl", "bench")), number, what, said)
        if number == 1:
            kernels = [result for result, _ in results("kernels")]
            check(kernels[:2] in (["timeout", "cut"], ["timeout", "timeout"]) if what == "hangs" else kernels == ["failed"] * 4, what, kernels)
    for path in PROGRAMS:
        (bundle / f"{path}.does").unlink()

    # A table of products that is cut off stays, and the next call continues it, from results that were carried along.
    fresh()
    (bundle / "bin/slipstream.products").write_text("slow")
    code, seconds, said = call("--call", "1")
    table = (out / "products.json").read_text().splitlines()
    check(code == 1 and 1 <= len(table) < 30 and ("timeout", "products") in results("bench"), code, len(table), said)
    check(("ok", "GPT-2 124M") in results("bench"), results("bench"))  # with the table as far as it goes
    shutil.move(out, bundle / "results")
    (bundle / "bin/slipstream.products").write_text("quick")
    code, seconds, said = call("--call", "1")
    check(code == 0 and (out / "products.json").read_text().splitlines()[: len(table)] == table, said)
    check(all(result in ("ok", "refused") for result, _ in results("kernels", "bench")), results("kernels", "bench"))
    check([line for line in calls.read_text().splitlines() if line.startswith("gpu_")] == [], calls.read_text())

    # Another bundle: only its table is used from what was carried, and a folder of results is not mixed with it.
    (bundle / "MANIFEST").write_text("commit=two\ncuda_major=13\n")
    code, seconds, said = call("--call", "1")
    check(code == 2 and "of another bundle or GPU" in said and calls.read_text() == "", said)
    check((out / "found.txt").read_text().startswith("bundle of commit one"), (out / "found.txt").read_text())
    fresh()
    code, seconds, said = call("--stage", "kernels")
    check(code == 0 and "only the table of products is used" in said and len(calls.read_text().splitlines()) == 4, said)
    check((out / "products.json").exists(), list(out.iterdir()))
    shutil.rmtree(bundle / "results")

    # --again forgets the tests of the parts asked for, and no others.
    call("--call", "2")
    check(call("--call", "2")[0] == 0, "a call that was refused nothing failed")
    before = results("kernels")
    code, seconds, said = call("--call", "2", "--again")
    check(results("kernels") == before and any("nccl" in line for line in calls.read_text().splitlines()), calls.read_text())
    check(call("--call", "4")[0] == 2, "call 4")

    # The second and third call: every part has its line.
    fresh()
    code, seconds, said = call("--call", "2")
    names = [name for _, name in results("nccl", "bench")]
    check(names == CALL_2, names)
    script(machine / "compute-sanitizer", '#!/bin/sh\nsleep 1000\n')
    code, seconds, said = call("--call", "3", scale=0.02)
    check(code == 1 and seconds <= 600 * 0.02 + 4, seconds, said)
    tools = {name.split()[1] for _, name in results("sanitize")}
    check(tools == {"memcheck", "racecheck", "initcheck", "synccheck"}, results("sanitize"))

    # A disk without room: earlier results stay whole, and standard output has everything.
    tmpfs = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=64k none "{out}" && "$@"; code=$?; cp "{out}"/* "{root}/kept"; exit $code', "sh"]
    if subprocess.run(["unshare", "-rm", "sh", "-c", f'mount -t tmpfs none "{machine}"'], capture_output=True).returncode == 0:
        (root / "kept").mkdir()
        script(bundle / "tests/gpu_a_test", "#!/bin/bash\nhead -c 1M /dev/zero >\"$OUT_FOLDER/all\"; exit 1\n")
        code, seconds, said = call("--stage", "kernels", before=tmpfs, OUT_FOLDER=str(out))
        check(code == 1 and said.count("no room to write") >= 1, code, said)
        check(all(f"s  {name}" in said for name in KERNELS), said)
    else:
        print("SKIPPED a full disk: this host lets no user mount a tmpfs")

# --- The summary: forecast, measurement, ratio, worst first.
HEADER = "name,unit,low,expected,high,basis\n"
with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    results_folder, forecast = root / "results", root / "forecast.csv"
    results_folder.mkdir()

    def summary(path=forecast):
        result = subprocess.run([sys.executable, source / "scripts/gpu_summary.py", results_folder, *(["--forecast", path] if path else [])],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return result.returncode, result.stdout

    def cells(said):
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in said.splitlines() if line.startswith("|")]

    check(summary()[0] == 2, "a folder without results")
    (results_folder / "found.txt").write_text("bundle of commit one\nfound: GPU A GPU, 580.0, 80000 MiB\n")
    (results_folder / "kernels.csv").write_text("op,shape,us,spread,tflops,gbytes\ncopy,1024 MiB,500,0,0,4000\nadamw,7,10,0,0,3000\nnorm,3 x 4,5,0,2,")
    (results_folder / "measured.csv").write_text("GPT-2 124M,100,tokens/s\nGPT-2 124M,600000,tokens/s\ntorch adamw 7,20,us\ntorch-compile GPT-2 124M,500000,tokens/s\n"
                                                 "overlap gate 1 hidden,0.0,%\noverlap gate 1 compute slow-down,-0.5,%\ncompute slow-down at 0.6 of backward,4.0,%\ncut off li")
    (results_folder / "kernels.txt").write_text("failed      3 s  gpu_b_test\n    | ok          0 s  not a result\nok          0 s  gpu_host_waits_test\n")
    code, said = summary()
    check(code == 0 and "forecast.csv has no forecast" in said, said)
    forecast.write_text(HEADER + "GPT-2 124M,tokens/s,610000,640000,700000,\"a sum, of parts\"\nadamw 7,us,7,8,12,bytes\nadamw 7,% of copy,50,60,75,\nother,us,1,1,1,\n"
                        "step part: all,ms,1,1,1,\nGPT-2 124M / torch-compile,x,1,1.5,2,\nhost synchronisations a step,waits,0,0,0,\n"
                        "graph launches a step,launches,2,2,2,\noverlap gate 1 hidden,%,0,50,90,\noverlap gate 1 compute slow-down,%,0,1,2,\ncompute slow-down at 0.6 of backward,%,1,6,9,\n")
    code, said = summary()
    rows = cells(said)
    first = rows.index(["what", "low", "forecast", "high", "measured", "unit", "ratio", "inside"]) + 2
    # The ratios by hand: 0 / 50, 1.2 / 1.5, 8 / 10, 600 / 640, 0 of 0 waits, 75 / 60, 6 / 4, 2 / 1; compute that is faster than alone
    # comes last.
    check(code == 0 and rows[first : first + 9] == [
        ["overlap gate 1 hidden", "0", "50", "90", "0", "%", "0.00", "yes"],
        ["GPT-2 124M / torch-compile", "1", "1.5", "2", "1.2", "x", "0.80", "yes"],
        ["adamw 7", "7", "8", "12", "10", "us", "0.80", "yes"],
        ["GPT-2 124M", "610,000", "640,000", "700,000", "600,000", "tokens/s", "0.94", "no"],
        ["host synchronisations a step", "0", "0", "0", "0", "waits", "1.00", "yes"],
        ["adamw 7", "50", "60", "75", "75", "% of copy", "1.25", "yes"],
        ["compute slow-down at 0.6 of backward", "1", "6", "9", "4", "%", "1.50", "yes"],
        ["graph launches a step", "2", "2", "2", "1", "launches", "2.00", "no"],
        ["overlap gate 1 compute slow-down", "0", "1", "2", "-0.5", "%", "inf", "no"]], said)
    check("6 of 9 measurements lie inside their interval." in said and "Not measured: other (us)." in said, said)
    check("- failed: gpu_b_test (kernels.txt)" in said, said)
    check(["adamw 7", "10", "torch", "20", "us", "2.00 x"] in rows and ["kernels", "1", "1", "0", "0", "0"] in rows, said)
    check(["copy 1024 MiB", "500", "us"] in rows and ["GPT-2 124M", "100", "tokens/s"] not in rows, said)
    for text, sentence in ((HEADER + "adamw 7,us,1,soon,2,\n", "forecast.csv:2: the forecast of 'adamw 7' needs numbers with 0 <= low <= expected <= high"),
                           (HEADER + "adamw 7,us,3,2,4,\n", "forecast.csv:2: the forecast of 'adamw 7' needs numbers"),
                           (HEADER + "adamw 7,us\n", "forecast.csv:2: the forecast of 'adamw 7' needs numbers"),
                           ("what,forecast,unit\n", "forecast.csv:1: the columns must be name,unit,low,expected,high,basis")):
        forecast.write_text(text)
        code, said = summary()
        check(code == 2 and sentence in said, said)
    # The GPU chooses its committed forecast.
    for gpu, name in (("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200")):
        (results_folder / "found.txt").write_text(f"bundle of commit one\nfound: GPU {gpu}, 580.0, 80000 MiB\n")
        code, said = summary(source / f"docs/benchmarks/{name}-forecast.csv")
        check(code == 0 and said == summary(None)[1] and "| GPT-2 124M |" in said, said)
all_hold("gpu_check.sh and gpu_summary.py")
