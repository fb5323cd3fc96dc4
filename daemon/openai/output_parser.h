#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "daemon/openai/output_shape.h"

// What a chat's text holds beside its answer: thoughts between tags, and calls of tools. Pure and
// incremental: however the text is cut into pieces, what comes out is the same in sum.
namespace pagoda::daemon::openai {

struct ToolCallPiece {
  size_t index = 0;
  std::string name;       // with the first piece of a call; then empty
  std::string arguments;  // what is added to the call's JSON text
};

// What a piece of text has added.
struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallPiece> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

// Where thoughts are looked for.
enum class ReasoningMode : uint8_t {
  kNone,
  kAuto,  // where the text begins with an opening tag
  kOpen,  // from the start: the template has opened the tag
};

class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // The next piece. What may be the start of a tag is kept back.
  virtual void Feed(absl::string_view text, ParsedOutput* out) = 0;
  // No more comes: gives out what was kept back.
  virtual void Finish(ParsedOutput* out) = 0;
  // Of tools, so far.
  virtual size_t num_calls() const = 0;
  // How much of the text so far is thoughts and their tags, and whether what follows may be.
  virtual size_t thought_bytes() const { return 0; }
  virtual bool may_think() const { return false; }
};

std::unique_ptr<OutputParser> MakeOutputParser(const OutputShape& shape, ReasoningMode reasoning);

}  // namespace pagoda::daemon::openai
