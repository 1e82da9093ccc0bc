// SPDX-License-Identifier: Apache-2.0
// Laws of loading: precedence of sources, and one error with its place for every mistake.

#include "engine/config/load.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/base/check.h"
#include "engine/config/fields.h"
#include "tests/defaults.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// The folder of one test case. Errors name its files relative to it, such as "run.toml".
struct Folder {
  std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("slipstream_load_test_" + std::to_string(getpid()));
  Folder() {
    std::filesystem::create_directories(path);
    std::filesystem::current_path(path);
  }
  ~Folder() {
    std::filesystem::current_path(before);
    std::filesystem::remove_all(path);
  }
  static void write(const std::string& text) { std::ofstream("run.toml", std::ios::binary) << text; }
};

std::string refusal(const std::string& path, const std::vector<std::string>& sets = {}) {
  try {
    load_run_config(path, sets);
  } catch (const ConfigError& error) {
    CHECK(static_cast<int>(error.code()) == 2);
    return error.what();
  }
  return "accepted";
}

std::string refusal_of(const std::string& text) {
  Folder folder;
  Folder::write(text);
  return refusal("run.toml");
}

std::string set_refusal(const std::string& set) {
  try {
    default_run_config({set});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("load: defaults < file < --set, the last --set of equals", "[config]") {
  Folder folder;
  Folder::write("[train]\nsteps = 7\nseed = 5\n[overlap]\nbucket_size = \"10MiB\"\n");
  const RunConfig config = load_run_config(
      "run.toml", {"train.steps=9", "overlap.bucket_size=3MB", "train.steps=11", "output.dir=runs/a b",
                   "data.train=\"x=y\"", "trace.steps=[2, 3]", "comm.deterministic=true", "model.tie_embeddings=auto"});
  CHECK(config.train.steps == 11);
  CHECK(config.train.seed == 5);
  CHECK(config.train.micro_batch_size == 8);
  CHECK(config.overlap.bucket_size_bytes == 3'000'000);
  CHECK(config.output.dir == "runs/a b");
  CHECK(config.data.train == "x=y");
  CHECK(config.trace.steps == std::vector<int64_t>{2, 3});
  CHECK(config.comm.deterministic == Choice::yes);
  CHECK(config.model.tie_embeddings == Choice::yes);
}

TEST_CASE("load: a key that a search or a question varies sets the values that it implies", "[config]") {
  Folder folder;
  Folder::write("[model]\nwidth = 64\nheads = 4\n[train]\nsteps = 7\ndtype = \"bfloat16\"\n");
  const WrittenRun written = load_written_run("run.toml", {"optimizer.name=muon"});
  for (const std::string& set : std::vector<std::string>{
           "train.dtype=float32", "model.width=128", "model.heads=2", "model.family=llama", "model.context=32",
           "train.steps=9", "optimizer.learning_rate=0.5", "comm.quantize=int8", "output.dir=elsewhere"}) {
    CAPTURE(set);
    CHECK(with_sets(written, {set}) == load_run_config("run.toml", {"optimizer.name=muon", set}));
    CHECK(with_sets(written, {set}) != with_sets(written, {}));
  }
}

TEST_CASE("load: units become bytes, bytes per second and nanoseconds", "[config]") {
  Folder folder;
  Folder::write(
      "[comm.emulate]\nbandwidth = \"1Gbit/s\"\nlatency = \"50us\"\n[zero]\nstage = 3\npersistence_threshold = "
      "\"1KiB\"\n");
  const RunConfig config = load_run_config("run.toml", {"overlap.first_bucket_size=0.5MiB"});
  CHECK(config.comm.emulate.bandwidth_bytes_per_second == 125'000'000);
  CHECK(config.comm.emulate.latency_ns == 50'000);
  CHECK(config.zero.persistence_threshold_bytes == 1024);
  CHECK(config.overlap.first_bucket_size_bytes == 524'288);
  CHECK(load_run_config("run.toml", {"comm.emulate.bandwidth="}).comm.emulate.bandwidth_bytes_per_second == 0);
  CHECK(load_run_config("run.toml", {"comm.emulate.bandwidth=\"\""}).comm.emulate.bandwidth_bytes_per_second == 0);
}

TEST_CASE("load: every word gives the enum value of its name", "[config]") {
  const auto with = [](const std::string& set) { return default_run_config({set}); };
  const auto piped = [](const std::string& set) { return default_run_config({set, "parallel.pipeline=2"}); };
  CHECK(with("model.family=gpt2").model.family == Family::gpt2);
  CHECK(with("model.family=llama").model.family == Family::llama);
  CHECK(with("optimizer.name=adamw").optimizer.name == OptimizerName::adamw);
  CHECK(with("optimizer.name=muon").optimizer.name == OptimizerName::muon);
  CHECK(with("train.dtype=float32").train.dtype == DType::f32);
  CHECK(with("comm.grad_dtype=bfloat16").comm.grad_dtype == DTypeChoice::bfloat16);
  CHECK(with("comm.grad_dtype=float32").comm.grad_dtype == DTypeChoice::float32);
  CHECK(with("train.recompute=none").train.recompute == Recomputation::none);
  CHECK(with("train.recompute=selective").train.recompute == Recomputation::selective);
  CHECK(with("train.recompute=full").train.recompute == Recomputation::full);
  CHECK(with("parallel.order=tp-cp-pp-dp").parallel.order == "tp-cp-pp-dp");
  CHECK(with("overlap.grad_reduce=bucketed").overlap.grad_reduce == ReduceMode::bucketed);
  CHECK(with("overlap.grad_reduce=per_parameter").overlap.grad_reduce == ReduceMode::per_parameter);
  CHECK(with("overlap.grad_reduce=flat").overlap.grad_reduce == ReduceMode::flat);
  CHECK(with("overlap.grad_reduce=naive").overlap.grad_reduce == ReduceMode::naive);
  CHECK(piped("pipeline.schedule=gpipe").pipeline.schedule == ScheduleKind::gpipe);
  CHECK(piped("pipeline.schedule=1f1b").pipeline.schedule == ScheduleKind::one_f_one_b);
  CHECK(piped("pipeline.schedule=interleaved_1f1b").pipeline.schedule == ScheduleKind::interleaved_1f1b);
  CHECK(piped("pipeline.schedule=zb_h1").pipeline.schedule == ScheduleKind::zb_h1);
  CHECK(with("comm.backend=auto").comm.backend == Backend::automatic);
  CHECK(with("comm.backend=nccl").comm.backend == Backend::nccl);
  CHECK(with("comm.backend=mpi").comm.backend == Backend::mpi);
  CHECK(with("comm.backend=thread").comm.backend == Backend::thread);
  CHECK(with("comm.quantize=int8").comm.quantize == Quantize::int8);
  CHECK(with("comm.deterministic=false").comm.deterministic == Choice::no);
  CHECK(with("device.kind=auto").device.kind == DeviceChoice::automatic);
  CHECK(with("device.kind=cpu").device.kind == DeviceChoice::cpu);
  CHECK(with("device.kind=cuda").device.kind == DeviceChoice::cuda);
  CHECK(with("zero.gather_dtype=float32").zero.gather_dtype == DTypeChoice::float32);
}

TEST_CASE("load: unknown keys name their place and the nearest key", "[config]") {
  CHECK(refusal_of("[train]\n  stpes = 5\n") == "run.toml:2:3 unknown key 'train.stpes', did you mean 'train.steps'?");
  CHECK(refusal_of("[train]\nlearning_rate = 5\n") ==
        "run.toml:2:1 unknown key 'train.learning_rate', did you mean 'optimizer.learning_rate'?");
  CHECK(refusal_of("steps = 5\n") == "run.toml:1:1 unknown key 'steps', did you mean 'train.steps'?");
  CHECK(refusal_of("[model]\nqqqqqqqqqqqq = 5\n") ==
        "run.toml:2:1 unknown key 'model.qqqqqqqqqqqq'. docs/reference/config.md lists all keys.");
  CHECK(refusal_of("[trian]\nsteps = 5\n") == "run.toml:1:2 unknown table [trian], did you mean [train]?");
  CHECK(refusal_of("[zzzzzzzz]\n") ==
        "run.toml:1:2 unknown table [zzzzzzzz]. docs/reference/config.md lists all tables.");
  CHECK(refusal_of("[train]\nsteps.x = 5\n").find("run.toml:2:1 unknown table [train.steps]") == 0);
  CHECK(refusal_of("\"train.steps\" = 5\n").find("run.toml:1:1 unknown key '\"train.steps\"'") == 0);
  CHECK(refusal_of("train = 5\n") == "run.toml:1:1 train is a table. Write [train] and its keys below.");
  CHECK(refusal_of("train.stpes = 1\nmodel.layesr = 2\n").find("run.toml:1:") == 0);
  CHECK(refusal_of("zero.stpes = 1\nmodel.layesr = 2\n").find("run.toml:1:") == 0);
}

TEST_CASE("load: errors about types and ranges name the required and the given value", "[config]") {
  CHECK(refusal_of("[train]\nsteps = \"10\"\n") ==
        "run.toml:2:1 train.steps needs an integer of at least 1, got the text \"10\".");
  CHECK(refusal_of("[train]\nsteps = 1.5\n") == "run.toml:2:1 train.steps needs an integer of at least 1, got 1.5.");
  CHECK(refusal_of("[train]\nsteps = true\n") == "run.toml:2:1 train.steps needs an integer of at least 1, got true.");
  CHECK(refusal_of("[train]\nsteps = 0\n") == "run.toml:2:1 train.steps needs an integer of at least 1, got 0.");
  CHECK(refusal_of("[train]\nsteps = -3\n") == "run.toml:2:1 train.steps needs an integer of at least 1, got -3.");
  CHECK(refusal_of("[train]\nsteps = 1979-05-27\n") ==
        "run.toml:2:1 train.steps needs an integer of at least 1, got a date or a time.");
  CHECK(refusal_of("[[train]]\nsteps = 1\n") == "run.toml:1:3 train is a table. Write [train] and its keys below.");
  CHECK(refusal_of("[model]\nlayers = 65537\n") ==
        "run.toml:2:1 model.layers needs an integer from 1 to 65536, got 65537.");
  CHECK(refusal_of("[train]\nsteps = 9223372036854775807\n") ==
        "run.toml:2:1 train.steps needs an integer of at most 1000000000000, got 9223372036854775807.");
  CHECK(refusal_of("[train]\nsteps = 9223372036854775808\n").find("run.toml:2:") == 0);
  CHECK(refusal_of("[optimizer]\nlearning_rate = nan\n") ==
        "run.toml:2:1 optimizer.learning_rate needs a number from 0 to 1000, got nan.");
  CHECK(refusal_of("[optimizer]\nlearning_rate = inf\n") ==
        "run.toml:2:1 optimizer.learning_rate needs a number from 0 to 1000, got inf.");
  CHECK(refusal_of("[optimizer]\nbeta1 = 1\n") ==
        "run.toml:2:1 optimizer.beta1 needs a number from 0 to below 1, got 1.");
  CHECK(refusal_of("[optimizer]\neps = 0\n") == "run.toml:2:1 optimizer.eps needs a number above 0, at most 1, got 0.");
  CHECK(refusal_of("[data]\nvalidation_fraction = 1.0\n") ==
        "run.toml:2:1 data.validation_fraction needs a number between 0 and 1, both excluded, got 1.0.");
  CHECK(refusal_of("[overlap]\np2p = 1\n") == "run.toml:2:1 overlap.p2p needs true or false, got 1.");
  CHECK(refusal_of("[model]\ntie_embeddings = \"yes\"\n") ==
        "run.toml:2:1 model.tie_embeddings needs true, false or \"auto\", got the text \"yes\".");
  CHECK(refusal_of("[overlap]\ngrad_reduce = \"bucketd\"\n") ==
        "run.toml:2:1 overlap.grad_reduce needs \"bucketed\", \"per_parameter\", \"flat\" or \"naive\", got the text "
        "\"bucketd\", "
        "did you mean \"bucketed\"?");
  CHECK(refusal_of("[train]\ndtype = \"float16\"\n") ==
        "run.toml:2:1 train.dtype needs \"float32\" or \"bfloat16\", got the text \"float16\", did you mean "
        "\"bfloat16\"?");
  CHECK(refusal_of("[overlap]\nfirst_bucket_size = 26214400\n") ==
        "run.toml:2:1 overlap.first_bucket_size needs a size such as \"25MiB\", got 26214400.");
  CHECK(refusal_of("[overlap]\nfirst_bucket_size = \"25\"\n") ==
        "run.toml:2:1 overlap.first_bucket_size needs a size such as \"25MiB\", got the text \"25\", which "
        "needs a number and one of the units B, kB, KB, MB, GB, TB, KiB, MiB, GiB, TiB.");
  CHECK(refusal_of("[overlap]\nfirst_bucket_size = \"0MiB\"\n") ==
        "run.toml:2:1 overlap.first_bucket_size needs a size such as \"25MiB\" from 1B to 1024TiB, got the text "
        "\"0MiB\".");
  CHECK(refusal_of("[comm.emulate]\nbandwidth = \"fast\"\n") ==
        "run.toml:2:1 comm.emulate.bandwidth needs a rate such as \"1Gbit/s\", or \"\", got the text \"fast\", "
        "which needs a number and one of the units bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s, B/s, kB/s, MB/s, GB/s, "
        "TB/s.");
  CHECK(refusal_of("[comm.emulate]\nlatency = \"2min\"\n") ==
        "run.toml:2:1 comm.emulate.latency needs a time such as \"50us\" from 0ns to 60s, got the text \"2min\".");
  CHECK(refusal_of("[trace]\nsteps = [10, \"12\"]\n") ==
        "run.toml:2:1 trace.steps needs a list of integers, got a list of different types.");
  CHECK(refusal_of("[trace]\nsteps = [0, 12]\n") ==
        "run.toml:2:1 trace.steps needs in its list an integer of at least 1, got 0.");
  CHECK(refusal_of("[trace]\nsteps = [1, 9223372036854775807]\n") ==
        "run.toml:2:1 trace.steps needs in its list an integer of at most 1000000000000, got 9223372036854775807.");
  CHECK(refusal_of("[data]\ntrain = 5\n") == "run.toml:2:1 data.train needs a text in quotes, got 5.");
  CHECK(refusal_of("[data]\ntrain = \"a\\u0000b\"\n") ==
        "run.toml:2:1 data.train needs a text without zero bytes, got one that has them.");
}

TEST_CASE("load: a malformed --set is refused with itself in the sentence", "[config]") {
  CHECK(set_refusal("a") == "--set a: needs KEY=VALUE, for example --set train.steps=100.");
  CHECK(set_refusal("=1") == "--set =1: needs KEY=VALUE, for example --set train.steps=100.");
  CHECK(set_refusal("train.steps=") ==
        "--set train.steps=: train.steps needs an integer of at least 1, got the text \"\".");
  CHECK(set_refusal("train.steps=abc") ==
        "--set train.steps=abc: train.steps needs an integer of at least 1, got the text \"abc\".");
  CHECK(set_refusal("train.steps=1\nx=2").find("needs an integer of at least 1, got the text \"1\\u000Ax=2\".") !=
        std::string::npos);
  CHECK(set_refusal("train.stpes=5") == "--set train.stpes=5: unknown key 'train.stpes', did you mean 'train.steps'?");
  CHECK(set_refusal("train=5") == "--set train=5: unknown key 'train', did you mean 'data.train'?");
  CHECK(set_refusal("overlap.bucket_size=10") ==
        "--set overlap.bucket_size=10: overlap.bucket_size needs a size such as \"25MiB\", or \"auto\", got the "
        "text \"10\", which needs a number and one of the units B, kB, KB, MB, GB, TB, KiB, MiB, GiB, TiB.");
  for (const char* size : {"0MiB", "0B"})
    CHECK(set_refusal(fmt::format("overlap.bucket_size={}", size))
              .find(fmt::format("\"25MiB\", or \"auto\" from 1B to 1024TiB, got the text \"{}\".", size)) !=
          std::string::npos);
  CHECK(set_refusal("overlap.bucket_size=25mb").find("\"25mb\", which needs a number and one of the units B, kB, ") !=
        std::string::npos);
  CHECK(set_refusal("device.kind=gpu").find("did you mean \"cuda\"?") != std::string::npos);
  CHECK(set_refusal("train.dtype=bf16").find("did you mean \"bfloat16\"?") != std::string::npos);
  CHECK(set_refusal("overlap.bucket_size=auto") == "accepted");
  CHECK(set_refusal("output.dir=\xff") == "--set: a value is not UTF-8. Write it in UTF-8.");
  CHECK(set_refusal("output.dir=5") == "accepted");
}

TEST_CASE("load: values that float32 rounds to a bound are refused with the nearest one that works", "[config]") {
  CHECK(set_refusal("optimizer.eps=1e-50") ==
        "--set optimizer.eps=1e-50: optimizer.eps needs a number above 0, at most 1, got 1e-50, too close to 0 for "
        "float32. The nearest value that works is 1.1754944e-38.");
  CHECK(set_refusal("optimizer.beta2=0.999999999") ==
        "--set optimizer.beta2=0.999999999: optimizer.beta2 needs a number from 0 to below 1, got 0.999999999, too "
        "close to 1 for float32. The nearest value that works is 0.99999994.");
  for (const char* key :
       {"optimizer.learning_rate", "optimizer.weight_decay", "optimizer.grad_clip", "model.norm_eps"}) {
    const std::string text = set_refusal(std::string(key) + "=1e-40"), words = "The nearest value that works is ";
    INFO(text);
    REQUIRE(text.find(words) != std::string::npos);
    const std::string usable = text.substr(text.find(words) + words.size());
    CHECK(set_refusal(std::string(key) + "=" + usable.substr(0, usable.size() - 1)) == "accepted");
  }
  for (const char* set : {"optimizer.beta1=0.99999994", "optimizer.beta1=0", "optimizer.learning_rate=0",
                          "optimizer.eps=1.1754944e-38", "optimizer.eps=1", "data.validation_fraction=1e-50"})
    CHECK(set_refusal(set) == "accepted");
}

TEST_CASE("load: files that are no run files are refused with one error each", "[config]") {
  Folder folder;
  CHECK(refusal("missing.toml") ==
        "missing.toml does not exist. Give the path of a run file, for example configs/runs/quickstart.toml.");
  CHECK(refusal(".") == ". is a folder, not a file. Give the path of a file in it.");
  CHECK(refusal("/dev/null") == "/dev/null is not a regular file. Give the path of a TOML file.");
  REQUIRE(mkfifo("pipe.toml", 0600) == 0);
  CHECK(refusal("pipe.toml") == "pipe.toml is not a regular file. Give the path of a TOML file.");
  const std::string empty = "run.toml is empty: it has no keys. docs/reference/config.md lists them.";
  for (const std::string text : {"", "\n\n", "# only a comment\n"}) {
    Folder::write(text);
    CHECK(refusal("run.toml") == empty);
  }
  Folder::write("[train]\nsteps = 5 # \xff\n");
  CHECK(refusal("run.toml") == "run.toml:2:13 is not UTF-8: byte 0xff. Save the file as UTF-8.");
  Folder::write(std::string("\xff\xfe[\0t\0", 6));
  CHECK(refusal("run.toml") == "run.toml:1:1 is not UTF-8: byte 0xff. Save the file as UTF-8.");
  Folder::write("# " + std::string(1 << 20, 'x'));
  CHECK(refusal("run.toml") == "run.toml is larger than 1 MiB, too large for a configuration file.");
  Folder::write("[train\nsteps = 5\n");  // the parser's own message follows; it changes with its version
  CHECK(refusal("run.toml").find("run.toml:1:7 is not TOML: table header: ") == 0);
  Folder::write("[data]\ntrain = \"\\q\"\n");
  CHECK(refusal("run.toml").find("run.toml:2:11 is not TOML: string: ") == 0);
  Folder::write("[optimizer]\nlearning_rate = 1e999\n");
  CHECK(refusal("run.toml").find("has '1e999', a number that 64 bits cannot hold. Use another one.") !=
        std::string::npos);
  Folder::write("[train]\nsteps = 99999999999999999999\n");
  CHECK(refusal("run.toml").find("has '99999999999999999999', a number that 64 bits cannot hold.") !=
        std::string::npos);
  Folder::write("x = " + std::string(100000, '['));
  CHECK(refusal("run.toml").find("run.toml:1:261 is not TOML: value: exceeded maximum nested value depth of 256.") ==
        0);
  Folder::write(std::string("[train]\nsteps = 5\0\n", 19));
  CHECK(refusal("run.toml").find("run.toml:2:10 is not TOML: ") == 0);
}

TEST_CASE("load: keys and tables that come twice are refused", "[config]") {
  CHECK(refusal_of("[train]\nsteps = 5\nsteps = 6\n") ==
        "run.toml:3:9 repeats a definition: cannot redefine existing integer 'steps'. Keep one of them.");
  CHECK(refusal_of("[train]\nsteps = 5\n[train]\nseed = 6\n") ==
        "run.toml:3:1 repeats a definition: cannot redefine existing table 'train'. Keep one of them.");
}

TEST_CASE("load: a byte order mark and carriage returns do not matter", "[config]") {
  Folder folder;
  Folder::write("\xEF\xBB\xBF[train]\r\nsteps = 5\r\nseed = 6\r\n");
  const RunConfig config = load_run_config("run.toml");
  CHECK(config.train.steps == 5);
  CHECK(config.train.seed == 6);
}

TEST_CASE("load: no prefix of a run file and no flipped byte crashes", "[config]") {
  const RunConfig config;
  const std::string text = config_toml(config);
  Folder folder;
  unsigned random = 12345;
  for (size_t i = 0; i < 300; ++i) {
    random = random * 1664525 + 1013904223;
    std::string broken = text.substr(0, (random >> 8) % text.size());
    Folder::write(broken);
    refusal("run.toml");
    broken = text;
    broken[(random >> 7) % text.size()] = static_cast<char>(random >> 24);
    Folder::write(broken);
    refusal("run.toml");
  }
}
