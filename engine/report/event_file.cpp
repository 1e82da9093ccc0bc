// SPDX-License-Identifier: Apache-2.0
// Encodes TensorBoard events. For seven fields, a protobuf library is not worth a dependency.

#include "engine/report/event_file.h"

#include <array>
#include <bit>

namespace slipstream {
namespace {

// The fields of the messages Event, Summary, Summary.Value and SessionLog.
enum EventField : uint32_t { wall_time = 1, step_number = 2, file_version = 3, summary = 5, session_log = 7 };
enum SummaryField : uint32_t { value_field = 1 };
enum ValueField : uint32_t { tag = 1, simple_value = 2 };
enum SessionLogField : uint32_t { status = 1 };
constexpr uint64_t kSessionStart = 1;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82F63B78U & (0U - (crc & 1U)));
    table[byte] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xA282EAD8U; }

template <typename T>
void put_fixed(std::string& out, T value) {
  for (size_t byte = 0; byte < sizeof(T); ++byte) out += static_cast<char>(value >> (8 * byte) & 0xFF);
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  out += static_cast<char>(value);
}

void put_integer(std::string& out, uint32_t field, uint64_t value) {
  put_varint(out, field << 3 | 0);
  put_varint(out, value);
}

void put_text(std::string& out, uint32_t field, std::string_view text) {
  put_varint(out, field << 3 | 2);
  put_varint(out, text.size());
  out += text;
}

std::string event_of(double wall_s, int64_t step) {
  std::string event;
  put_varint(event, EventField::wall_time << 3 | 1);
  put_fixed(event, std::bit_cast<uint64_t>(wall_s));
  put_integer(event, EventField::step_number, static_cast<uint64_t>(step));
  return event;
}

std::string framed(const std::string& event) {
  std::string record;
  put_fixed(record, uint64_t{event.size()});
  put_fixed(record, masked(crc32c(record)));
  record += event;
  put_fixed(record, masked(crc32c(event)));
  return record;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

std::string event_file_head(double wall_s) {
  std::string event = event_of(wall_s, 0);
  put_text(event, EventField::file_version, "brain.Event:2");
  return framed(event);
}

std::string scalars_record(double wall_s, int64_t step,
                           const std::vector<std::pair<std::string_view, std::optional<double>>>& values) {
  std::string all;
  for (const auto& [name, number] : values) {
    if (!number) continue;
    std::string value;
    put_text(value, ValueField::tag, name);
    put_varint(value, ValueField::simple_value << 3 | 5);
    put_fixed(value, std::bit_cast<uint32_t>(static_cast<float>(*number)));
    put_text(all, SummaryField::value_field, value);
  }
  std::string event = event_of(wall_s, step);
  put_text(event, EventField::summary, all);
  return framed(event);
}

std::string restart_record(double wall_s, int64_t step) {
  std::string log;
  put_integer(log, SessionLogField::status, kSessionStart);
  std::string event = event_of(wall_s, step);
  put_text(event, EventField::session_log, log);
  return framed(event);
}

}  // namespace slipstream
