// SPDX-License-Identifier: Apache-2.0
// Laws of the table of fields: it has every frozen key, round-trips every value, and matches the reference page.

#include "engine/config/fields.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "engine/base/check.h"
#include "engine/config/defaults.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "engine/config/nearest.h"
#include "engine/config/resolve.h"
#include "engine/config/validate.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

const std::filesystem::path kRoot = source_dir();

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

RunConfig load_text(const std::string& text) {
  const auto path =
      std::filesystem::temp_directory_path() / ("slipstream_fields_" + std::to_string(getpid()) + ".toml");
  std::ofstream(path, std::ios::binary) << text;
  const RunConfig config = load_run_config(path.string());
  std::filesystem::remove(path);
  return config;
}

}  // namespace

TEST_CASE("fields: the frozen keys exist, each once", "[config]") {
  std::set<std::string> frozen;
  std::istringstream words(
      "model.family model.layers model.heads model.kv_heads model.head_dim model.width model.ffn_width model.context "
      "model.vocab_size "
      "model.tie_embeddings model.rope_theta model.rope_scaling model.rope_scaling_factor model.rope_low_freq_factor "
      "model.rope_high_freq_factor model.rope_original_context model.sliding_window model.window_layers model.norm_eps "
      "model.init "
      "model.embd_pdrop model.resid_pdrop model.attn_pdrop "
      "model.experts.count model.experts.top_k model.experts.shared model.experts.ffn_width model.experts.layers "
      "model.experts.router model.experts.groups model.experts.group_top_k model.experts.normalize model.experts.scale "
      "model.experts.balance model.experts.balance_rate model.experts.z_loss model.experts.capacity_factor "
      "model.experts.capacity "
      "data.train data.validation data.validation_fraction data.tokenizer "
      "train.steps train.sequence_length train.micro_batch_size train.global_batch_size train.seed train.dtype "
      "train.eval_interval train.eval_batches train.log_interval train.hash_interval train.recompute train.on_nan "
      "train.max_skips train.spike_zscore "
      "optimizer.name optimizer.learning_rate optimizer.min_learning_rate optimizer.warmup_steps optimizer.decay_steps "
      "optimizer.schedule optimizer.cooldown_steps "
      "optimizer.beta1 optimizer.beta2 optimizer.eps optimizer.weight_decay optimizer.grad_clip "
      "optimizer.adamw_learning_rate optimizer.momentum optimizer.muon_scaling optimizer.double_buffer "
      "parallel.data parallel.tensor parallel.sequence_parallel parallel.pipeline parallel.context parallel.order "
      "zero.stage zero.prefetch_depth zero.reshard_after_forward zero.persistence_threshold zero.shard_size "
      "zero.gather_dtype "
      "overlap.grad_reduce overlap.bucket_size overlap.first_bucket_size overlap.max_inflight_buckets "
      "overlap.param_gather "
      "overlap.optimizer_per_bucket overlap.p2p overlap.tensor_chunks overlap.split_tied_embedding "
      "overlap.align_grad_reduce "
      "pipeline.schedule pipeline.virtual_stages pipeline.layers pipeline.schedule_file "
      "comm.backend comm.grad_dtype comm.quantize comm.error_feedback comm.deterministic comm.timeout_seconds "
      "comm.start_timeout_seconds comm.save_timeout_seconds "
      "comm.emulate.bandwidth comm.emulate.latency comm.emulate.form comm.emulate.blocks comm.nccl device.kind "
      "device.threads device.machine "
      "device.graph device.algorithms "
      "checkpoint.dir checkpoint.interval checkpoint.interval_minutes checkpoint.keep checkpoint.async trace.steps "
      "output.dir");
  for (std::string word; words >> word;) frozen.insert(word);
  std::set<std::string> keys;
  for (const Field<RunConfig>& field : run_fields()) {
    CHECK(keys.insert(field.key).second);
    CHECK(field.sentence.back() == '.');
  }
  for (const std::string& key : frozen) {
    INFO(key);
    CHECK(keys.count(key) == 1);
  }
}

