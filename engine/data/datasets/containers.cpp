// SPDX-License-Identifier: Apache-2.0
// One row per container: the bytes that identify it, its name, and the command that converts it.

#include "engine/data/datasets/containers.h"

#include <fmt/core.h>

#include "engine/base/files.h"

namespace slipstream::data {
namespace {

using namespace std::string_view_literals;

struct Container {
  std::string_view bytes;
  size_t at;  // the position of the bytes in the file
  std::string_view name;
  std::string_view command;  // FILE stands for the path
};

constexpr Container kContainers[] = {
    {"\x1f\x8b\x08"sv, 0, "a gzip file", "gzip -dk FILE"},
    {"\x28\xb5\x2f\xfd"sv, 0, "a Zstandard file", "zstd -dk FILE"},
    {"\xfd\x37zXZ\0"sv, 0, "an xz file", "xz -dk FILE"},
    {"1AY&SY"sv, 4, "a bzip2 file", "bzip2 -dk FILE"},
    {"\x04\x22\x4d\x18"sv, 0, "an LZ4 file", "lz4 -dk FILE"},
    {"PK\3\4"sv, 0, "a zip archive", "unzip FILE"},
    {"7z\xbc\xaf\x27\x1c"sv, 0, "a 7z archive", "7z x FILE"},
    {"ustar"sv, 257, "a tar archive", "tar -xf FILE"},
    {"PAR1"sv, 0, "a Parquet file",
     "python3 -c 'import pandas; pandas.read_parquet(FILE).to_json(\"text.jsonl\", orient=\"records\", lines=True)'"},
    {"ARROW1"sv, 0, "an Arrow file",
     "python3 -c 'import pandas; pandas.read_feather(FILE).to_json(\"text.jsonl\", orient=\"records\", lines=True)'"},
    {"\xff\xff\xff\xff"sv, 0, "an Arrow stream",
     "python3 -c 'import datasets; datasets.Dataset.from_file(FILE).to_json(\"text.jsonl\")'"},
    {"\x93NUMPY"sv, 0, "a NumPy array",
     "python3 -c 'import numpy; numpy.load(FILE).astype(\"uint32\").tofile(\"ids.bin\")', with data.format = "
     "\"nanogpt-uint32\""},
    {"%PDF-"sv, 0, "a PDF", "pdftotext FILE text.txt"},
    {"\xff\xfe\0\0"sv, 0, "a text in UTF-32", "iconv -f UTF-32 -t UTF-8 FILE > text.txt"},
    {"\xff\xfe"sv, 0, "a text in UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > text.txt"},
    {"\xfe\xff"sv, 0, "a text in UTF-16", "iconv -f UTF-16 -t UTF-8 FILE > text.txt"},
};

bool has_at(std::string_view first_bytes, size_t at, std::string_view bytes) {
  return first_bytes.size() >= at && first_bytes.substr(at).starts_with(bytes);
}

}  // namespace

Packing packing_of(std::string_view first_bytes) {
  if (first_bytes.starts_with("\x1f\x8b\x08"sv)) return Packing::gzip;
  // Files of pzstd and of the seekable format begin with a frame that decoders skip.
  const bool skipped = has_at(first_bytes, 1, "\x2a\x4d\x18"sv) && (first_bytes[0] & 0xf0) == 0x50;
  return skipped || first_bytes.starts_with("\x28\xb5\x2f\xfd"sv) ? Packing::zstd : Packing::none;
}

std::string container_of(std::string_view first_bytes, const std::string& path) {
  for (const Container& row : kContainers) {
    if (!has_at(first_bytes, row.at, row.bytes)) continue;
    std::string command(row.command);
    if (const size_t at = command.find("FILE"); at != std::string::npos) command.replace(at, 4, files::shown(path));
    return fmt::format("{} is {}, not a text. Convert it: {}", files::shown(path), row.name, command);
  }
  return "";
}

}  // namespace slipstream::data
