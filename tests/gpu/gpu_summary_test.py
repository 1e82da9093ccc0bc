# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu_summary.py on tables of the format of gpu_check.sh: forecast, measurement and ratio, worst first.

usage: gpu_summary_test.py SOURCE_ROOT
"""
import pathlib
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(source / "tests"))
from checks import all_hold, check  # noqa: E402

HEADER = "name,unit,low,expected,high,basis\n"
with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)
    results_folder, forecast = root / "results", root / "forecast.csv"
    results_folder.mkdir()

    def summary(path=forecast):
        result = subprocess.run([sys.executable, source / "scripts/gpu_summary.py", results_folder, *(["--forecast", path] if path else [])],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return result.returncode, result.stdout

    def cells(printed):
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in printed.splitlines() if line.startswith("|")]

    check(summary()[0] == 2, "a folder without results")
    (results_folder / "found.txt").write_text("bundle of commit one\nfound: GPU A GPU, 580.0, 80000 MiB\n")
    (results_folder / "kernels.csv").write_text("op,shape,us,spread,tflops,gbytes\ncopy,1024 MiB,500,0,0,4000\nadamw,7,10,0,0,3000\nnorm,3 x 4,5,0,2,")
    (results_folder / "measured.csv").write_text("GPT-2 124M,100,tokens/s\nGPT-2 124M,600000,tokens/s\ntorch adamw 7,20,us\ntorch-compile GPT-2 124M,500000,tokens/s\n"
                                                 "overlap gate 1 hidden,0.0,%\noverlap gate 1 compute slow-down,-0.5,%\ncompute slow-down at 0.6 of backward,4.0,%\ncut off li")
    (results_folder / "tests.txt").write_text("failed      3 s  gpu_b_test\n    | ok          0 s  not a result\nok          0 s  gpu_host_waits_test\n")
    code, printed = summary()
    check(code == 0 and "forecast.csv has no forecast" in printed, printed)
    forecast.write_text(HEADER + "GPT-2 124M,tokens/s,610000,640000,700000,\"a sum, of parts\"\nadamw 7,us,7,8,12,bytes\nadamw 7,% of copy,50,60,75,\nother,us,1,1,1,\n"
                        "step part: all,ms,1,1,1,\nGPT-2 124M / torch-compile,x,1,1.5,2,\nhost synchronisations a step,waits,0,0,0,\n"
                        "graph launches a step,launches,2,2,2,\noverlap gate 1 hidden,%,0,50,90,\noverlap gate 1 compute slow-down,%,0,1,2,\ncompute slow-down at 0.6 of backward,%,1,6,9,\n")
    code, printed = summary()
    rows = cells(printed)
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
        ["overlap gate 1 compute slow-down", "0", "1", "2", "-0.5", "%", "inf", "no"]], printed)
    check("6 of 9 measurements lie inside their interval." in printed and "Not measured: other (us)." in printed, printed)
    check("\n1 ok, 1 failed.\n\n- failed: gpu_b_test\n" in printed and "SM clock" not in printed and "attention" not in printed, printed)
    check(["adamw 7", "10", "torch", "20", "us", "2.00 x"] in rows, printed)
    check(["copy 1024 MiB", "500", "us"] in rows and ["GPT-2 124M", "100", "tokens/s"] not in rows, printed)
    # Clocks of the seconds in which the GPU was busy; a line that was cut off does not count. The kernels of attention, if a canary chose.
    (results_folder / "clocks.csv").write_text("timestamp, clocks.current.sm [MHz], clocks.current.memory [MHz], power.draw [W], temperature.gpu, utilization.gpu [%]\n"
                                               "t, 345, 2619, 70.1, 30, 0\nt, 1410, 2619, 690.2, 60, 99\nt, 1980, 2619, 500.0, 61, 50\nt, 1755, 2619, [N/A], 61, 100\nt, 9, 26")
    (results_folder / "found.txt").write_text("bundle of commit one\nfound: GPU A GPU, 580.0, 80000 MiB\nattention: mma, because the canary of hopper timed out\n")
    printed = summary()[1]
    check("In 3 s at 50 % utilisation or more: SM clock 1410 to 1980 MHz, median 1755; power at most 690 W.\n" in printed, printed)
    check("\nAttention: mma, because the canary of hopper timed out.\n" in printed, printed)
    for text, sentence in ((HEADER + "adamw 7,us,1,soon,2,\n", "forecast.csv:2: the forecast of 'adamw 7' needs numbers with 0 <= low <= expected <= high"),
                           (HEADER + "adamw 7,us,3,2,4,\n", "forecast.csv:2: the forecast of 'adamw 7' needs numbers"),
                           (HEADER + "adamw 7,us\n", "forecast.csv:2: the forecast of 'adamw 7' needs numbers"),
                           ("what,forecast,unit\n", "forecast.csv:1: the columns must be name,unit,low,expected,high,basis")):
        forecast.write_text(text)
        code, printed = summary()
        check(code == 2 and sentence in printed, printed)
    # The GPU chooses its committed forecast.
    for gpu, name in (("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200")):
        (results_folder / "found.txt").write_text(f"bundle of commit one\nfound: GPU {gpu}, 580.0, 80000 MiB\n")
        code, printed = summary(source / f"docs/benchmarks/{name}-forecast.csv")
        check(code == 0 and printed == summary(None)[1] and "| GPT-2 124M |" in printed, printed)
all_hold("gpu_summary.py")
