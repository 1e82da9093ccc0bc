// SPDX-License-Identifier: Apache-2.0
#pragma once
// Makes tokenizers by name, from files, and from what was saved beside shards and weights.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/data/tokenizers/tokenizer.h"

namespace slipstream::data {

/// The file beside saved weights that restores the tokenizer.
inline constexpr const char* kTokenizerFile = "slipstream_tokenizer.json";

/// Blocks. Returns true if `name` is the file of a tokenizer, NAME.json or NAME.tiktoken, or a folder.
bool names_tokenizer_file(std::string_view name);

/// Blocks. Reads a tokenizer.json with the files beside it (engine/data/tokenizers/merge_tokenizer.h), a tiktoken file
/// (engine/data/tokenizers/tiktoken.h), or a folder as load_tokenizer() does. Throws: DataError.
std::shared_ptr<const Tokenizer> load_tokenizer_file(const std::string& path);

/// Makes the tokenizer that the run file names. "chars" takes its vocabulary from all of `texts`, so that every
/// character in them has an id. Blocks as `texts` do. Throws: ConfigError if `name` is unknown; DataError if a text is
/// not UTF-8, or as load_tokenizer_file().
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::span<const ForPieces> texts);

/// Does the same for one text in memory. Pure.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view name, std::string_view text);

/// Restores a tokenizer from its name, vocabulary() and vocab_size() (0: unknown). `where` names their source in
/// errors. For a name that is neither bytes nor chars, the result has no knows_text(). Pure. Throws: DataError for an
/// inconsistent description: missing, repeated or unsorted characters, a wrong number of ids, or a name alone.
std::shared_ptr<const Tokenizer> restore_tokenizer(std::string_view name, std::span<const std::string> vocabulary,
                                                   int64_t vocab_size, std::string_view where);

/// Returns the files that restore a tokenizer, by name: kTokenizerFile and hugging_face_files(). Pure.
HuggingFaceFiles write_tokenizer(const Tokenizer& tokenizer);

/// Blocks. Reads the output of write_tokenizer() from a folder, or the tokenizer.json of another program.
/// Throws: DataError.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& folder);

}  // namespace slipstream::data
