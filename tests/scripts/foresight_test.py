#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""foresight.py on four published runs, and on all of them where SLIPSTREAM_PUBLISHED_RUNS names their table.

    foresight_test.py SOURCE_ROOT SLIPSTREAM
"""
import csv
import os
import pathlib
import statistics
import sys

ROOT, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "scripts"))
import foresight  # noqa: E402

KEYS = ("source,model,layers,hidden,heads,kv_heads,ffn,vocab,seq,params_b,gpu,gpus,tp,pp,vpp,cp,dp,micro_batch,"
        "global_batch,precision,zero,recompute,tok_s_gpu,notes").split(",")
RUNS = [  # arXiv 2104.04473 and 2205.05198, NVIDIA's DGX recipes, torchtitan's performance page
    ["sc21", "GPT 7.5B", 36, 4096, 32, 32, 16384, 51200, 2048, 7.5, "A100-SXM-80GB", 128, 4, 1, 1, 1, 32, 16, 512,
     "fp16", 0, "full", 2216.3, ""],
    ["arXiv 2205.05198", "GPT 22B", 48, 6144, 64, 64, 24576, 51200, 2048, 22, "A100-SXM-80GB", 8, 8, 1, 1, 1, 1, 4, 4,
     "fp16", 0, "selective+SP", 930.91, ""],
    ["dgxc", "LLAMA3-8B", 32, 4096, 32, 8, 14336, 128256, 8192, 8.03, "H100-SXM-80GB", 8, 1, 1, 1, 2, 4, 1, 128,
     "bf16", 1, "per recipe", 10153, ""],
    ["torchtitan", "LLAMA3-8B", 32, 4096, 32, 8, 14336, 128256, 8192, 8.03, "A100-SXM-80GB", 64, 1, 1, 1, 1, 64, 1, 64,
     "bf16", 3, "selective op", 2973, "FSDP2 eager"],
]
ROWS = [dict(zip(KEYS, map(str, run))) for run in RUNS]


def main():
    made = foresight.forecasts(ROWS, PROGRAM, ROOT / "configs/machines")
    for row, forecast in zip(ROWS, made):
        assert "error" not in forecast, forecast
        ratio = forecast["tokens_per_s_per_rank"] / float(row["tok_s_gpu"])
        print(f"{row['model']:12} {row['source']:20} predicted / measured = {ratio:.3f}")
        assert 0.8 < ratio < 1.25, (row["model"], ratio)
        assert forecast["step_ms_low"] < forecast["step_ms"] < forecast["step_ms_high"]
    lacking = dict(ROWS[0], seq="")
    assert "error" in foresight.forecasts([lacking], PROGRAM, ROOT / "configs/machines")[0]
    # A constant that is fitted on two sources predicts the utilisation of the third one by their mean.
    votes = [dict(ROWS[0], source=source, tok_s_gpu=tok) for source, tok in (("a", "100"), ("b", "200"), ("c", "700"))]
    assert abs(foresight.baseline(votes)[2] - 150) < 1e-6
    # The limit of nine sources is the eighth: 0.8 x (9 + 1). The rows of a source count once.
    assert abs(foresight.limit_of([[k] for k in range(1, 10)]) - 8) < 1e-9
    assert abs(foresight.limit_of([[k] * k for k in range(1, 10)]) - 8) < 1e-9
    assert abs(foresight.limit_of([[1], [2], [3], [4]]) - 4) < 1e-9
    # torchtitan divides a pipeline's batch into as many micro-batches as ranks.
    stages = dict(ROWS[3], gpus="512", tp="8", pp="8", dp="8", micro_batch="", global_batch="256")
    assert "micro_batch_size = 4\n" in foresight.run_file(stages)
    assert "micro_batch_size = 2\n" in foresight.run_file(dict(stages, micro_batch="2"))
    assert foresight.kendall([(1, 2), (2, 3), (3, 1)]) == -1 / 3

    path = os.environ.get("SLIPSTREAM_PUBLISHED_RUNS")
    if not path:
        print("skipped: all published runs (SLIPSTREAM_PUBLISHED_RUNS names no table)")
        return
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rows = [row for i, row in enumerate(rows) if ("vTrain" not in row["source"] or i % 20 == 0) and row["pp"] in "1248"]
    done = foresight.evaluate(rows, foresight.forecasts(rows, PROGRAM, ROOT / "configs/machines"))
    ours = statistics.median(abs(ratio - 1) for _, ratio, _ in done)
    constant = statistics.median(abs(c - 1) for _, _, c in done if c)
    print(f"{len(done)} runs: median error {100 * ours:.1f} %, of one constant {100 * constant:.1f} %")
    assert len(done) > 0.95 * len(rows)
    assert ours < 0.10 and ours < 0.8 * constant


if __name__ == "__main__":
    main()
