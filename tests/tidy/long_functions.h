// SPDX-License-Identifier: Apache-2.0
#pragma once
// The functions of more than 70 lines, with their lengths. This list only gets shorter.

#include <vector>

#include "tests/tidy/rules.h"

namespace slipstream::tidy {

inline std::vector<LongFunction> long_functions() {
  return {
      {"comm/rehearse/task_rules.cpp", "StageTypes::collective", 85},
      {"comm/rehearse/work_rules.cpp", "StageTypes::work", 82},
      {"engine/plan/layout.cpp", "place_parameters", 97},
      {"engine/plan/passes/residency.cpp", "Residency::append_tasks", 76},
      {"engine/report/bounds.cpp", "ideal_bound", 93},
      {"engine/report/overlap.cpp", "OverlapMeter::take", 90},
      {"kernels/attention/attention.cu", "forward_kernel", 93},
      {"kernels/attention/attention.cu", "key_kernel", 77},
      {"kernels/attention/attention_hopper_backward.cu", "compute", 224},
      {"kernels/attention/attention_hopper_forward.cu", "attend", 93},
      {"kernels/attention/attention_mma_backward.cu", "key_kernel", 136},
      {"kernels/attention/attention_mma_backward.cu", "query_kernel", 89},
      {"kernels/attention/attention_mma_forward.cu", "forward_kernel", 109},
      {"kernels/cuda/norm_held.cuh", "held_norm_backward_kernel", 115},
      {"kernels/cuda/norm_held.cuh", "held_norm_forward_kernel", 74},
      {"models/common/blocks.cpp", "SpecBuilder::embed_gradient", 77},
      {"scripts/bench_gpu_pytorch.py", "torch_op", 75},
      {"scripts/check_hugging_face.py", "random_model", 84},
      {"scripts/draw_timeline.py", "draw", 72},
      {"scripts/gpu_counts.py", "works_of", 104},
      {"scripts/import_config/run_file.py", "text_of", 74},
      {"scripts/run_tests.py", "main", 80},
      {"tests/cli/bench_test.cpp",
       "bench step times whole steps beside a plain loop and the bound of a link, and writes its initial weights", 81},
      {"tests/cli/convert_test.cpp", "convert: folders that are no model are refused with what is wrong", 85},
      {"tests/cli/zero_test.cpp",
       "bench overlap measures the stages, prefetch and exposed gathers, and every overlap setting alone", 81},
      {"tests/comm/rehearse/field_hangs.cpp", "reports", 127},
      {"tests/comm/rehearse/toy_plans.h", "toy_pipeline_stage", 77},
      {"tests/contract/shared_transport_test.cpp",
       "messages of all sizes between all ranks arrive whole, in any order of the receives", 80},
      {"tests/emulation/attention_block_test.cpp", "run_rank", 83},
      {"tests/emulation/attention_dropout_test.cpp", "check", 107},
      {"tests/emulation/emulator_test.cpp", "fragments hold the elements of the manual's tables", 75},
      {"tests/emulation/mutant_test.cpp", "run", 171},
      {"tests/engine/checkpoint/safetensors_test.cpp",
       "safetensors: every malformed file is refused by a CheckpointError", 115},
      {"tests/engine/config/layout_test.cpp", "layout: errors offer only legal layouts, and list or count all of them",
       82},
      {"tests/engine/config/validate_test.cpp",
       "validate: heads, widths, lengths, rates and steps that do not fit are refused with their numbers", 218},
      {"tests/engine/data/bpe_test.cpp",
       "tokenize: shards of documents do not depend on threads, and an interrupted command resumes", 110},
      {"tests/engine/data/bpe_test.cpp",
       "tokenizer files: what the format allows and this reader does not is named with its path", 78},
      {"tests/engine/data/tokenize_test.cpp",
       "tokenize: --resume refuses another text and shards that are not as they were written", 84},
      {"tests/engine/plan/schedule_test.cpp",
       "random schedules are valid, keep the theoretical number of micro-batches alive, and begin each pass as soon "
       "as ",
       72},
      {"tests/equivalence/layout_jobs.cpp", "make_jobs", 98},
      {"tests/equivalence/reductions_test.cpp", "faults", 71},
      {"tests/equivalence/table.h", "strategies", 162},
      {"tests/equivalence/zero_wire_test.cpp",
       "parameters that travel rounded are the same on every rank, the owner too, and masters are not rounded", 84},
      {"tests/fake_gpu/train_test.cpp", "the cuda device trains the model of the cpu device", 102},
      {"tests/fuzz/attacks.cpp", "attacks", 310},
      {"tests/fuzz/make_corpus.py", "safetensors", 76},
      {"tests/gpu/cuda/nccl_equivalence_test.cpp", "rows_of", 83},
      {"tests/kernels/attention/attention_block_test.cpp", "run_rank", 89},
      {"tests/kernels/common/tolerances_test.cpp",
       "tolerances: attention without its scale, with a mask off by one, with the wrong key-value head", 93},
      {"tests/planner/random_plans_test.cpp", "drawn", 96},
      {"trainer/bench/calibrate.cpp", "calibrate", 79},
      {"trainer/bench/op_cases.cpp", "OpCases::attention", 73},
      {"trainer/planner/search/need.cpp", "Question::bandwidth", 78},
      {"trainer/runtime/rank/rank.cpp", "Rank::Rank", 76},
  };
}

}  // namespace slipstream::tidy
