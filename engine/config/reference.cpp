// SPDX-License-Identifier: Apache-2.0
// What is written from the table of fields: the resolved run file and the reference page.

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
      {"model", "What is trained."},
      {"data", "What it is trained on."},
      {"train", "How long and in which portions."},
      {"optimizer",
       "How weights move. The learning rate rises linearly from 0 over warmup_steps and falls along a cosine to "
       "min_learning_rate at decay_steps."},
      {"parallel", "How ranks divide the work. The number of ranks comes from the launcher, never from the file."},
      {"zero", "What data ranks share out instead of keeping copies."},
      {"overlap", "How communication hides behind compute."},
      {"pipeline", "How pipeline stages take turns."},
      {"comm", "What travels between ranks, and how."},
      {"comm.emulate", "A slower link than the real one, without using a core, to see overlap on one machine."},
      {"device", "Where the mathematics runs."},
      {"checkpoint", "What is kept on disk."},
      {"trace", "A timeline of some steps, one file per rank, for Perfetto."},
      {"output", "Where results go."},
  };
  for (const auto& [name, sentence] : kSentences) {
    if (name == table) return sentence;
  }
  return "";
}

/// A paragraph of Markdown in lines of at most 120 columns.
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
  std::string out = "# Every key of this run, as the program resolved it. It is a run file itself.\n";
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
          "the "
          "file, and the file overrides the defaults here. Sizes are texts with a unit (B, kB, MB, GB, TB, KiB, MiB, "
          "GiB, TiB), as are rates (bit/s to Tbit/s, B/s to TB/s) and times (ns, us, ms, s, min). Unknown keys, wrong "
          "types and values out of range are refused with exit code 2.") +
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
      "These keys exist, and values other than the ones named here are refused with exit code 2.\n\n"
      "| Key | What to do |\n|---|---|\n";
  for (const SupportedRow& row : supported_rows()) out += fmt::format("| `{}` | {} |\n", row.key, row.remedy);
  return out;
}

}  // namespace slipstream
