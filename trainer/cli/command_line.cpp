// SPDX-License-Identifier: Apache-2.0
// Replaces CLI11's validators, which print the largest double in 309 digits and accept an empty element between commas.

#include "trainer/cli/command_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/base/check.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::cli {
namespace {

class HelpFormat : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string text = CLI::Formatter::make_option_opts(option);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const std::string_view rest = std::string_view(text).substr(at);
      const auto hidden = std::find_if(std::begin(kHidden), std::end(kHidden),
                                       [&](std::string_view part) { return rest.starts_with(part); });
      if (hidden == std::end(kHidden))
        shown += text[at++];
      else
        at += hidden->size();
    }
    return shown;
  }

 private:
  // These hide an empty default, the suggestion of several values, and types beside a range, a list or a named format.
  static constexpr std::string_view kHidden[] = {
      "=[]", " ...", "UINT:", "INT:", "FLOAT:", "TEXT:", ":INT", ":WHOLE", ":POSITIVE"};
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_format() { return std::make_shared<HelpFormat>(); }

void add_run_source(CLI::App* command, RunSource& source) {
  command
      ->add_option("run", source.run_file,
                   "run file (TOML), or the name of a shipped one; docs/reference/config.md lists its keys")
      ->required();
  command->add_option("--set", source.sets, "override one key, for instance overlap.bucket_size=10MiB; repeatable")
      ->take_all()
      ->allow_extra_args(false)  // so that the run file may follow it
      ->type_name("KEY=VALUE");
}

void add_text_format(CLI::App& command, DataFormat& format, bool reads_documents) {
  const auto choose = [&format](const std::string& word) {
    format = word == "text" ? DataFormat::text : word == "jsonl" ? DataFormat::jsonl : DataFormat::automatic;
  };
  std::vector<std::string> words{"auto", "text"};
  std::string meaning =
      "auto: by the name and the first bytes, and bytes that are no text are refused; text: all bytes as ";
  meaning += "they are";
  if (reads_documents) {
    words.emplace_back("jsonl");
    meaning += "; jsonl: JSON lines";
  }
  command.add_option_function<std::string>("--format", choose, meaning)
      ->check(CLI::IsMember(words))
      ->default_str("auto");
}

CLI::Validator number(const std::string& need, const std::string& type, const std::function<bool(double)>& good) {
  return {[=](std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool whole = !text.empty() && *end == '\0';
            return whole && good(value) ? std::string() : fmt::format("needs {}, got {}", need, text);
          },
          type};
}

CLI::Validator positive() {
  return number("a number above 0", "POSITIVE", [](double n) { return n > 0 && std::isfinite(n); });
}

CLI::Validator whole_numbers(int64_t most) {
  return {[=](std::string& text) {
            for (size_t at = 0; at <= text.size();) {
              const size_t end = std::min(text.find(',', at), text.size());
              int64_t value = -1;
              const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, value);
              if (error != std::errc() || stop != text.data() + end || value < 0 || value > most)
                return fmt::format("needs whole numbers from 0 to {}, got '{}'", most, text);
              at = end + 1;
            }
            return std::string();
          },
          "WHOLE"};
}

int in_agreement(const std::function<void(int ranks)>& stage) {
  runtime::World world;
  try {
    world.together([&] { stage(world.size()); });
    return 0;
  } catch (const runtime::AgreedFailure& failure) {
    return static_cast<int>(failure.code());
  }
}

// MPI starts once per process, so a command with its own World refuses several ranks itself.
int alone(const std::string& command, const Run& run) {
  const int code = in_agreement([&](int ranks) {
    if (ranks > 1)
      throw ConfigError("[{}] runs in one process, but {} were started. Start it without mpirun.", command, ranks);
  });
  return code != 0 ? code : run();
}

}  // namespace slipstream::cli