TEST_CASE("fields: the defaults are values that their own rows accept", "[config]") {
  const RunConfig defaults;
  for (const Field<RunConfig>& field : run_fields()) {
    INFO(field.key);
    RunConfig config;
    CHECK_NOTHROW(field.set(config, field.get(defaults)));
    CHECK(field.get(config) == field.get(defaults));
  }
}

TEST_CASE("fields: config.resolved.toml resolves to the configuration that it prints", "[config]") {
  const std::vector<std::vector<std::string>> axes = {
      {}, {"parallel.tensor=2"}, {"parallel.pipeline=2", "pipeline.schedule=gpipe"}, {"parallel.context=2"}};
  const std::vector<std::vector<std::string>> others = {
      {},
      {"train.dtype=bfloat16", "train.recompute=full"},
      {"zero.stage=1", "zero.gather_dtype=int8", "optimizer.double_buffer=true"},
      {"zero.stage=3", "zero.prefetch_depth=2", "model.family=llama", "model.width=96"},
      {"model.family=qwen3_moe", "model.experts.count=8", "model.experts.layers=[1, 3]", "model.experts.group_top_k=3",
       "parallel.tensor=1"},
      {"optimizer.momentum=0.9", "optimizer.muon_scaling=original", "optimizer.adamw_learning_rate=1e-3"},
      {"overlap.p2p=false", "overlap.tensor_chunks=2", "overlap.align_grad_reduce=true", "output.dir=runs/x//"}};
  for (const int world : {2, 4})
    for (const bool on_gpus : {false, true})
      for (const std::vector<std::string>& axis : axes)
        for (const std::vector<std::string>& other : others) {
          std::vector<std::string> sets = axis;
          sets.insert(sets.end(), other.begin(), other.end());
          CAPTURE(world, on_gpus, sets);
          const RunFacts facts{.world = world, .on_gpus = on_gpus, .vocab = 65};
          const ResolvedConfig once = resolve(default_run_config(sets), facts);
          const ResolvedConfig again = resolve(load_text(config_toml(*once)), facts);
          CHECK(config_toml(*again) == config_toml(*once));
          CHECK(again.without_effect().empty());
          CHECK(again.batch().micro_batches == once.batch().micro_batches);
          CHECK(once.world() == world);
          CHECK(once->parallel.data == once.layout().data);
        }
}

TEST_CASE("fields: resolving decides every key with an effect but those of a plan, a host, a folder or the data",
          "[config]") {
  const RunConfig written = default_run_config({"parallel.tensor=2", "train.micro_batch_size=3"});
  const std::string cpu = config_toml(*resolve(written, {.world = 6, .vocab = 65}));
  for (const char* line : {"\ndata = 3\n", "\nglobal_batch_size = 9\n", "\nvocab_size = 65\n", "\nkind = \"cpu\"\n",
                           "\nbackend = \"mpi\"\n", "\ndeterministic = true\n", "\ngather_dtype = \"float32\"\n",
                           "\ngrad_dtype = \"float32\"\n", "\ndouble_buffer = \"auto\"\n", "\ngraph = \"auto\"\n",
                           "\nalgorithms = \"auto\"\n", "\nthreads = 0\n", "\nformat = \"auto\"\n",
                           "\nfinal_dtype = \"auto\"\n", "\nexpert_exchange = \"auto\"\n"}) {
    CAPTURE(line);
    CHECK(cpu.find(line) != std::string::npos);
  }
  size_t open = 0;
  for (size_t at = cpu.find("\"auto\""); at != std::string::npos; at = cpu.find("\"auto\"", at + 1)) ++open;
  CHECK(open == 6);  // no ranks divide experts
  const ResolvedConfig gpu = resolve(written, {.world = 6, .on_gpus = true, .vocab = 65});
  CHECK(gpu.on_gpus());
  CHECK(gpu->comm.backend == Backend::nccl);
  CHECK(gpu->comm.deterministic == Choice::no);
  for (const bool on_gpus : {false, true})
    for (const char* asked : {"auto", "exact", "gather"}) {
      const RunConfig divided =
          default_run_config({"model.family=mixtral", "model.experts.count=4", "parallel.expert=2",
                              std::string("parallel.expert_exchange=") + asked});
      const bool gathers = asked == std::string(on_gpus ? "auto" : "gather") || asked == std::string("gather");
      CHECK(resolve(divided, {.world = 2, .on_gpus = on_gpus, .vocab = 65})->parallel.expert_exchange ==
            (gathers ? ExpertExchange::gather : ExpertExchange::exact));
    }
  // One rank has no other to share states with; shards keep both gradients of a tied table together.
  const RunConfig sharded = default_run_config({"zero.stage=3", "zero.prefetch_depth=2"});
  const ResolvedConfig alone = resolve(sharded, {.world = 1, .vocab = 65}), two = resolve(sharded, {.world = 2});
  CHECK(alone->zero.stage == 0);
  CHECK(alone->zero.prefetch_depth == Zero{}.prefetch_depth);
  CHECK(alone->overlap.split_tied_embedding);
  CHECK(two->zero.stage == 3);
  CHECK(!two->overlap.split_tied_embedding);
  // A tokenizer with more tokens than the model is refused, one with fewer is not.
  const RunConfig small = default_run_config({"model.vocab_size=64"});
  CHECK(resolve(small, {.vocab = 63})->model.vocab_size == 64);
  CHECK_THROWS_AS(resolve(small, {.vocab = 65}), ConfigError);
}

