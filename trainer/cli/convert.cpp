// SPDX-License-Identifier: Apache-2.0
// Runs slipstream convert: copies a model between folders in the Hugging Face format.

#include <memory>
#include <string>

#include "engine/base/print.h"
#include "engine/base/units.h"
#include "trainer/cli/command_line.h"
#include "trainer/runtime/weights/convert.h"

namespace slipstream::cli {
namespace {

int convert_model(const runtime::ConvertOptions& options) {
  const runtime::ConvertSummary summary = runtime::convert(options);
  print_result("{}\n{} tensors, {}, {} in {} file{}\n", summary.model, summary.tensors, summary.dtype,
               format_bytes(summary.size_bytes), summary.files, summary.files == 1 ? "" : "s");
  if (!summary.tokenizer_problem.empty())
    print_result("tokenizer: copied, but this program does not read it: {}\n", summary.tokenizer_problem);
  else
    print_result("tokenizer: {}\n", summary.tokenizer.empty() ? "none" : summary.tokenizer);
  return 0;
}

}  // namespace

void add_convert(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<runtime::ConvertOptions>();
  const auto file_size = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("convert", "weights from and to Hugging Face folders");
  command->add_option("from", options->from, "Hugging Face folder, run folder, checkpoint, or one of llm.c (.bin)")
      ->required();
  command->add_option("to", options->to, "folder of the result; one that a conversion wrote is replaced")->required();
  command->add_option("--dtype", options->dtype, "float32, bfloat16, or auto: bfloat16 if all tensors are")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}));
  command->add_option("--file-size", *file_size, "most bytes of a file of weights, such as 5GiB; without it, one file");
  command->callback([&chosen, options, file_size] {
    chosen = [options, file_size] {
      if (!file_size->empty()) options->file_bytes = parse_bytes(*file_size);
      return alone("convert", [&] { return convert_model(*options); });
    };
  });
}

}  // namespace slipstream::cli
