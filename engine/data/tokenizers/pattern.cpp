// SPDX-License-Identifier: Apache-2.0
// Translates patterns to PCRE2 and matches them. Only this file includes PCRE2.

#include "engine/data/tokenizers/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream::data {
namespace {

constexpr size_t kPatternBytesMax = 16384;
constexpr uint32_t kStepsMax = 10'000'000;
constexpr size_t kJitStackBytes = 1 << 20;

/// The property White_Space. PCRE2's own \s also contains U+180E.
constexpr std::string_view kSpaces =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kNotSpaces =
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}";

[[noreturn]] void refuse(const std::string& where, std::string_view text, const std::string& problem) {
  throw DataError("[data] {} is the pattern {}: {}. Use another tokenizer, or token shards of this one.", where,
                  files::shown(text), problem);
}

bool is_plain(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/// Returns the same pattern for PCRE2. Refuses every construct that is not known to mean the same there.
std::string translated(std::string_view text, const std::string& where) {
  if (text.empty() || text.size() > kPatternBytesMax)
    refuse(where, text, fmt::format("it has {} bytes, need 1 to {}", text.size(), kPatternBytesMax));
  std::string out;
  bool in_class = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const std::string_view rest = text.substr(at);
    if (c == '\\') {
      if (rest.size() < 2) refuse(where, text, "it ends with a backslash");
      const char next = rest[1];
      ++at;
      if (next == 's' || next == 'S') {
        const std::string_view set = next == 's' ? kSpaces : kNotSpaces;
        out += in_class ? std::string(set) : fmt::format("[{}]", set);
      } else if (is_plain(next) && std::string_view("pPdDrntfvxz").find(next) == std::string_view::npos) {
        refuse(where, text, fmt::format("\\{} is not supported", next));
      } else if (next == 'v') {
        out += "\\x{b}";  // in PCRE2, \v is a class
      } else {
        out += rest.substr(0, 2);
      }
      continue;
    }
    if (in_class) {
      if (c == ']') in_class = false;
      if (c == '[') refuse(where, text, "a [ inside a class is not supported");
      if (rest.starts_with("&&")) refuse(where, text, "&& inside a class is not supported");
    } else if (c == '[') {
      in_class = true;
      if (rest.starts_with("[]") || rest.starts_with("[^]")) refuse(where, text, "an empty class is not supported");
    } else if (c == '^' || c == '$') {
      refuse(where, text, fmt::format("the anchor {} is not supported", c));
    } else if (c == '(' && rest.starts_with("(*")) {
      refuse(where, text, "(* is not supported");
    } else if (c == '(' && rest.starts_with("(?")) {
      const bool known = rest.starts_with("(?:") || rest.starts_with("(?i:") || rest.starts_with("(?!") ||
                         rest.starts_with("(?=") || rest.starts_with("(?>");
      if (!known) refuse(where, text, fmt::format("the group {} is not supported", files::printable(rest, 4)));
    }
    out += c;
  }
  return out;
}

std::string message_of(int code) {
  unsigned char text[256] = {};
  ::pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Pattern::State {
  std::string text, where;
  pcre2_code* code = nullptr;
  bool jit = false;

  ~State() { ::pcre2_code_free(code); }
};

Pattern::Pattern(std::string_view text, const std::string& where) : state_(std::make_unique<State>()) {
  state_->text = text;
  state_->where = where;
  const std::string ours = translated(text, where);
  int error = 0;
  size_t at = 0;
  state_->code = ::pcre2_compile(reinterpret_cast<PCRE2_SPTR>(ours.data()), ours.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  if (state_->code == nullptr) refuse(where, text, fmt::format("it cannot be compiled ({})", message_of(error)));
  uint32_t references = 0, empty = 0;
  ::pcre2_pattern_info(state_->code, PCRE2_INFO_BACKREFMAX, &references);
  ::pcre2_pattern_info(state_->code, PCRE2_INFO_MATCHEMPTY, &empty);
  if (references > 0) refuse(where, text, "references to groups are not supported");
  if (empty > 0) refuse(where, text, "it matches the empty text");
  state_->jit = ::pcre2_jit_compile(state_->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

const std::string& Pattern::text() const { return state_->text; }

struct Pattern::Matcher::State {
  const Pattern::State* pattern = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  ~State() {
    ::pcre2_match_data_free(data);
    ::pcre2_jit_stack_free(stack);
    ::pcre2_match_context_free(context);
  }
};

Pattern::Matcher::Matcher(const Pattern& pattern) : state_(std::make_unique<State>()) {
  state_->pattern = pattern.state_.get();
  state_->data = ::pcre2_match_data_create(1, nullptr);
  state_->context = ::pcre2_match_context_create(nullptr);
  state_->stack = ::pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr);
  if (state_->data == nullptr || state_->context == nullptr)
    throw ResourceError("[data] no memory for matching a pattern. Free memory.");
  if (state_->stack != nullptr) ::pcre2_jit_stack_assign(state_->context, nullptr, state_->stack);
  ::pcre2_set_match_limit(state_->context, kStepsMax);
}

Pattern::Matcher::~Matcher() = default;
Pattern::Matcher::Matcher(Matcher&&) noexcept = default;

bool has_possessive_interval(std::string_view text) {
  for (size_t at = 0; (at = text.find("}+", at)) != std::string_view::npos; ++at) {
    const size_t open = text.substr(0, at).rfind('{');
    if (open != std::string_view::npos && open + 1 < at &&
        text.substr(open + 1, at - open - 1).find_first_not_of("0123456789,") == std::string_view::npos)
      return true;
  }
  return false;
}

Match Pattern::Matcher::find(std::string_view text, size_t from, bool last) {
  const Pattern::State& pattern = *state_->pattern;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const uint32_t options = last ? 0 : PCRE2_PARTIAL_HARD;
  int result = PCRE2_ERROR_JIT_STACKLIMIT;
  if (pattern.jit)
    result = ::pcre2_jit_match(pattern.code, subject, text.size(), from, options, state_->data, state_->context);
  if (result == PCRE2_ERROR_JIT_STACKLIMIT)
    result = ::pcre2_match(pattern.code, subject, text.size(), from, options | PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                           state_->data, state_->context);
  if (result == PCRE2_ERROR_NOMATCH) return {};
  const size_t* place = ::pcre2_get_ovector_pointer(state_->data);
  if (result == PCRE2_ERROR_PARTIAL) return {Match::Kind::open, place[0], text.size()};
  if (result < 0)
    throw DataError(
        "[data] {} is the pattern {}: matching it fails ({}) {} bytes into a text. Use another tokenizer, or shorter "
        "lines.",
        pattern.where, files::shown(pattern.text), message_of(result), from);
  return {Match::Kind::full, place[0], place[1]};
}

}  // namespace slipstream::data
