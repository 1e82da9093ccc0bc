// SPDX-License-Identifier: Apache-2.0
// Prints the reference page from the tables of fields.

#include "trainer/runtime/run_folder/records.h"

#include <fmt/core.h>

#include <span>
#include <string_view>
#include <vector>

#include "engine/report/metrics.h"

namespace slipstream::runtime {
namespace {

struct Row {
  std::string_view name, meaning;
};

constexpr Row kRun[] = {
    {"version", "program version"},
    {"build", "hash of the program's code; equal on all ranks and in `slipstream --version`"},
    {"compiler", "compiler of the program"},
    {"mpi", "MPI library and version; absent without MPI"},
    {"products_library", "library of the CPU matrix products, with version"},
    {"host", "host name of rank 0"},
    {"ranks", "number of ranks"},
    {"layout", "ranks along `data`, `tensor`, `pipeline`, `context`"},
    {"ranks_per_node", "ranks per node in the plan"},
    {"resumed_from", "path of the checkpoint that this run continues, or `memory of N hosts`; absent for a new run"},
    {"resumed_step", "step of that checkpoint; absent for a new run"},
    {"run_id", "names the run across resumed starts"},
    {"start", "names this start, whose snapshots in memory the next start may continue"},
    {"continues", "earlier starts whose snapshots, up to a step, the next start may continue; absent for a new run"},
    {"keeper",
     "name of the processes that hold snapshots on the hosts (`slipstream keeper NAME`): of this run in this folder"},
    {"plan_hash", "hash of the task order; equal on all ranks and in `plan`"},
    {"device", "`cpu` or `cuda`"},
    {"threads", "cpu: threads of a rank's compute stream"},
    {"isa", "cpu: instruction set of the kernels"},
    {"gpu", "cuda: GPU of rank 0"},
    {"attention", "cuda: the first kernels that attention tries: `hopper` (sm_90a), `mma` (mma.sync) or `plain`"},
    {"attention_queries", "cuda: queries of a step of attention backward with heads of 64 on sm_90a: 64 or 128"},
    {"early_launch", "cuda: whether kernels may begin while the kernel before them in their stream ends"},
    {"nccl", "cuda: version of NCCL (22809 is 2.28.9); 0 without NCCL"},
    {"nccl_table", "cuda: path and XXH3 hash of the `comm.nccl` table"},
    {"engines", "cuda: engine, blocks and origin by channel; multiprocessors of `products` beside transfers"},
    {"cublaslt", "cuda: version of cuBLASLt"},
    {"graph", "cuda: `whole steps` for CUDA graphs; else `eager:` and the reason"},
    {"timed_products", "cuda: products with an algorithm from `bench products`"},
    {"products",
     "cuda: path and hash of that `table`; `taken`: the source of each algorithm (table, first choice or kernel)"},
    {"channels",
     "cuda, by channel: `registered` (its memory, or the reason against it) and `collectives` with algorithm and "
     "protocol"},
    {"machine", "name of the planned machine"},
    {"model", "the model in words"},
    {"parameters", "parameters of the whole model"},
    {"memory_bytes", "planned memory of rank 0"},
    {"beside_plan_bytes", "cuda: estimated GPU memory outside the plan, by owner"},
    {"notes", "other remarks, most of them printed at the start"},
};

constexpr Row kStraggler[] = {
    {"step", "step of the report"},
    {"since", "first late step"},
    {"steps", "number of late steps"},
    {"rank", "late rank"},
    {"host", "host name of that rank"},
    {"cause", "`compute`, `link`, `input` or `host`"},
    {"item", "latest item of the worst step; absent if unknown"},
    {"late_ms", "sum of the lateness"},
    {"score", "time of these steps without the lateness / measured time"},
};

constexpr Row kEnvironment[] = {
    {"SLIPSTREAM_DATA",
     "folder with `configs/` and `scripts/`, from which [names of shipped "
     "files](../how-to/install.md#names-of-shipped-files) are taken. Unset: the data folder beside the installed "
     "program, or the checkout around the build folder."},
    {"SLIPSTREAM_ISA",
     "`baseline`, `avx2` or `avx512`, the highest instruction set of the CPU kernels. It gives the bits of an older "
     "CPU."},
    {"SLIPSTREAM_ATTENTION",
     "`hopper`, `mma` or `plain`, the first kernels that attention on a GPU tries. Unset: the fastest that the GPU "
     "has. "
     "Attention uses the next ones in this order where a path has no kernels for a shape."},
    {"SLIPSTREAM_ATTENTION_QUERIES",
     "`64` (default) or `128`, the queries of a step of attention backward with heads of 64 on sm_90a. 128 has not "
     "been "
     "measured."},
    {"SLIPSTREAM_EARLY_LAUNCH",
     "`on` (default) or `off`. With `on`, a kernel may begin while the kernel before it in its stream ends, on GPUs "
     "from "
     "compute capability 9.0 on. Results are the same."},
    {"SLIPSTREAM_DELAY",
     "`PLACE@RANK#FIRST[-LAST]:MILLISECONDS` delays a rank in these steps, for tests. Places: `compute[/WORK]`, "
     "`link[/OP]` (emulated), `input`, `host`."},
    {"SLIPSTREAM_SHARE_GPU",
     "with `1`, ranks may share a GPU, for tests: about 10 ms per collective, NCCL older than 2.30."},
    {"CUDA_DEVICE_MAX_CONNECTIONS", "default 32, because a run uses more streams than CUDA's 8 queues."},
    {"OMPI_MCA_mpi_yield_when_idle", "default 1, so that a rank that waits in Open MPI yields its core."},
    {"OMPI_COMM_WORLD_SIZE`, `PMI_SIZE`, `SLURM_STEP_NUM_TASKS`, `WORLD_SIZE`, `SLURM_NTASKS",
     "processes of the launcher. If there are several, `train` and `bench` refuse to run alone."},
};

std::string table(std::string_view head, std::span<const Row> rows) {
  std::string out = fmt::format("\n| {} | Meaning |\n|---|---|\n", head);
  for (const Row& row : rows) out += fmt::format("| `{}` | {} |\n", row.name, row.meaning);
  return out;
}

}  // namespace

std::string records_reference_markdown() {
  std::vector<Row> metrics;
  for (const MetricField& field : metric_fields()) metrics.push_back({field.name, field.meaning});
  return R"(<!-- SPDX-License-Identifier: Apache-2.0 -->
# Metrics and records of a run

Generated from `engine/report/metrics.cpp` and `trainer/runtime/run_folder/records.cpp`; a test compares this page with
the program. Fields that end in `_ms` are milliseconds, as means over ranks unless the row names another
value. [Another page](../benchmarks/columns.md) has the tables of `bench`.

## metrics.jsonl

One JSON object per training step and line, independent of `train.log_interval`. Numbers read back exactly. An unknown
field is absent, or `null` where its row allows it.
)" + table("Field", metrics) +
         R"(
## Live metrics

Off by default; all have the fields above. A sink that fails, or whose port is taken, prints one warning and ends; the
run goes on.

- `output.csv`: `metrics.csv`: a column per number, `skipped` as 1, empty where it is unknown
- `output.tensorboard`: `tensorboard/events.out.tfevents.*`: a scalar per number
- `output.prometheus_port`: `http://127.0.0.1:PORT/metrics`: gauges `slipstream_<field>` of the latest step, and its
  Unix time `slipstream_step_time_seconds`

## run.json

One object per run, written before the first step, and on GPUs again at the end.
)" + table("Field", kRun) +
         R"(
## plan.json

The plan with its predicted times, for `slipstream report`. `item_columns` names the values of an item.

## stragglers.jsonl

One JSON object per report of a [slow rank](../how-to/stuck-run.md#slow-ranks), at most one in 100 steps for a rank and
cause.
)" + table("Field", kStraggler) +
         R"(
## Environment variables

The run file defines the computation; these variables serve tests and special machines. The program never replaces a
value that you set. See also [NCCL's variables](../how-to/cluster.md#nccl-variables).
)" + table("Variable", kEnvironment);
}

}  // namespace slipstream::runtime