TEST_CASE("fields: a resolved configuration reads back as itself", "[config]") {
  const RunConfig defaults = default_run_config();
  CHECK(config_toml(load_text(config_toml(defaults))) == config_toml(defaults));
  const uint64_t seed = 20261121;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 100; ++i) {
    RunConfig config;
    config.optimizer.learning_rate = 1 + 0.5 * std::generate_canonical<double, 53>(random);
    config.optimizer.eps = std::ldexp(1.0 + std::generate_canonical<double, 53>(random), -60);
    config.optimizer.grad_clip = static_cast<double>(random() % 5);
    config.overlap.bucket_size_bytes = 1 + static_cast<int64_t>(random() >> (14 + random() % 40));
    config.comm.emulate.bandwidth_bytes_per_second = static_cast<int64_t>(random() >> (14 + random() % 40));
    config.comm.emulate.latency_ns = static_cast<int64_t>(random() % 60'000'000'000);
    config.train.seed = static_cast<int64_t>(random() >> 1);
    config.output.dir = "a\"b\\c\n\t\x7f\x01 \xE2\x82\xAC#" + std::to_string(random());
    config.comm.deterministic = static_cast<Choice>(random() % 3);
    config.device.graph = static_cast<Choice>(random() % 3);
    config.comm.emulate.form = static_cast<EmulateForm>(random() % 3);
    config.comm.grad_dtype = static_cast<DTypeChoice>(random() % 3);
    config.overlap.grad_reduce = static_cast<ReduceMode>(random() % 4);
    config.trace.steps = {1 + static_cast<int64_t>(random() % 9), 10};
    config = resolve_defaults(config);
    const RunConfig back = load_text(config_toml(config));
    for (const Field<RunConfig>& field : run_fields()) {
      INFO(field.key);
      REQUIRE(field.get(back) == field.get(config));
    }
    REQUIRE(config_toml(back) == config_toml(config));
  }
}

