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
echo "$name $* ${SLIPSTREAM_ATTENTION:+with $SLIPSTREAM_ATTENTION}" >>"$CALLS"
does=$(cat "$0.does" 2>/dev/null)
if [[ $does == *" on "* ]]; then if [[ ${SLIPSTREAM_ATTENTION:-hopper} == "${does#* on }" ]]; then does=${does% on *}; else does=""; fi; fi
case $does in
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
# A GPU with kernels of sm_90a, whose clocks fall under load.
NVIDIA_SMI = """#!/bin/bash
case $* in
  *compute_cap*) echo 9.0 ;;
  *--loop*) echo $$ >"$CALLS.smi"; while echo "t, 1980, 2619, 400.50, 50, 90" && echo "t, 1410, 2619, 690.00, 60, 99"; do sleep 0.1; done ;;
  *) echo 'A GPU, 580.0, 80000 MiB' ;;
esac
"""
# As compute-sanitizer, it runs the program.
SANITIZER = """#!/bin/bash
while [[ $1 == --* ]]; do shift 2; done
exec "$@"
"""
# A python3 with PyTorch, where filling the cache hangs.
PYTHON = f"""#!/bin/bash
case $* in
  *bench_gpu_pytorch.py*--warm*) trap '' TERM; while echo warms >>"$CALLS"; do sleep 0.02; done ;;
  *bench_gpu_pytorch.py*) echo "torch $*" >>"$CALLS" ;;
  *) exec {sys.executable} "$@" ;;
esac
"""
KERNELS = [*(f"gpu_{name}_test" for name in "abcd"), "gpu_attention_golden_test", "gpu_attention_test"]
CANARY = ["canary: attention mma", "canary: attention hopper", "canary: every op"]
CALL_1 = [*CANARY, "GPT-2 124M without a table", *KERNELS, "PyTorch: GPT-2 124M eager", "PyTorch: GPT-2 124M default", "gpu_kernels_bench", "PyTorch: kernels",
          "products", "GPT-2 124M", "Llama 1.2B without a table", "GPT-2 124M early launch on", "GPT-2 124M early launch off", "GPT-2 124M attention backward by 128 queries", "ncu attention_forward", "ncu attention_backward"]
CALL_2 = ["overlap at 0.6 of backward", "gpu_nccl_contract_test first on 2", "gpu_attention_test memcheck"]
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
        for name in ("gpu_check.sh", "gpu_parts.sh", "gpu_summary.py", "bench_gpu_pytorch.py"):
            shutil.copy(source / "scripts" / name, self.bundle / "scripts")
        script(self.machine / "nvidia-smi", NVIDIA_SMI)
        script(self.machine / "compute-sanitizer", SANITIZER)
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

    def results(self, pattern=""):
        """[(result, name)] of the tests whose names hold the pattern, in the order written."""
        file = self.out / "tests.txt"
        lines = [line for line in file.read_text(errors="replace").splitlines() if not line.startswith("    |")] if file.exists() else []
        return [(line.split()[0], line.split(" s  ", 1)[1]) for line in lines if re.search(pattern, line.split(" s  ", 1)[1])]

    def started(self):
        return self.calls.read_text().splitlines()


def ends_in_time(seconds, scale, limit=590):
    """Starting some hundred processes takes time that no scale shortens, more of it beside other tests."""
    check(seconds <= (limit if scale == 1 else limit * scale + 20), seconds, scale)


def every_line(found, expected, scale):
    """Every test has its line. In a scaled call, starting the processes of some tests may take the time of others."""
    check(sorted(found) == sorted(expected) if scale == 1 else set(found) <= set(expected) and len(found) >= min(2, len(expected)), found, expected)


