// SPDX-License-Identifier: Apache-2.0
#pragma once
// The options of another program's configuration, each with its place, and a record of which were used.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace slipstream::planner {

struct ForeignOption {
  std::string name;
  std::string value;  // empty: a flag without a value
  std::string where;  // "FILE:12"
};

/// Later options of the same name replace earlier ones.
class ForeignOptions {
 public:
  /// `prefix` in front of names in messages: "--" of command lines.
  ForeignOptions(std::vector<ForeignOption> options, std::string prefix);

  /// Null if the file has no such option, or its value is null.
  const ForeignOption* find(std::string_view name);
  int64_t integer(std::string_view name, int64_t otherwise);
  double real(std::string_view name, double otherwise);
  std::string word(std::string_view name, const std::string& otherwise);
  /// True for a flag without a value and for true. Throws: ConfigError unless the value is a truth.
  bool flag(std::string_view name, bool otherwise = false);

  /// Throws: ConfigError that names the option, its place and `problem`.
  [[noreturn]] void refuse(std::string_view name, const std::string& problem) const;
  /// Throws: ConfigError if the option is there with a value that is not false, 0, none or null.
  void refuse_if_on(std::string_view name, const std::string& problem);
  /// Throws: ConfigError for the first option that was neither looked up nor starts with one of `neutral`, the names of
  /// options that do not change a step.
  void require_known(const std::vector<std::string_view>& neutral) const;

  const std::vector<ForeignOption>& all() const { return options_; }

 private:
  std::vector<ForeignOption> options_;
  std::set<std::string, std::less<>> used_;
  std::string prefix_;
};

/// A run of another program in this one's terms.
struct ForeignRun {
  bool llama = false;  // RMSNorm, rotary positions, gated units, no biases; else GPT-2
  int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, ffn_width = 0, context = 0, vocab = 0;
  std::optional<bool> tied;
  double rope_theta = 10000, norm_eps = 1e-5;
  int64_t sequence = 0, micro_batch = 1, global_batch = 0, steps = 1;  // global_batch 0: one micro-batch of each rank
  bool bf16 = true;
  int64_t tensor = 1, pipeline = 1, context_ranks = 1, virtual_stages = 1, ranks = 0;
  bool sequence_parallel = false, overlaps_gradients = true, overlaps_gathers = true, overlaps_tensor = false;
  int64_t zero_stage = 0, shard_size = 0;
  std::string schedule = "1f1b", recompute = "none", grad_reduce;
  int64_t recompute_layers = 0;  // of each part; 0: all
  double hidden_dropout = 0, attention_dropout = 0;
  double learning_rate = 1e-4, min_learning_rate = 0, weight_decay = 0.1, grad_clip = 1, beta1 = 0.9, beta2 = 0.95;
  int64_t bucket_bytes = 0;
};

/// Megatron's and NeMo's words for recomputation. "block" recomputes the first `layers` layers of each part, "uniform"
/// all layers, in groups of `layers`. Changes `run`. Pure.
void set_recomputation(ForeignRun& run, const std::string& granularity, const std::string& method, int64_t layers);

/// A run file of this program, and what it leaves out.
struct Imported {
  std::string run_file;  // its text
  int ranks = 0;         // 0: the configuration does not tell
  std::string as;        // software profile
  std::vector<std::string> notes;
};

/// Pure. Throws: ConfigError if a size is missing.
Imported run_file_of(const ForeignRun& run, const std::string& source);

/// Blocks. Reads the arguments of Megatron-LM's pretrain_gpt.py: a shell script that starts it, or a YAML file of
/// arguments as its functional tests have; variables of the script are replaced.
Imported import_megatron(const std::string& path);
/// Blocks. A YAML file of NeMo's training configurations.
Imported import_nemo(const std::string& path);
/// Blocks. A TOML file of torchtitan.
Imported import_torchtitan(const std::string& path);
/// `format`: megatron, torchtitan or nemo. Throws: ConfigError; DataError if the file cannot be read.
Imported import_run(const std::string& format, const std::string& path);

}  // namespace slipstream::planner