TEST_CASE("fields: the resolved run file, which ranks compare, changes with every key", "[config]") {
  std::set<std::string> files{config_toml(RunConfig{})};
  for (const Field<RunConfig>& field : run_fields()) {
    INFO(field.key);
    RunConfig config;
    int changed = 0;
    for (const ConfigValue& value : std::initializer_list<ConfigValue>{true,
                                                                       false,
                                                                       int64_t{2},
                                                                       int64_t{3},
                                                                       0.5,
                                                                       std::string("other"),
                                                                       std::string("llama"),
                                                                       std::string("llama3"),
                                                                       std::string("bfloat16"),
                                                                       std::string("3MiB"),
                                                                       std::string("7kbit/s"),
                                                                       std::string("7us"),
                                                                       std::string("full"),
                                                                       std::string("naive"),
                                                                       std::string("skip"),
                                                                       std::string("gpipe"),
                                                                       std::string("mpi"),
                                                                       std::string("int8"),
                                                                       std::string("cpu"),
                                                                       std::string("copies"),
                                                                       std::string("muon"),
                                                                       std::string("original"),
                                                                       std::string("linear"),
                                                                       std::string("sigmoid"),
                                                                       std::string("auxiliary"),
                                                                       std::string("drop"),
                                                                       std::string("jsonl"),
                                                                       std::string("gather"),
                                                                       std::vector<std::string>{"a"},
                                                                       std::vector<std::string>{"jsonl"},
                                                                       std::vector<int64_t>{3, 4}}) {
      try {
        field.set(config, value);
        if (field.get(config) != field.get(RunConfig{})) {
          ++changed;
          break;
        }
      } catch (const ConfigError&) {
      }
    }
    REQUIRE(changed == 1);
    CHECK(files.insert(config_toml(config)).second);
  }
}

TEST_CASE("fields: docs/reference/config.md is current", "[config]") {
  const auto page = kRoot / "docs/reference/config.md";
  if (std::getenv("SLIPSTREAM_UPDATE_DOCS")) {
    std::filesystem::create_directories(page.parent_path());
    std::ofstream(page, std::ios::binary) << config_reference_markdown();
  }
  INFO("run this test with SLIPSTREAM_UPDATE_DOCS=1 to write the page");
  CHECK(read(page) == config_reference_markdown());
}

TEST_CASE("nearest: swapped and mistyped letters are corrected, unrelated words are not", "[config]") {
  const std::vector<std::string_view> names{"steps", "seed", "heads", "kv_heads"};
  CHECK(nearest("stpes", names) == "steps");
  CHECK(nearest("step", names) == "steps");
  CHECK(nearest("head", names) == "heads");
  CHECK(nearest("train.seed", {"model.seed2", "data.seed"}) == "data.seed");
  CHECK(nearest("quantity", names).empty());
  CHECK(nearest(std::string(100000, 'x'), names).empty());
}

TEST_CASE("runs: every shipped run file loads with the expected sizes and is supported", "[config]") {
  struct Expected {
    const char* name;
    int64_t layers, heads, kv_heads, width, ffn_width, vocab_size;
    Choice tied;
    std::vector<int> data_ranks;
  };
  const std::vector<Expected> table = {
      {"quickstart", 5, 5, 5, 160, 640, 0, Choice::yes, {1, 2}},
      {"shakespeare_char", 4, 4, 4, 128, 512, 0, Choice::yes, {1, 2, 4}},
      {"gpt2_124m", 12, 12, 12, 768, 3072, 50257, Choice::yes, {1, 2, 4, 8, 16, 32}},
      {"gpt2_xl", 48, 25, 25, 1600, 6400, 50257, Choice::yes, {1, 2, 4, 8, 16, 32, 64, 128}},
      {"gpt2_xl_2gpus", 48, 25, 25, 1600, 6400, 50304, Choice::yes, {1, 2}},
      {"llama_1b", 16, 32, 8, 2048, 8192, 128256, Choice::yes, {1, 8, 512}},
      {"llama_8b", 32, 32, 8, 4096, 14336, 128256, Choice::no, {8, 32, 512}},
      {"llama_70b", 80, 64, 8, 8192, 28672, 128256, Choice::no, {1, 16, 32}},
      {"mixtral_8x7b", 32, 32, 8, 4096, 14336, 32000, Choice::no, {64, 128}},
      {"qwen3_30b_a3b", 48, 32, 4, 2048, 6144, 151936, Choice::no, {32, 64, 128}},
      {"deepseek_v3_shape", 61, 128, 8, 7168, 18432, 129280, Choice::no, {64, 128}},
  };
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot / "configs/runs"))
    files += entry.path().extension() == ".toml";
  CHECK(files == table.size());
  for (const Expected& row : table) {
    INFO(row.name);
    const RunConfig config = load_run_config((kRoot / "configs/runs" / (std::string(row.name) + ".toml")).string());
    require_supported(config);
    CHECK(config.model.layers == row.layers);
    CHECK(config.model.heads == row.heads);
    CHECK(config.model.kv_heads == row.kv_heads);
    CHECK(config.model.width == row.width);
    CHECK(config.model.ffn_width == row.ffn_width);
    CHECK(config.model.vocab_size == row.vocab_size);
    CHECK(config.model.tie_embeddings == row.tied);
    CHECK(config.output.dir == std::string("runs/") + row.name);
    CHECK_FALSE(config.data.train.empty());
    for (int ranks : row.data_ranks) CHECK_NOTHROW(resolve_batch(config, ranks));
  }
}

