// SPDX-License-Identifier: Apache-2.0
// Fuzzes the reader of manifests.

#include "engine/checkpoint/manifest.h"

#include "engine/base/hash.h"
#include "tests/fuzz/targets.h"

namespace slipstream::fuzz {
namespace {

constexpr std::string_view kHead = R"({"xxh3":")", kMiddle = R"(","manifest":)", kTail = "}\n";
constexpr size_t kHashDigits = 32;

/// The content of a manifest with its hash; an input of another form is the content.
std::string with_right_hash(std::string_view input) {
  const size_t around = kHead.size() + kHashDigits + kMiddle.size();
  std::string_view body = input;
  if (input.starts_with(kHead) && input.size() >= around + kTail.size())
    body = input.substr(around, input.size() - around - kTail.size());
  const std::string hash = data::xxh3_128_hex(body.data(), static_cast<int64_t>(body.size()));
  return fmt::format("{}{}{}{}{}", kHead, hash, kMiddle, body, kTail);
}

Outcome read(std::string_view text) {
  return outcome_of(text.size(), [&] {
    const checkpoint::Manifest manifest = checkpoint::parse_manifest(text, "manifest.json");
    must_succeed([&] {
      require(checkpoint::parse_manifest(checkpoint::text_of(manifest), "manifest.json") == manifest,
              "the manifest differs from the one that its text gives");
    });
  });
}

}  // namespace

Outcome manifest(std::string_view input) {
  const Outcome as_it_is = read(input);
  return as_it_is.accepted ? as_it_is : first_of({as_it_is, read(with_right_hash(input))});
}

}  // namespace slipstream::fuzz

SLIP_FUZZ_ENTRY(slipstream::fuzz::manifest);
