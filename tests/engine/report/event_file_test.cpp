// SPDX-License-Identifier: Apache-2.0
// CRC32C against the vectors of RFC 3720. tests/cli/live_metrics_test.py reads whole files.

#include "engine/report/event_file.h"

#include "tests/test.hpp"

using namespace slipstream;

TEST_CASE("CRC32C has the values of RFC 3720, appendix B.4", "[metrics]") {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(crc32c(std::string(32, '\xFF')) == 0x62A8AB43);
  CHECK(crc32c(rising) == 0x46DD794E);
  CHECK(crc32c(falling) == 0x113FDB5C);
  CHECK(crc32c("123456789") == 0xE3069283);
  CHECK(crc32c("") == 0);
}

TEST_CASE("a record has its length, the length's sum, the event and the event's sum", "[metrics]") {
  const std::string record = event_file_head(1.5);
  // The event is double 1 (wall time), varint 2 (step), text 3 (version).
  const std::string event = std::string("\x09\0\0\0\0\0\0\xF8\x3F\x10\0\x1A\x0D", 13) + "brain.Event:2";
  REQUIRE(record.size() == 8 + 4 + event.size() + 4);
  CHECK(record.substr(0, 8) == std::string("\x1A\0\0\0\0\0\0\0", 8));
  CHECK(record.substr(12, event.size()) == event);
  // The mask follows the definition of TensorFlow's record format: the sum is rotated by 15 bits, and a constant is
  // added.
  const auto masked = [](uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U; };
  const auto number = [&](size_t at) {
    uint32_t value = 0;
    for (size_t byte = 0; byte < 4; ++byte) value |= uint32_t{static_cast<uint8_t>(record[at + byte])} << (8 * byte);
    return value;
  };
  CHECK(number(8) == masked(crc32c(record.substr(0, 8))));
  CHECK(number(12 + event.size()) == masked(crc32c(event)));
}