def is_running(process):
    """A process that has ended stays in /proc as a zombie until its parent, or else init, has noticed."""
    try:
        state = pathlib.Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def one_of_each(r):
    """A hang, a crash, a full disk and endless output among the tests of kernels: each is one line, and every other part runs."""
    scale = 1 if EVERYTHING else 0.1
    r.do("hangs", "tests/gpu_a_test")
    r.do("crashes", "tests/gpu_b_test")
    r.do("fills", "tests/gpu_c_test")
    code, seconds, printed = r.call("--call", "1", scale=scale)
    check(code == 1, printed)
    injected = {"gpu_a_test": "timeout", "gpu_b_test": "failed", "gpu_c_test": "failed"}
    every_line([name for _, name in r.results()], CALL_1, scale)
    check(len(r.results()) == len(CALL_1), r.results(), printed)
    check(all(result == injected.get(name, "refused" if name.startswith(("PyTorch", "ncu")) else "ok") for result, name in r.results()), r.results())
    check(seconds >= 15 * scale, seconds)
    ends_in_time(seconds, scale)
    check(len(list(r.out.iterdir())) <= 8, list(r.out.iterdir()))
    check((r.out / "summary.md").read_text() in printed and printed.endswith((r.out / "summary.md").read_text()), printed)
    check("# GPU check: A GPU" in printed and "has no forecast" in printed and "- timeout: gpu_a_test" in printed, printed)
    # Numbers and clocks stand above a test's output.
    text = (r.out / "tests.txt").read_text().splitlines()
    step = next(number for number, line in enumerate(text) if line.endswith(" s  GPT-2 124M without a table"))
    check(text[step + 1] == "    | GPT-2 124M without a table: 436907 tokens/s", text[step:step + 3])
    check("    | SM clock 1410 to 1980 MHz, at most 690 W" in text and "SM clock 1410 to 1980 MHz" in printed, text, printed)
    clocks = (r.root / "calls.smi").read_text().strip()
    end = time.monotonic() + 60  # the signal and the exit take long on a busy machine
    while is_running(clocks) and time.monotonic() < end:
        time.sleep(0.1)
    check(not is_running(clocks), "the log of clocks goes on after the call")

    # The next call runs what was not ok; what passed is left alone.
    r.do("", "tests/gpu_a_test")
    r.do("floods", "tests/gpu_c_test")
    code, seconds, printed = r.call("--call", "1")
    programs = [line.split()[0] for line in r.started()]
    check(code == 1 and programs == ["gpu_a_test", "gpu_b_test", "gpu_c_test"], programs, printed)
    check(("ok", "gpu_a_test") in r.results() and ("failed", "gpu_c_test") in r.results(), r.results())
    check((r.out / "tests.txt").stat().st_size < 1 << 20, "a test that floods its output fills the results")
    r.do("", "tests/gpu_b_test", "tests/gpu_c_test")
    check(r.call("--call", "1")[0] == 0, r.results())


def every_part(what, number):
    """Every part of a call hangs, crashes or fills the disk: each gets its own limit, the call ends within all of them, and each has a line
    that is not "ok"."""
    def rehearse(r):
        scale = HANGING if what == "hangs" else 1
        r.do(what, *PROGRAMS)
        code, seconds, printed = r.call("--call", str(number), scale=scale)
        check(code == 1, number, what, printed)
        ends_in_time(seconds, scale, (590, 150)[number - 1])
        every_line([name for _, name in r.results()], (CALL_1, CALL_2)[number - 1], scale)
        check(all(result in ("cut", "refused", "timeout" if what == "hangs" else "failed") for result, _ in r.results()), number, what, printed)
        if number == 1 and scale == 1:
            check(r.results("canary: attention") == [("timeout" if what == "hangs" else "failed", name) for name in CANARY[:2]], r.results())
            check("attention: plain, because the canary of mma" in printed, printed)
    return rehearse


def hanging_attention(r):
    """The kernels of sm_90a hang, or are wrong: one canary is lost, and every other test uses mma.sync, also in the next call."""
    for what, reason in (("hangs", "timed out"), ("crashes", "failed")):
        r.do(f"{what} on hopper", "bin/slipstream", *(f"tests/{name}" for name in KERNELS), "bench/gpu_kernels_bench", "nccl/gpu_nccl_contract_test")
        code, seconds, printed = r.call("--call", "1", "--again", scale=0.3)
        sentence = f"attention: mma, because the canary of hopper {reason}"
        check(code == 1 and printed.count(sentence) == 1 and f"A{sentence[1:]}.\n" in printed, printed)
        bad = [name for result, name in r.results() if result not in ("ok", "refused")]
        check(bad == ["canary: attention hopper"], r.results())
        code, seconds, printed = r.call("--call", "2", "--again")
        check(code == 0 and sentence in printed and all("with mma" in line for line in r.started()), printed, r.started())
    # Without a mistake, nothing is chosen: the program takes the best kernels itself.
    r.do("", *PROGRAMS)
    code, seconds, printed = r.call("--call", "1", "--again")
    check(code == 0 and "attention: " not in (r.out / "found.txt").read_text(), printed)
    check([line.split(" with ")[1] for line in r.started() if " with " in line] == ["mma", "hopper"], r.started())


def warms_torch(r):
    """torch.compile's cache is filled beside the tests of kernels and beside nothing else, even if that hangs; PyTorch's step has its results."""
    script(r.machine / "python3", PYTHON)
    code, seconds, printed = r.call("--call", "1", scale=0.05)
    started = [line.split()[0] for line in r.started()]
    first, last = started.index("warms"), len(started) - 1 - started[::-1].index("warms")
    check(code == 0 and all(result == "ok" for result, _ in r.results("PyTorch")) and len(r.results("PyTorch")) == 3, printed)
    check(started[first - 1] == "slipstream" and set(started[first:last]) <= {"warms", *KERNELS} and started[last + 1] == "torch", started)
    check(last - first > 10, started)
    # Its result is known: nothing is warmed.
    check("warms" not in (r.call("--call", "1"), r.started())[1], r.started())


