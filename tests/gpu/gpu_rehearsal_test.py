# SPDX-License-Identifier: Apache-2.0
"""The calls of scripts/gpu_check.sh on bundles of stand-ins: parts that hang, crash and fill the disk stop no other part, and the next call
continues.

Calls run under the script's own time limits. Where a stand-in hangs, the sample scales them (HANGING); scripts/test.sh --all does not.
Several rehearsals run at once, because hanging takes no core.

usage: gpu_rehearsal_test.py SOURCE_ROOT
"""
import concurrent.futures
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

EVERYTHING = "SLIPSTREAM_TEST_ALL" in os.environ
HANGING = 1 if EVERYTHING else 0.05
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
    if [[ $(cat "$0.products") == slow ]]; then sleep "$PACE"; fi
    { cat "$table" 2>/dev/null; echo "product $i"; } >"$table.tmp-1" && mv "$table.tmp-1" "$table"
    touch "$table.tmp-$$"  # of the next product
  done
  rm -f "$table.tmp-$$"
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
# As Open MPI's, it takes what comes on its standard input.
MPIRUN = """#!/bin/bash
cat >/dev/null
while [[ $1 == -* ]]; do [[ $1 == -np ]] && ranks=$2; case $1 in --oversubscribe) shift ;; *) shift 2 ;; esac; done
RANKS=$ranks exec "$@"
"""
KERNELS = [f"gpu_{name}_test" for name in "abcd"]
CALL_1 = ["GPT-2 124M without a table", "PyTorch: GPT-2 124M eager", "PyTorch: GPT-2 124M default", "gpu_kernels_bench",
          "PyTorch: kernels", "products", "GPT-2 124M", "Llama 1.2B without a table", "ncu attention_forward", "ncu attention_backward", "ncu layer_norm_backward",
          "ncu cross_entropy", "nsys overlapped step"]
CALL_2 = ["gpu_nccl_contract_test first on 2", "gpu_nccl_order_test first on 3", "training on 2", "overlap at 0.6 of backward",
          *(f"overlap of 8 ranks, 7 imitated, {form}" for form in ("gate", "copies", "blocks")), "products of Llama 1.2B", "Llama 1.2B", "overlap on 2 ranks"]
PROGRAMS = ["bin/slipstream", *(f"tests/{name}" for name in KERNELS), "nccl/gpu_nccl_contract_test", "nccl/gpu_nccl_order_test", "bench/gpu_kernels_bench"]


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Rehearsal:
    """A bundle of stand-ins, a machine and a folder of results."""

    def __init__(self, root):
        self.root, self.bundle, self.out, self.machine, self.calls = root, root / "bundle", root / "out", root / "machine", root / "calls"
        for path in PROGRAMS:
            script(self.bundle / path, STUB)
        (self.bundle / "MANIFEST").write_text("commit=one\ncuda_major=13\n")
        (self.bundle / "scripts").mkdir()
        for name in ("gpu_check.sh", "gpu_summary.py"):
            shutil.copy(source / "scripts" / name, self.bundle / "scripts")
        script(self.machine / "nvidia-smi", "#!/bin/sh\necho 'A GPU, 580.0, 80000 MiB'\n")
        script(self.machine / "mpirun", MPIRUN)
        self.products("quick")

    def products(self, pace):
        (self.bundle / "bin/slipstream.products").write_text(pace)

    def do(self, what, *paths):
        """These programs hang, crash, fill or flood; without `what` they no longer do."""
        for path in paths:
            (self.bundle / f"{path}.does").write_text(what)

    def call(self, *arguments, scale=1, before=(), **more):
        """Exit code, seconds and output of one call."""
        self.calls.write_text("")
        environment = {**os.environ, "PATH": f"{self.machine}:{os.environ['PATH']}", "CALLS": str(self.calls), "SLIPSTREAM_CHECK_SCALE": str(scale),
                       "SLIPSTREAM_CHECK_FILE_MIB": "16", "PACE": str(10 * scale), **more}
        began = time.monotonic()
        result = subprocess.run([*before, self.bundle / "scripts/gpu_check.sh", "--out", self.out, *arguments], env=environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=700)
        return result.returncode, time.monotonic() - began, result.stdout

    def results(self, *stages):
        """[(result, name)] in the order written."""
        files = [self.out / f"{stage}.txt" for stage in stages]
        lines = [line for file in files if file.exists() for line in file.read_text(errors="replace").splitlines()]
        return [(line.split()[0], line.split(" s  ", 1)[1]) for line in lines if not line.startswith("    |")]

    def started(self):
        return self.calls.read_text().splitlines()


