// SPDX-License-Identifier: Apache-2.0
// Runs slipstream tokenize: converts text to token shards.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/plural.h"
#include "engine/base/print.h"
#include "engine/data/datasets/tokenize.h"
#include "trainer/cli/command_line.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Prints the progress in one line on a terminal, once per second.
std::function<void(int64_t, int64_t)> progress_line() {
  if (::isatty(STDERR_FILENO) == 0) return {};
  return [begin = Clock::now(), printed = Clock::now(), first = int64_t{-1}](int64_t done, int64_t size) mutable {
    const Clock::time_point now = Clock::now();
    if (first < 0) first = done;
    if (done < size && now - printed < std::chrono::seconds(1)) return;
    printed = now;
    const double seconds = std::chrono::duration<double>(now - begin).count() + 1e-9;
    const double rate = static_cast<double>(done - first) / seconds;
    const std::string place = size == 0 ? fmt::format("{:.1f} MB", static_cast<double>(done) / 1e6)
                                        : fmt::format("{:5.1f} %  {:.0f} s left",
                                                      100.0 * static_cast<double>(done) / static_cast<double>(size),
                                                      rate > 0 ? static_cast<double>(size - done) / rate : 0.0);
    std::fputs(fmt::format("\r{}  {:.1f} MB/s  ", place, rate / 1e6).c_str(), stderr);
  };
}

int tokenize_text(data::TokenizeOptions options) {
  if (options.out.empty())
    throw ConfigError(
        "[tokenize] the path of the shards is missing or empty. Give one after the texts, such as data/text.");
  if (options.out.ends_with('/'))
    throw ConfigError("[tokenize] {} is a folder, need the path of the shards. Give one in it, such as {}text.",
                      files::shown(options.out), files::printable(options.out, 200));
  if (options.resume && options.shard_tokens == 0)
    throw ConfigError("[tokenize] --resume continues after complete shards. Give --shard-tokens, too.");
  if (options.threads == 0) options.threads = planner::threads_of(RunConfig{}, 1);
  if (std::error_code error; options.texts.size() > 1 && std::filesystem::is_regular_file(options.out, error))
    throw ConfigError(
        "[tokenize] the last path, {}, is a file: it names the shards. Give a path for these after the texts.",
        files::shown(options.out));
  options.progress = progress_line();
  const Clock::time_point begin = Clock::now();
  const data::TokenizeSummary summary = data::tokenize(options);
  if (options.progress) std::fputs("\n", stderr);
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  print_result("{} tokens of {} bytes of text, tokenizer {} with {} ids\n", summary.count, summary.text_bytes,
               summary.tokenizer, summary.vocab_size);
  if (summary.documents > 0) print_result("{} documents\n", summary.documents);
  for (const std::string& note : summary.notes) print_result("note: {}\n", note);
  for (const auto& shard : summary.shards)
    print_result("{}  {} tokens  {} bytes  xxh3 {}\n", shard.path, shard.count, shard.size_bytes, shard.hash);
  if (summary.removed > 0) print_result("removed {} of an earlier command\n", counted(summary.removed, "shard"));
  print_result("{:.2f} s, {:.1f} MB/s with {} thread{}\n", seconds,
               static_cast<double>(summary.text_bytes) / 1e6 / seconds, options.threads,
               options.threads == 1 ? "" : "s");
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<data::TokenizeOptions>();
  options->threads = 0;  // set before add_option, which prints it as the default
  const auto no_end = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("tokenize", "convert texts to token shards");
  command
      ->add_option(
          "text", options->texts,
          "texts or JSON lines, patterns of them, or - for standard input; gzip and Zstandard files are unpacked")
      ->required();
  // The parser gives all paths to the first option.
  command->add_option("out", options->out, "path of the shards, without .bin, after all texts");
  command->add_option("--tokenizer", options->tokenizer,
                      "bytes, chars, a folder with a tokenizer, a tokenizer.json or NAME.tiktoken");
  command->add_option("--shard-tokens", options->shard_tokens, "tokens per shard; 0: one shard")
      ->check(whole_numbers(INT64_MAX / 8));
  command->add_option("--separator", options->separator, "text that ends a document, such as <|endoftext|>");
  add_text_format(*command, options->format, true);
  command->add_option("--text-key", options->text_key, "key of the document in a JSON line");
  command->add_flag("--no-end-of-text", *no_end, "no end-of-text token after each document");
  command->add_option("--threads", options->threads, "threads; 0: every core that the process may use")
      ->check(whole_numbers(4096));
  command->add_flag("--resume", options->resume, "continue an interrupted command after its last complete shard");
  command->callback([&chosen, options, no_end] {
    options->end_of_text = !*no_end;
    if (options->texts.size() > 1) {
      options->out = options->texts.back();
      options->texts.pop_back();
    }
    chosen = [options] { return alone("tokenize", [&] { return tokenize_text(*options); }); };
  });
}

}  // namespace slipstream::cli
