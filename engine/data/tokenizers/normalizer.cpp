// SPDX-License-Identifier: Apache-2.0
// Normalizes texts. Only this file includes utf8proc.

#include "engine/data/tokenizers/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "engine/base/check.h"
#include "engine/base/utf8.h"

namespace slipstream::data {
namespace {

utf8proc_option_t options_of(NormalForm form) {
  const int compose = form == NormalForm::nfc || form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  const int compatible = form == NormalForm::nfkc || form == NormalForm::nfkd ? UTF8PROC_COMPAT : 0;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | compose | compatible);
}

/// Returns true if no normal form can change the text. The test is quick and returns false for some texts that are
/// normal.
bool surely_normal(std::string_view text, NormalForm form) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const CodePoint point = next_code_point(text, at);
    at += static_cast<size_t>(point.size_bytes);
    if (form == NormalForm::nfc && point.value < 0x300) continue;
    const utf8proc_property_t* property = ::utf8proc_get_property(static_cast<utf8proc_int32_t>(point.value));
    const bool hangul =
        point.value >= 0x1100 && (point.value < 0x1200 || (point.value >= 0xac00 && point.value < 0xd7a4));
    if (hangul || property->combining_class != 0 || property->decomp_seqindex != UINT16_MAX ||
        property->comb_index != UINT16_MAX)
      return false;
  }
  return true;
}

std::string in_form(std::string_view text, NormalForm form) {
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t size = ::utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               static_cast<utf8proc_ssize_t>(text.size()), &result, options_of(form));
  if (size < 0) throw DataError("[data] a text cannot be normalized: {}. Check the text.", ::utf8proc_errmsg(size));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(result, &std::free);
  return {reinterpret_cast<const char*>(result), static_cast<size_t>(size)};
}

bool ends_alone(char c) { return c == ' ' || c == '\n'; }

}  // namespace

void Normalizer::apply(std::string_view input, bool begins, NormalizedText& out) const {
  out.changed.clear();
  out.places.clear();
  const bool prefixed = begins && !prefix.empty() && !input.empty();
  const bool formed = form != NormalForm::none && !surely_normal(input, form);
  out.same = !prefixed && !formed && replacements.empty();
  if (out.same) {
    out.text = input;
    return;
  }
  // No normal form changes a space or a line break, and neither combines with the text before it.
  std::string mapped;
  const auto add = [&](std::string_view part, size_t begin) {
    if (formed) {
      mapped = in_form(part, form);
      part = mapped;
    }
    if (begin > 0) out.places.emplace_back(out.changed.size(), begin);
    if (replacements.empty()) {
      out.changed += part;
      return;
    }
    for (size_t at = 0; at < part.size();) {
      const auto found = std::find_if(replacements.begin(), replacements.end(),
                                      [&](const auto& pair) { return part.substr(at).starts_with(pair.first); });
      if (found == replacements.end()) {
        out.changed += part[at++];
        continue;
      }
      out.changed += found->second;
      at += found->first.size();
    }
  };
  if (prefixed) out.changed = prefix;
  size_t begin = 0;
  for (size_t at = 1; at < input.size(); ++at) {
    if (!ends_alone(input[at])) continue;
    add(input.substr(begin, at - begin), begin);
    begin = at;
  }
  if (!input.empty()) add(input.substr(begin), begin);
  out.text = out.changed;
}

std::string Normalizer::apply(std::string_view input) const {
  NormalizedText out;
  apply(input, true, out);
  return std::string(out.text);
}

}  // namespace slipstream::data