def ends_in_time(seconds, scale):
    """A call has 570 s of 600. Starting some hundred processes takes time that no scale shortens, more of it beside other tests."""
    check(seconds <= (600 if scale == 1 else 600 * scale + 20), seconds, scale)


def every_line(found, expected, scale):
    """Every test has its line, in order. Beside other tests, starting processes may take the time of the last ones of a scaled call."""
    check(found == expected if scale == 1 else found == expected[:len(found)] and len(found) >= min(2, len(expected)), found, expected)


def one_of_each(r):
    """A hang, a crash, a full disk and endless output among the tests of kernels: each is one line, and every other part runs."""
    scale = 1 if EVERYTHING else 0.1
    r.do("hangs", "tests/gpu_a_test")
    r.do("crashes", "tests/gpu_b_test")
    r.do("fills", "tests/gpu_c_test")
    code, seconds, printed = r.call("--call", "1", scale=scale)
    check(code == 1, printed)
    check(sorted(r.results("kernels")) == [("failed", "gpu_b_test"), ("failed", "gpu_c_test"), ("ok", "gpu_d_test"), ("timeout", "gpu_a_test")],
          r.results("kernels"), printed)
    check([name for _, name in r.results("bench")] == CALL_1, r.results("bench"))
    refused = [name for name in CALL_1 if name.startswith(("PyTorch", "ncu", "nsys"))]
    check(all((result == "refused") == (name in refused) for result, name in r.results("bench")), r.results("bench"))
    check(all(result in ("ok", "refused") for result, _ in r.results("bench")), r.results("bench"))
    check(seconds >= 45 * scale, seconds)
    ends_in_time(seconds, scale)
    check(len(list(r.out.iterdir())) <= 8, list(r.out.iterdir()))
    check("# GPU check: A GPU" in printed and "has no forecast" in printed and "- timeout: gpu_a_test" in printed, printed)
    # Numbers stand above a test's output, and the step comes before everything that may take long.
    text = (r.out / "bench.txt").read_text().splitlines()
    check(text[1] == "    | GPT-2 124M without a table: 436907 tokens/s", text[:4])

    # The next call: what never ran first, then what was not ok; what passed is left alone.
    r.do("", "tests/gpu_a_test")
    r.do("floods", "tests/gpu_c_test")
    code, seconds, printed = r.call("--call", "1")
    programs = [line.split()[0] for line in r.started()]
    check(code == 1 and programs == ["gpu_a_test", "gpu_b_test", "gpu_c_test"], programs, printed)
    check(("ok", "gpu_a_test") in r.results("kernels") and ("failed", "gpu_c_test") in r.results("kernels"), r.results("kernels"))
    check((r.out / "kernels.txt").stat().st_size < 1 << 20, "a test that floods its output fills the results")
    r.do("", "tests/gpu_b_test", "tests/gpu_c_test")
    check(r.call("--call", "1")[0] == 0, r.results("kernels"))


def every_part(what, number):
    """Every part of a call hangs, crashes or fills the disk: each gets its own limit, the call ends within all of them, and each has a line
    that is not "ok"."""
    def rehearse(r):
        scale = HANGING if what == "hangs" else 1
        r.do(what, *PROGRAMS)
        code, seconds, printed = r.call("--call", str(number), scale=scale)
        check(code == 1, number, what, printed)
        ends_in_time(seconds, scale)
        for stage, names in (("nccl", (CALL_1[:0], CALL_2[:3])[number - 1]), ("bench", (CALL_1, CALL_2[3:])[number - 1])):
            every_line([name for _, name in r.results(stage)], names, scale)
        check(all(result in ("cut", "refused", "timeout" if what == "hangs" else "failed") for result, _ in r.results("kernels", "nccl", "bench")), number, what, printed)
        if number == 1:
            kernels = [result for result, _ in r.results("kernels")]
            check(kernels[:2] in (["timeout", "cut"], ["timeout", "timeout"]) if what == "hangs" else kernels == ["failed"] * 4, what, kernels)
    return rehearse


