// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scores weights: the perplexity of a text, and questions whose answer is the likeliest of some endings.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/data_format.h"

namespace slipstream::runtime {

/// A question and its possible continuations.
struct Question {
  std::string context;
  std::vector<std::string> endings;  // each one follows the context
  int64_t answer = 0;                // the index of the right ending
};

/// Reads questions, one JSON object per line, in the published forms of HellaSwag (ctx, endings, label) and ARC
/// (question.stem, question.choices[].text and .label, answerKey). HellaSwag's context is ctx; ARC's is "Question: STEM
/// Answer:" on two lines. A space precedes every ending. Pure. `source` names the text in errors. Throws: DataError
/// with the line and the key of the first question that has another form.
std::vector<Question> read_questions(const std::string& text, const std::string& source);

struct EvalOptions {
  std::string checkpoint;                     // a folder of weights, or a run folder
  std::string text;                           // the file of a text, or "-"; empty: `choices` is set
  DataFormat format = DataFormat::automatic;  // for the text; text: it may be JSON, or have bytes that are no text
  std::string choices;                        // the file of questions; empty: `text` is set
  int64_t context = 0;                        // the tokens of a sequence; 0: the model's context
  int64_t stride = 0;                         // the tokens between the beginnings of sequences of the text; 0: context
  int64_t batch = 4;                          // the sequences at a time
  std::string device = "auto";                // auto | cpu | cuda
  bool json = false;                          // print one JSON object instead of lines
};

/// Blocks. Prints the perplexity of the text, or the share of right answers. Returns the exit code.
/// Throws: ConfigError, CheckpointError, DataError, ResourceError.
int evaluate(const EvalOptions& options);

}  // namespace slipstream::runtime