def less_time(r):
    """With fewer seconds, parts are cut off from the end, and the last lines name them."""
    scale = 0.2
    r.products("slow")
    code, seconds, printed = r.call("--call", "1", "--seconds", "110", scale=scale)
    results = r.results()
    check(code == 3 and set(name for _, name in results) <= set(CALL_1) and results[-1] == ("cut", "products"), printed)
    check("cut off after 110 s: products\nnot run for lack of time: " in printed, printed)
    unrun = re.search("^not run for lack of time: (.*)$", printed, re.M)[1].split("; ")
    check(unrun == [name for name in CALL_1 if name not in [name for _, name in results]] and unrun[-4:] == CALL_1[-4:], unrun)
    ends_in_time(seconds, scale, 110)
    # The next call continues with them.
    r.products("quick")
    code, seconds, printed = r.call("--call", "1")
    check(code == 0 and sorted(name for _, name in r.results()) == sorted(CALL_1), printed)
    check([line.split()[0] for line in r.started()].count("slipstream") == 6, r.started())


def table_goes_on(r):
    """A table of products that is cut off stays, and the next call continues it, from results that were carried along."""
    scale = 1 if EVERYTHING else 0.06
    r.products("slow")
    code, seconds, printed = r.call("--call", "1", scale=scale)
    table = (r.out / "products.json").read_text().splitlines()
    check(code == 1 and 1 <= len(table) < 30 and ("timeout", "products") in r.results(), code, len(table), printed)
    check(("ok", "GPT-2 124M") in r.results(), r.results())  # with the table as far as it goes
    ends_in_time(seconds, scale)
    check(not list(r.out.glob("*.tmp*")), "the file that a killed program was writing stays")
    shutil.move(r.out, r.bundle / "results")
    r.products("quick")
    code, seconds, printed = r.call("--call", "1")
    check(code == 0 and (r.out / "products.json").read_text().splitlines()[: len(table)] == table, printed)
    check(all(result in ("ok", "refused") for result, _ in r.results()), r.results())
    check([line for line in r.started() if line.startswith("gpu_")] == [], r.started())

    # Another bundle: only its table is used from what was carried, and a folder of results is not mixed with it.
    (r.bundle / "MANIFEST").write_text("commit=two\ncuda_major=13\n")
    code, seconds, printed = r.call("--call", "1")
    check(code == 2 and "of another bundle or GPU" in printed and r.started() == [], printed)
    check((r.out / "found.txt").read_text().startswith("bundle of commit one"), (r.out / "found.txt").read_text())
    shutil.rmtree(r.out)
    code, seconds, printed = r.call("--stage", "kernels")
    check(code == 0 and "only the table of products is used" in printed and len(r.started()) == len(KERNELS) + 3, printed)
    check((r.out / "products.json").exists(), list(r.out.iterdir()))


def again(r):
    """--again forgets the tests of the parts asked for, and no others. Every part of the second call has its line."""
    code, seconds, printed = r.call("--stage", "kernels")
    check(code == 0, printed)
    before = r.results()
    check(r.call("--call", "2")[0] == 0, r.results())
    check(r.results() == before + [("ok", name) for name in CALL_2], r.results())
    code, seconds, printed = r.call("--call", "2", "--again")
    check(r.results() == before + [("ok", name) for name in CALL_2] and any("nccl" in line for line in r.started()), r.started())
    check(r.call("--call", "3")[0] == 2, "call 3")


def sanitizers(r):
    """Every part of a stage hangs. With one test, its limits leave time for what no scale shortens."""
    for name in KERNELS[1:]:
        (r.bundle / "tests" / name).unlink()
    script(r.machine / "compute-sanitizer", "#!/bin/sh\nsleep 1000\n")
    code, seconds, printed = r.call("--stage", "sanitize", scale=HANGING)
    check(code == 1, printed)
    ends_in_time(seconds, HANGING)
    every_line([name for _, name in r.results()], [f"gpu_a_test {tool}" for tool in ("memcheck", "racecheck", "initcheck", "synccheck")], HANGING)
    check(all(result in ("timeout", "cut") for result, _ in r.results()) and r.results()[0][0] == "timeout", r.results())


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


# The parts of a call have at most its time, less what ends it.
for number, row in re.findall(r'"call (\d)"\) echo ([^;]+) ;;', (source / "scripts/gpu_parts.sh").read_text()):
    check(sum(int(part.split(":")[1]) for part in row.replace("\\", "").split()) <= {"1": 590, "2": 150}[number] - 8, row)

ROWS = [("hangs", 1), ("hangs", 2), ("crashes", 1), ("fills", 2), *([("crashes", 2), ("fills", 1)] if EVERYTHING else [])]
REHEARSALS = [*(every_part(what, number) for what, number in ROWS), sanitizers, less_time, warms_torch, one_of_each, hanging_attention, table_goes_on, again, full_disk]
WORKERS = 6  # most of them hang
with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
    for future in [pool.submit(rehearse, Rehearsal(pathlib.Path(folder) / str(number))) for number, rehearse in enumerate(REHEARSALS)]:
        future.result()
all_hold("the rehearsed calls")
