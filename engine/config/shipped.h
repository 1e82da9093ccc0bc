// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machine files, run files and sweeps that come with the program. They are found by name from any folder.

#include <string>
#include <string_view>
#include <vector>

namespace slipstream {

/// Returns the first of these folders that exists, or an empty text: $SLIPSTREAM_DATA, the data folder beside the
/// installed program, the checkout around a build folder, or the data folder of the configured prefix. The folder has
/// `configs` and `scripts`.
const std::string& shipped_folder();

/// Returns the names of the shipped files of one kind, `machines`, `runs` or `software`, sorted. Reads the folder.
std::vector<std::string> shipped_names(std::string_view kind);

/// Returns `text` itself if it is a path: it exists here, or has a slash or an ending. Otherwise returns the path of
/// the shipped file of this name. `wanted` is the expected kind of file, for errors. Throws: ConfigError with the names
/// if there is no such file.
std::string path_or_shipped(const std::string& text, std::string_view kind, std::string_view wanted);

}  // namespace slipstream