def table_goes_on(r):
    """A table of products that is cut off stays, and the next call continues it, from results that were carried along."""
    scale = 1 if EVERYTHING else 0.06
    r.products("slow")
    code, seconds, printed = r.call("--call", "1", scale=scale)
    table = (r.out / "products.json").read_text().splitlines()
    check(code == 1 and 1 <= len(table) < 30 and ("timeout", "products") in r.results("bench"), code, len(table), printed)
    check(("ok", "GPT-2 124M") in r.results("bench"), r.results("bench"))  # with the table as far as it goes
    ends_in_time(seconds, scale)
    check(not list(r.out.glob("*.tmp*")), "the file that a killed program was writing stays")
    shutil.move(r.out, r.bundle / "results")
    r.products("quick")
    code, seconds, printed = r.call("--call", "1")
    check(code == 0 and (r.out / "products.json").read_text().splitlines()[: len(table)] == table, printed)
    check(all(result in ("ok", "refused") for result, _ in r.results("kernels", "bench")), r.results("kernels", "bench"))
    check([line for line in r.started() if line.startswith("gpu_")] == [], r.started())

    # Another bundle: only its table is used from what was carried, and a folder of results is not mixed with it.
    (r.bundle / "MANIFEST").write_text("commit=two\ncuda_major=13\n")
    code, seconds, printed = r.call("--call", "1")
    check(code == 2 and "of another bundle or GPU" in printed and r.started() == [], printed)
    check((r.out / "found.txt").read_text().startswith("bundle of commit one"), (r.out / "found.txt").read_text())
    shutil.rmtree(r.out)
    code, seconds, printed = r.call("--stage", "kernels")
    check(code == 0 and "only the table of products is used" in printed and len(r.started()) == 4, printed)
    check((r.out / "products.json").exists(), list(r.out.iterdir()))


def again(r):
    """--again forgets the tests of the parts asked for, and no others. Every part of the second call has its line."""
    code, seconds, printed = r.call("--stage", "kernels")
    check(code == 0, printed)
    check(r.call("--call", "2")[0] == 0, r.results("nccl", "bench"))
    names = [name for _, name in r.results("nccl", "bench")]
    check(names == CALL_2, names)
    before = r.results("kernels")
    code, seconds, printed = r.call("--call", "2", "--again")
    check(r.results("kernels") == before and any("nccl" in line for line in r.started()), r.started())
    check(r.call("--call", "4")[0] == 2, "call 4")


def sanitizers(r):
    """Every part of the third call hangs. With one test, its limits leave time for what no scale shortens."""
    for name in KERNELS[1:]:
        (r.bundle / "tests" / name).unlink()
    script(r.machine / "compute-sanitizer", "#!/bin/sh\nsleep 1000\n")
    code, seconds, printed = r.call("--call", "3", scale=HANGING)
    check(code == 1, printed)
    ends_in_time(seconds, HANGING)
    every_line([name for _, name in r.results("sanitize")], [f"gpu_a_test {tool}" for tool in ("memcheck", "racecheck", "initcheck", "synccheck")], HANGING)
    check(all(result in ("timeout", "cut") for result, _ in r.results("sanitize")) and r.results("sanitize")[0][0] == "timeout", r.results("sanitize"))


def full_disk(r):
    """A disk without room: earlier results stay whole, and standard output has everything."""
    if subprocess.run(["unshare", "-rm", "sh", "-c", f'mount -t tmpfs none "{r.machine}"'], capture_output=True).returncode != 0:
        print("SKIPPED a full disk: this host lets no user mount a tmpfs")
        return
    r.out.mkdir()
    tmpfs = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=64k none "{r.out}" && "$@"; exit $?', "sh"]
    script(r.bundle / "tests/gpu_a_test", "#!/bin/bash\nhead -c 1M /dev/zero >\"$OUT_FOLDER/all\"; exit 1\n")
    code, seconds, printed = r.call("--stage", "kernels", before=tmpfs, OUT_FOLDER=str(r.out))
    check(code == 1 and printed.count("no room to write") >= 1, code, printed)
    check(all(f"s  {name}" in printed for name in KERNELS), printed)


# The parts of a call have as much time as a call.
for row in re.findall(r'run_call ([a-z_:0-9 ]+) ;;', (source / "scripts/gpu_check.sh").read_text()):
    check(sum(int(part.split(":")[1]) for part in row.split()) <= 570, row)

ROWS = [("hangs", 1), ("hangs", 2), ("crashes", 1), ("fills", 2), *([("crashes", 2), ("fills", 1)] if EVERYTHING else [])]
REHEARSALS = [sanitizers, *(every_part(what, number) for what, number in ROWS), one_of_each, table_goes_on, again, full_disk]
WORKERS = 5  # the first three hang
with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
    for future in [pool.submit(rehearse, Rehearsal(pathlib.Path(folder) / str(number))) for number, rehearse in enumerate(REHEARSALS)]:
        future.result()
all_hold("the rehearsed calls")
