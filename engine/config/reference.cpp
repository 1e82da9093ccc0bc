// SPDX-License-Identifier: Apache-2.0
// Prints the resolved run file and the reference page from the table of fields.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/config/fields.h"
#include "engine/config/validate.h"

namespace slipstream {
namespace {

std::string table_of(const std::string& key) { return key.substr(0, key.rfind('.')); }
std::string name_in_table(const std::string& key) { return key.substr(key.rfind('.') + 1); }

std::string_view table_sentence(std::string_view table) {
  static constexpr std::pair<std::string_view, std::string_view> kSentences[] = {
      {"model", "The model to train."},
      {"model.experts",
       "A mixture of experts in place of the feed-forward network of some layers. A router chooses the experts of each "
       "token."},
      {"data", "Training and validation data."},
      {"train", "Length of the run, batch sizes, precision and logging."},
      {"optimizer",
       "Update of the weights. The learning rate rises linearly from 0 over warmup_steps and then follows schedule."},
      {"parallel", "Division of the work among ranks. The launcher sets the number of ranks."},
      {"zero", "ZeRO: data ranks divide state among them instead of keeping copies."},
      {"overlap", "Communication that runs while compute runs."},
      {"pipeline", "Pipeline schedule and the layers of each stage."},
      {"comm", "Communication between ranks."},
      {"comm.emulate", "A slower link than the real one, to measure overlap on one machine. It uses no CPU core."},
      {"device", "Devices, threads and GPU settings."},
      {"checkpoint", "Checkpoints, final weights, and snapshots in memory."},
      {"trace", "A timeline of some steps, one file per rank, for Perfetto."},
      {"output", "Results of the run."},
  };
  for (const auto& [name, sentence] : kSentences) {
    if (name == table) return sentence;
  }
  return "";
}

/// Returns a paragraph of Markdown in lines of at most 120 columns.
std::string wrapped(std::string_view text) {
  constexpr size_t kColumns = 120;
  std::string out;
  while (text.size() > kColumns) {
    const size_t space = text.rfind(' ', kColumns);
    if (space == std::string_view::npos) break;
    out += std::string(text.substr(0, space)) + "\n";
    text.remove_prefix(space + 1);
  }
  return out + std::string(text);
}

/// Calls `begin(table)` before the first field of every table and `row(field)` for every field.
template <typename Begin, typename Row>
void walk(Begin begin, Row row) {
  std::string table;
  for (const Field<RunConfig>& field : run_fields()) {
    if (table_of(field.key) != table) {
      table = table_of(field.key);
      begin(table);
    }
    row(field);
  }
}

}  // namespace

std::string field_text(const RunConfig& config, std::string_view key) {
  for (const Field<RunConfig>& field : run_fields()) {
    if (field.key == key) return to_toml(field.get(config));
  }
  throw InternalError("field_text: there is no key '{}'", key);
}

std::string config_toml(const RunConfig& config) {
  std::string out = "# Every key of this run, as the program resolved it. This file can be used as a run file.\n";
  walk([&](const std::string& table) { out += fmt::format("\n[{}]\n", table); },
       [&](const Field<RunConfig>& field) {
         out += fmt::format("{} = {}\n", name_in_table(field.key), to_toml(field.get(config)));
       });
  return out;
}

std::string config_reference_markdown() {
  std::string out =
      "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
      "# Keys of a run file\n\n"
      "Generated from `engine/config/fields.cpp`; a test compares this page with the program.\n\n" +
      wrapped(
          "A run file is TOML in UTF-8. Every key is optional. `--set table.key=value` on the command line overrides "
          "the file, and the file overrides these defaults. Sizes are strings with a unit (B, kB, MB, GB, TB, KiB, "
          "MiB, GiB, TiB), as are rates (bit/s to Tbit/s, B/s to TB/s) and times (ns, us, ms, s, min). The program "
          "refuses unknown keys, wrong types and values out of range with exit code 2.") +
      "\n";
  const RunConfig defaults;
  walk(
      [&](const std::string& table) {
        out += fmt::format("\n## [{}]\n\n{}\n\n| Key | Default | Needs | Meaning |\n|---|---|---|---|\n", table,
                           wrapped(table_sentence(table)));
      },
      [&](const Field<RunConfig>& field) {
        out += fmt::format("| `{}` | `{}` | {} | {} |\n", name_in_table(field.key), to_toml(field.get(defaults)),
                           field.need, field.sentence);
      });
  out +=
      "\n## Not supported yet\n\n"
      "The program refuses other values of these keys with exit code 2.\n\n"
      "| Key | What to do |\n|---|---|\n";
  for (const SupportedRow& row : supported_rows()) out += fmt::format("| `{}` | {} |\n", row.key, row.remedy);
  return out;
}

}  // namespace slipstream
