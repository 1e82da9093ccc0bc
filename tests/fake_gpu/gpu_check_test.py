# SPDX-License-Identifier: Apache-2.0
"""The calls of scripts/gpu_check.sh under their real time limits, with the program and its tests on fake GPUs: parts that crash and fill
the disk stop no other part. scripts/test.sh --all adds one that hangs, and the second call.

Emulated kernels compute small models: a wrapper of the program replaces the sizes.

usage: gpu_check_test.py SOURCE_ROOT BUILD_ROOT
"""
import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

source, build = map(pathlib.Path, sys.argv[1:3])
sys.path.insert(0, str(source / "tests"))
from checks import all_hold, check  # noqa: E402

EVERYTHING = "SLIPSTREAM_TEST_ALL" in os.environ
SCALE = 3  # of time limits: an emulated kernel is slower
MODELS = {
    "gpt2_124m": '[model]\nfamily = "gpt2"\nlayers = 1\nheads = 1\nwidth = 8\ncontext = 4\n[train]\ndtype = "bfloat16"\n',
    "llama_1b": '[model]\nfamily = "llama"\nlayers = 1\nheads = 2\nkv_heads = 1\nwidth = 8\nffn_width = 8\ncontext = 4\nvocab_size = 32\n[train]\ndtype = "bfloat16"\n',
}
PROGRAM = """#!/bin/bash
arguments=() command="$1 $2" run=$*
while (($#)); do
  arguments+=("$1")
  if [[ $1 == --steps ]]; then arguments+=(1); shift; fi
  shift
done
case $run in
  *run.toml*) sizes=(model.layers=1 model.heads=1 model.width=8 model.context=4) ;;
  *gpt2_124m.toml*) sizes=(model.vocab_size=32 train.global_batch_size=8 train.micro_batch_size=1) ;;
  *llama_1b.toml*) sizes=(train.sequence_length=4 train.micro_batch_size=1) ;;
esac
exec "{program}" "${{arguments[@]}}" "${{sizes[@]/#/--set=}}"
"""
CRASHES = "kill -SEGV $$\n"
FILLS = 'head -c 100M /dev/zero >"$TMPDIR/all"\n'
HANGS = "trap '' TERM; while :; do sleep 1; done\n"

with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    bundle, out, machine = root / "bundle", root / "out", root / "machine"

    def script(path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if text.startswith("#!") else "#!/bin/bash\n" + text)
        path.chmod(0o755)

    def runs(path, program, arguments='"$@"'):
        script(bundle / path, f'exec "{build / "tests" / program}" {arguments}\n')

    script(bundle / "bin/slipstream", PROGRAM.format(program=build / "tests/fake_gpu/slipstream_fake_gpu"))
    runs("tests/gpu_wire_test", "emulation/emulated_kernels_test", '-# "[#wire_test]~[cpu]"')
    script(bundle / "tests/gpu_crashing_test", CRASHES)
    script(bundle / "tests/gpu_filling_test", FILLS)
    runs("tests/gpu_attention_golden_test", "emulation/emulated_attention_golden_test", '"$@" "*mma.sync"')
    runs("bench/gpu_kernels_bench", "fake_gpu/fake_gpu_kernels_bench", '"$1" trial')
    shutil.copytree(source / "tests/golden", bundle / "tests/golden")
    if EVERYTHING:
        script(bundle / "tests/gpu_hanging_test", HANGS)
        runs("nccl/gpu_nccl_contract_test", "fake_gpu/fake_gpu_nccl_contract_test")
    (bundle / "configs/runs").mkdir(parents=True)
    for model, text in MODELS.items():
        (bundle / f"configs/runs/{model}.toml").write_text(text)
    (bundle / "MANIFEST").write_text("commit=fakes\ncuda_major=13\n")
    (bundle / "scripts").mkdir()
    for name in ("gpu_check.sh", "gpu_parts.sh", "gpu_summary.py", "bench_gpu_pytorch.py"):
        shutil.copy(source / "scripts" / name, bundle / "scripts")
    shutil.copytree(source / "docs/benchmarks", bundle / "docs/benchmarks", ignore=lambda _, names: [n for n in names if not n.endswith("forecast.csv")])
    script(machine / "nvidia-smi", "echo 'A GPU, 580.0, 80000 MiB'\n")

    def call(number, file_mib="16"):
        """Exit code and output of a call, which ends in time and leaves at most 8 files. No test writes a larger file."""
        began = time.monotonic()
        ran = subprocess.run([bundle / "scripts/gpu_check.sh", "--out", out, "--call", number], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", timeout=700 * SCALE,
                             env={**os.environ, "PATH": f"{machine}:{os.environ['PATH']}", "SLIPSTREAM_CHECK_FILE_MIB": file_mib,
                                  "SLIPSTREAM_CHECK_SCALE": str(SCALE)})
        check(time.monotonic() - began <= SCALE * {"1": 590, "2": 150}[number], ran.stdout)
        check(len(list(out.iterdir())) <= 8, list(out.iterdir()))
        return ran.returncode, ran.stdout

    def results():
        """{name: result}"""
        lines = [line for line in (out / "tests.txt").read_text(errors="replace").splitlines() if not line.startswith("    |")]
        return {line.split(" s  ", 1)[1]: line.split()[0] for line in lines}

    def measured():
        return {row[0]: float(row[1]) for row in csv.reader((out / "measured.csv").read_text().splitlines())}

    code, printed = call("1")
    injected = {"gpu_crashing_test": "failed", "gpu_filling_test": "failed", **({"gpu_hanging_test": "timeout"} if EVERYTHING else {})}
    refused = ("PyTorch", "ncu")
    check(code == 1 and all(result == injected.get(test, "refused" if test.startswith(refused) else "ok") for test, result in results().items()), printed)
    steps = ("GPT-2 124M without a table", "GPT-2 124M", "Llama 1.2B without a table")
    check({*steps, *injected, "gpu_wire_test", "canary: attention mma", "canary: every op"} <= set(results()) and all(measured()[step] > 0 for step in steps), printed)
    # The table of products is one that the program reads, and holds every product of the step.
    table = json.loads((out / "products.json").read_text())
    check(measured()["products timed"] == 24 and len(table["products"]) == 24, table.keys(), measured())
    with open(out / "kernels.csv", newline="") as file:
        kernels = {row["op"] for row in csv.DictReader(file)}
    check({"copy", "attention_forward", "attention_backward", "layer_norm_backward", "cross_entropy", "adamw"} <= kernels, kernels)
    check("# GPU check: A GPU" in printed and "| GPT-2 124M |" in printed and "- failed: gpu_filling_test" in printed, printed)

    # The next call runs what did not pass, and nothing else.
    before = (out / "measured.csv").read_text()
    for test in ("crashing", "filling") + (("hanging",) if EVERYTHING else ()):
        script(bundle / f"tests/gpu_{test}_test", "exit 0\n")
    code, printed = call("1")
    check(code == 0 and all(results()[test] == "ok" for test in injected) and (out / "measured.csv").read_text() == before, printed)

    if EVERYTHING:
        code, printed = call("2", "1024")  # the fake NCCL's memory
        check(results()["gpu_nccl_contract_test laws on 2"] == "ok" and results()["compute-sanitizer memcheck"] == "refused", printed)
        # Emulated links take up to half of their limit on two idle cores, and more than all of it on busy ones.
        check(results()["overlap at 0.6 of backward"] in ("ok", "timeout"), results(), printed)
        check(code in (0, 1) and ("communication hidden at 0.6 of backward" in measured() or code == 1), code, measured())
all_hold("gpu_check.sh on fake GPUs")
