// SPDX-License-Identifier: Apache-2.0
// Guesses where a long document can be split, encodes all parts at once, and corrects wrong guesses in order.

#include "engine/data/datasets/document_parts.h"

#include <algorithm>
#include <atomic>
#include <exception>

#include "engine/base/check.h"
#include "engine/base/parallel.h"
#include "engine/base/units.h"
#include "engine/data/datasets/text_input.h"

namespace slipstream::data {
namespace {

constexpr int64_t kPartBytes = kMiB / 2;
constexpr size_t kGuessBytes = 16 << 10;    // the text that is encoded to guess a cut
constexpr size_t kContextBytes = 64 << 10;  // the text after a part on which the part's ids may depend

/// A part, before and after its encoding.
struct Job {
  std::string_view text;  // from the part to the end of the document or of the region; or a JSON line
  bool whole = true;      // `text` reaches the end of its document
  int64_t stop = -1;      // the byte of `text` at which the next part begins; -1: at its end
  int64_t end = 0;        // the bytes of the file before what follows a document
  std::string problem;    // the problem of a JSON line
  int64_t done = 0;       // the bytes of `text` that are encoded
  DocumentPart part;
  std::exception_ptr error;
};

void encode(const Tokenizer& tokenizer, std::string_view text, bool whole, Job& job) {
  job.part.ids.clear();
  job.done = tokenizer.encode_window(
      {.text = text, .first = job.part.first, .last = whole, .begin = job.part.begin, .stop = job.stop},
      [&](std::span<const int32_t> ids, int64_t) { job.part.ids.insert(job.part.ids.end(), ids.begin(), ids.end()); });
}

/// Returns a position after `from` at which the text can probably be split, because the tokens after it do not depend
/// on the tokens before it. Returns 0 if there is none.
size_t likely_cut(const Tokenizer& tokenizer, std::string_view text, size_t from) {
  while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
  size_t cut = 0;
  try {
    tokenizer.encode_window({.text = text.substr(from, kGuessBytes), .first = false, .last = false, .stop = 1024},
                            [&](std::span<const int32_t>, int64_t bytes) { cut += static_cast<size_t>(bytes); });
  } catch (const DataError&) {
    return 0;  // the encoding of the part reports the error
  }
  return cut == 0 ? 0 : from + cut;
}

/// Adds the parts of one document, or of the beginning of a document whose end is not read yet.
void add_document(const Tokenizer& tokenizer, std::string_view text, bool whole, int64_t begin, bool first,
                  std::vector<Job>& jobs) {
  for (;;) {
    Job job;
    job.text = text;
    job.whole = whole;
    job.part.begin = begin;
    job.part.first = first;
    size_t cut = 0;
    if (std::ssize(text) > 2 * kPartBytes) cut = likely_cut(tokenizer, text, static_cast<size_t>(kPartBytes));
    if (cut > 0) job.stop = static_cast<int64_t>(cut);
    job.part.last = whole && cut == 0;
    jobs.push_back(std::move(job));
    if (cut == 0) return;
    text.remove_prefix(cut);
    begin += static_cast<int64_t>(cut);
    first = false;
  }
}

/// Returns the number of bytes at the beginning of a text that continue a character of the text before it. Pure.
size_t continued(std::string_view text) {
  size_t size = 0;
  while (size < std::min<size_t>(3, text.size()) && (static_cast<unsigned char>(text[size]) & 0xc0) == 0x80) ++size;
  return size;
}

/// Checks that the bytes are text. A character that two parts share belongs to the first one.
void require_text_of(const Job& job, const Tokenizer& tokenizer) {
  std::string_view text = job.text;
  if (job.stop >= 0) {
    const auto stop = static_cast<size_t>(job.stop);
    text = text.substr(0, stop + continued(text.substr(std::min(stop, text.size()))));
  }
  const size_t before = job.part.first ? 0 : continued(text);
  require_text(text.substr(before), job.part.begin + static_cast<int64_t>(before), tokenizer.ids_are_bytes(),
               job.whole);
}

class Encoder {
 public:
  Encoder(const files::ReadBytes& read, const Tokenizer& tokenizer, const DocumentOptions& options)
      : read_(read), tokenizer_(tokenizer), options_(options), pool_(options.threads) {}

  DocumentCount run(DocumentPlace place, const std::function<void(const DocumentPart&, int64_t)>& take) {
    const int64_t usual_bytes = 4 * kPartBytes * options_.threads;
    int64_t region_bytes = usual_bytes;
    for (place_ = place, begin_ = place.byte;;) {
      fill(region_bytes);
      if (region_.empty()) return count_;
      jobs_.clear();
      if (options_.json_lines)
        add_lines();
      else
        add_documents();
      encode_all();
      for (Job& job : jobs_)
        if (!pass_on(job, take)) break;
      // A document or a word that does not fit into the region needs a larger region.
      region_bytes = place_.byte > begin_ ? usual_bytes : 2 * std::ssize(region_);
    }
  }

 private:
  /// The region begins at place_ and ends after about `size_bytes`, or with the text.
  void fill(int64_t size_bytes) {
    const size_t done = static_cast<size_t>(place_.byte - begin_), kept = bytes_.size() - done;
    const size_t size = std::max(static_cast<size_t>(size_bytes), kept);
    std::string bytes(size + 1, '\0');  // one byte more than the region shows whether the text continues
    bytes_.copy(bytes.data(), kept, done);
    bytes.resize(kept + static_cast<size_t>(read_(bytes.data() + kept, static_cast<int64_t>(size + 1 - kept))));
    bytes_ = std::move(bytes);
    begin_ = place_.byte;
    region_ = std::string_view(bytes_).substr(0, size);
    last_region_ = region_.size() == bytes_.size();
  }

