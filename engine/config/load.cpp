// SPDX-License-Identifier: Apache-2.0
// Applies a run file and the command line to the defaults.

#include "engine/config/load.h"

#include <cctype>

#include "engine/base/files.h"
#include "engine/base/utf8.h"
#include "engine/config/defaults.h"
#include "engine/config/fields.h"
#include "engine/config/shipped.h"
#include "engine/config/toml.h"
#include "engine/config/validate.h"

namespace slipstream {
namespace {

const Field<RunConfig>* find_field(const std::string& key) {
  for (const Field<RunConfig>& field : run_fields()) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

/// Returns the value after the "=": TOML if it parses as the field's kind, else the text itself.
ConfigValue value_of_set(const Field<RunConfig>* field, const std::string& text) {
  const bool wants_text = field && field->is_text;
  // A text in TOML begins with a quote. This shortcut matters because searches set words many thousand times.
  if (wants_text && !text.empty() && std::isalnum(static_cast<unsigned char>(text[0]))) return text;
  const auto value = parse_toml_value(text);
  if (!value || (wants_text && !std::holds_alternative<std::string>(*value))) return text;
  return *value;
}

void apply_set(RunConfig& config, const std::string& set) {
  const size_t equals = set.find('=');
  const std::string shown = files::printable(set, 200);
  if (valid_utf8_prefix(set) != set.size()) throw ConfigError("--set: a value is not UTF-8. Write it in UTF-8.");
  if (equals == std::string::npos || equals == 0)
    throw ConfigError("--set {}: needs KEY=VALUE, for example --set train.steps=100.", shown);
  const std::string key = set.substr(0, equals);
  set_field(run_fields(), config, "--set " + shown + ":", key, value_of_set(find_field(key), set.substr(equals + 1)));
}

}  // namespace

WrittenRun load_written_run(const std::string& path, const std::vector<std::string>& sets,
                            const KeysOfModel& keys_of_model) {
  const auto written_over = [&](RunConfig config) {
    if (!path.empty()) {
      const char* const wanted = "a run file, for example configs/runs/quickstart.toml";
      set_fields(run_fields(), config, read_toml(path_or_shipped(path, "runs", wanted), wanted));
    }
    for (const std::string& set : sets) apply_set(config, set);
    return config;
  };
  RunConfig config = written_over({});
  if (!config.model.init.empty() && keys_of_model) {
    RunConfig of_model;
    for (const std::string& key : keys_of_model(config)) apply_set(of_model, key);
    config = written_over(std::move(of_model));
  }
  return {std::move(config)};
}

RunConfig load_run_config(const std::string& path, const std::vector<std::string>& sets,
                          const KeysOfModel& keys_of_model) {
  return with_sets(load_written_run(path, sets, keys_of_model), {});
}

RunConfig with_sets(const WrittenRun& written, const std::vector<std::string>& sets) {
  RunConfig config = written.keys;
  for (const std::string& set : sets) apply_set(config, set);
  config = resolve_defaults(std::move(config));
  validate(config);
  return config;
}

}  // namespace slipstream
