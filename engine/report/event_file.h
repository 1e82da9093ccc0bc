// SPDX-License-Identifier: Apache-2.0
#pragma once
// Records of a TensorBoard event file: the few protobuf fields of scalars, in TFRecord frames with masked CRC32C.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace slipstream {

/// Returns the CRC32C (Castagnoli, RFC 3720) that TFRecord uses before masking. Pure.
uint32_t crc32c(std::string_view bytes);

/// Returns the first record of a file. `wall_s`: seconds since 1970. Pure.
std::string event_file_head(double wall_s);

/// Returns the record of a step without the values that are absent. Pure.
std::string scalars_record(double wall_s, int64_t step,
                           const std::vector<std::pair<std::string_view, std::optional<double>>>& values);

/// Returns a record after which readers forget the scalars of `step` and of later steps, because the run begins there
/// again. Pure.
std::string restart_record(double wall_s, int64_t step);

}  // namespace slipstream
