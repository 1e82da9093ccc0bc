// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machine files, run files and sweeps that come with the program, found by name from any folder.

#include <string>
#include <string_view>
#include <vector>

namespace slipstream {

/// The folder with `configs`, `sweeps` and `scripts`: $SLIPSTREAM_DATA, the data folder beside the installed program,
/// the checkout around a build folder, or the data folder of the configured prefix, the first that exists. Empty: none.
const std::string& shipped_folder();

/// The names of the shipped files of one kind, `machines`, `runs` or `software`, sorted. Reads the folder.
std::vector<std::string> shipped_names(std::string_view kind);

/// `text` itself if it is a path: it exists here, or has a slash or an ending. Else the path of the shipped file of
/// this name. `wanted`: the expected kind of file, for errors. Throws: ConfigError with the names if there is none.
std::string path_or_shipped(const std::string& text, std::string_view kind, std::string_view wanted);

}  // namespace slipstream