TEST_CASE("runs: shakespeare_char is the published recipe", "[config]") {
  const RunConfig c = load_run_config((kRoot / "configs/runs/shakespeare_char.toml").string());
  CHECK(c.model.context == 64);
  CHECK(c.train.steps == 2000);
  CHECK(c.train.global_batch_size == 12);
  CHECK(c.optimizer.learning_rate == 1e-3);
  CHECK(c.optimizer.min_learning_rate == 1e-4);
  CHECK(c.optimizer.warmup_steps == 100);
  CHECK(c.optimizer.decay_steps == 2000);
  CHECK(c.optimizer.beta1 == 0.9);
  CHECK(c.optimizer.beta2 == 0.99);
  CHECK(c.optimizer.weight_decay == 0.1);
  CHECK(c.optimizer.grad_clip == 1.0);
  CHECK(c.data.tokenizer == "chars");
  CHECK(c.data.validation_fraction == 0.1);
  CHECK(c.train.eval_batches == 0);
}

TEST_CASE("machines: every shipped machine file loads with the numbers that it names", "[config]") {
  for (const std::string name : {"laptop", "h100x8", "h200x8", "a100x8"}) {
    const Machine machine = load_machine((kRoot / "configs/machines" / (name + ".toml")).string());
    CHECK(machine.name == name);
    CHECK((machine.device == MachineDevice::cuda) == (name != "laptop"));
    CHECK(machine.ranks_per_node == 8);
    CHECK(machine.nodes == 0);
    CHECK(machine.matmul_efficiency <= 1);
    CHECK(machine.intra_bytes_per_second > machine.inter_bytes_per_second);
  }
  const Machine h100 = load_machine((kRoot / "configs/machines/h100x8.toml").string());
  CHECK(h100.flops_per_second_bf16 == 989.4e12);
  CHECK(h100.bytes_per_second == 3'000'000'000'000);
  CHECK(h100.memory_bytes == 80'000'000'000);
  CHECK(h100.inter_bytes_per_second == 46'000'000'000);
  CHECK(h100.launch_ns == 3000);
}

TEST_CASE("machines: a machine file with missing or unknown keys is refused", "[config]") {
  const auto path =
      std::filesystem::temp_directory_path() / ("slipstream_machine_" + std::to_string(getpid()) + ".toml");
  const std::string good = read(kRoot / "configs/machines/laptop.toml");
  const auto refusal = [&](const std::string& text) -> std::string {
    std::ofstream(path, std::ios::binary) << text;
    try {
      load_machine(path.string());
    } catch (const ConfigError& error) {
      return std::string(error.what()).substr(path.string().size());
    }
    return "accepted";
  };
  CHECK(refusal(good) == "accepted");
  const std::string device = "device = \"cpu\"\n";
  REQUIRE(good.find(device) != std::string::npos);
  std::string silent = good;
  silent.erase(silent.find(device), device.size());
  CHECK(refusal(silent) == "accepted");
  CHECK(load_machine(path.string()).device == MachineDevice::cpu);
  CHECK(refusal("device = \"gpu\"\n").find("\"cpu\" or \"cuda\"") != std::string::npos);
  CHECK(refusal(good.substr(0, good.find("[inter]"))) ==
        " lacks the key 'inter.bandwidth', which needs a rate such as \"1Gbit/s\" or \"50GB/s\". Add it, with its "
        "source.");
  CHECK(refusal("nodes = 3\n" + good) == "accepted");
  CHECK(load_machine(path.string()).nodes == 3);
  CHECK(refusal("nmae = \"x\"\n") == ":1:1 unknown key 'nmae', did you mean 'name'?");
  const std::string wanted = " Give the path of a machine file, for example configs/machines/laptop.toml.";
  CHECK(refusal("[model]\nlayers = 2\n") == " is a run file: it has a table [model]." + wanted);
  CHECK(refusal("matmul_efficiency = 1.5\n") == ":1:1 matmul_efficiency needs a number above 0, at most 1, got 1.5.");
  CHECK(refusal("memory_bandwidth = \"\"\n") ==
        ":1:1 memory_bandwidth needs a rate such as \"1Gbit/s\" or \"50GB/s\", got the text \"\", which needs a "
        "number and one of the units bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s, B/s, kB/s, MB/s, GB/s, TB/s.");
  std::filesystem::remove(path);
  CHECK_THROWS_WITH(load_machine(path.string()), path.string() + " does not exist." + wanted);
}

TEST_CASE("machines: this host has at least one core and one rank, whatever the threads", "[config]") {
  for (int threads : {1, 2, 1000}) {
    const Machine machine = this_host(threads);
    CHECK(machine.ranks_per_node >= 1);
    CHECK(machine.memory_bytes > 0);
    CHECK(machine.flops_per_second_f32 > 0);
    CHECK(machine.bytes_per_second > 0);
  }
  CHECK(this_host(1).memory_bytes * this_host(1).ranks_per_node <= this_host(1000).memory_bytes);
}

TEST_CASE("machines: ranks of one host share its memory, whatever its number of cores", "[config]") {
  const Machine alone = this_host(1, 1);
  CHECK(alone.ranks_per_node == 1);
  CHECK(alone.memory_bytes == this_host(1000, 1).memory_bytes);  // the whole memory
  for (int ranks : {2, 3, 1000}) {
    CHECK(this_host(1, ranks).ranks_per_node == ranks);
    CHECK(this_host(1, ranks).memory_bytes == alone.memory_bytes / ranks);
  }
}

TEST_CASE("machines: the common machine has the smallest memory, and nodes that divide every host", "[config]") {
  // Each row has the numbers of ranks in a row on each host, and the longest row that divides all hosts.
  const std::vector<std::pair<std::vector<int>, int>> hosts{{{1}, 1},       {{4}, 4},    {{4, 4}, 4}, {{8, 4}, 4},
                                                            {{4, 8, 8}, 4}, {{3, 5}, 1}, {{6, 4}, 2}, {{1, 1, 1}, 1}};
  for (const auto& [counts, expected] : hosts) {
    std::vector<Machine> machines;
    for (int count : counts)
      for (int rank = 0; rank < count; ++rank)
        machines.push_back(
            {.name = "rank 0's", .memory_bytes = 1000 / count, .launch_ns = count, .ranks_per_node = count});
    const Machine common = common_machine(machines);
    CHECK(common.ranks_per_node == expected);
    CHECK(common.memory_bytes == 1000 / *std::max_element(counts.begin(), counts.end()));
    CHECK(common.launch_ns == counts[0]);
    // No row of this many ranks has two hosts.
    std::vector<int> host_of;
    for (size_t host = 0; host < counts.size(); ++host)
      host_of.insert(host_of.end(), static_cast<size_t>(counts[host]), static_cast<int>(host));
    for (size_t rank = 0; rank < host_of.size(); ++rank)
      CHECK(host_of[rank] == host_of[rank - rank % static_cast<size_t>(common.ranks_per_node)]);
  }
}