  void add_lines() {
    std::string_view rest = region_;
    int64_t begin = place_.byte;
    while (!rest.empty()) {
      const size_t found = rest.find('\n');
      if (found == std::string_view::npos && !last_region_) return;
      const std::string_view line = rest.substr(0, found);
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      Job job;
      job.text = line;
      job.part.begin = begin;
      begin = begin_ + std::ssize(region_) - std::ssize(rest);
      job.end = begin;
      if (line.find_first_not_of(" \t\r") != std::string_view::npos)
        jobs_.push_back(std::move(job));
      else if (jobs_.empty())
        place_.byte = begin;  // an empty line
      else
        jobs_.back().end = begin;
    }
  }

  void add_documents() {
    std::string_view rest = region_;
    const std::string& separator = options_.separator;
    int64_t begin = place_.byte;
    bool first = place_.first;
    while (!rest.empty()) {
      const size_t found = separator.empty() ? std::string_view::npos : rest.find(separator);
      if (found == std::string_view::npos) {
        // A separator may begin at the end of the region.
        if (!last_region_ && !separator.empty()) rest.remove_suffix(std::min(rest.size(), separator.size() - 1));
        if (!rest.empty()) add_document(tokenizer_, rest, last_region_, begin, first, jobs_);
        return;
      }
      const bool empty = found == 0 && first;
      if (!empty) add_document(tokenizer_, rest.substr(0, found), true, begin, first, jobs_);
      rest.remove_prefix(found + separator.size());
      begin += static_cast<int64_t>(found + separator.size());
      first = true;
      if (jobs_.empty())
        place_ = {begin, true};
      else
        jobs_.back().end = begin;
    }
  }

  /// Encodes all jobs with all threads. The encoding of a part of a long document reads only the part and its context.
  void encode_all() {
    std::atomic<size_t> next = 0;
    pool_.parallel_for(pool_.threads(), 1, [&](int64_t, int64_t) {
      for (size_t i = 0; (i = next.fetch_add(1)) < jobs_.size();) {
        Job& job = jobs_[i];
        try {
          if (options_.json_lines) {
            JsonLine line = read_json_line(job.text, job.part.begin, options_.text_key);
            job.part.replaced = line.replaced;
            job.part.skipped = !line.problem.empty();
            job.problem = std::move(line.problem);
            if (!job.part.skipped) encode(tokenizer_, line.text, true, job);
            continue;
          }
          if (!options_.takes_any_bytes) require_text_of(job, tokenizer_);
          const size_t seen =
              job.stop < 0 ? job.text.size() : std::min(job.text.size(), static_cast<size_t>(job.stop) + kContextBytes);
          encode(tokenizer_, job.text.substr(0, seen), job.whole && seen == job.text.size(), job);
        } catch (...) {
          job.error = std::current_exception();
        }
      }
    });
  }

  /// Returns false if the rest needs a region that begins at place_.
  bool pass_on(Job& job, const std::function<void(const DocumentPart&, int64_t)>& take) {
    if (job.error) std::rethrow_exception(job.error);
    DocumentPart& part = job.part;
    if (options_.json_lines) {
      count_.add({.text = {}, .replaced = part.replaced, .problem = job.problem}, part.begin, options_.path);
      place_ = {job.end, true};
      take(part, place_.byte);
      return true;
    }
    if (!part.first && place_.byte != part.begin) {
      const int64_t late = place_.byte - part.begin;
      if (late < 0) return false;
      if (job.stop >= 0 && late >= job.stop) return true;
      // The previous part ended after the guessed position.
      job.text.remove_prefix(static_cast<size_t>(late));
      part.begin += late;
      if (job.stop >= 0) job.stop -= late;
      encode(tokenizer_, job.text, job.whole, job);
    } else if (job.done < job.stop) {
      encode(tokenizer_, job.text, job.whole, job);  // the context was too short
    }
    part.last = job.whole && job.done == std::ssize(job.text);
    if (job.done == 0 && !part.last) return false;
    place_ = part.last ? DocumentPlace{std::max(job.end, part.begin + job.done), true}
                       : DocumentPlace{part.begin + job.done, false};
    take(part, place_.byte);
    return part.last || job.done >= job.stop;
  }

  const files::ReadBytes& read_;
  const Tokenizer& tokenizer_;
  const DocumentOptions& options_;
  ThreadPool pool_;
  DocumentCount count_;
  DocumentPlace place_;
  std::string bytes_;        // bytes that were read and are not done
  int64_t begin_ = 0;        // the position of `bytes_` in the text
  std::string_view region_;  // a prefix of `bytes_`
  bool last_region_ = false;
  std::vector<Job> jobs_;
};

}  // namespace

DocumentCount encode_documents(const files::ReadBytes& read, const Tokenizer& tokenizer, const DocumentOptions& options,
                               DocumentPlace place,
                               const std::function<void(const DocumentPart& part, int64_t done)>& take) {
  return Encoder(read, tokenizer, options).run(place, take);
}

}  // namespace slipstream::data
