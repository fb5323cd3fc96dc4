// Text of a model, cut into pieces in several ways: what the parsers make of it is the same in sum,
// and none of it is lost but tags, white space and the frames of calls.
#include <string>
#include <vector>

#include "daemon/openai/output_parser.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::daemon::openai {
namespace {

using fuzz::Require;

struct Sum {
  std::string reasoning;
  std::string content;
  std::vector<std::string> calls;

  void Add(const ParsedOutput& out) {
    reasoning += out.reasoning;
    content += out.content;
    for (const ToolCallPiece& piece : out.calls) {
      Require(piece.index <= calls.size(), "calls out of order");
      Require((piece.index == calls.size()) == !piece.name.empty(), "a name comes first and once");
      if (piece.index == calls.size()) calls.emplace_back();
      calls[piece.index] += piece.name + piece.arguments;
    }
  }
  bool operator==(const Sum& other) const {
    return reasoning == other.reasoning && content == other.content && calls == other.calls;
  }
};

Sum Parse(const OutputShape& shape, ReasoningMode mode, absl::string_view text, size_t piece_size) {
  const auto parser = MakeOutputParser(shape, mode);
  Sum sum;
  for (size_t i = 0; i < text.size(); i += piece_size) {
    ParsedOutput out;
    parser->Feed(text.substr(i, piece_size), &out);
    sum.Add(out);
  }
  ParsedOutput out;
  parser->Finish(&out);
  sum.Add(out);
  Require(parser->num_calls() == sum.calls.size(), "num_calls");
  Require(sum.reasoning.size() + sum.content.size() <= text.size(), "text out of nothing");
  return sum;
}

}  // namespace
}  // namespace pagoda::daemon::openai

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda::daemon::openai;
  static const OutputShape kShapes[] = {
      {}, {.tools = {"f", "g"}}, {.forced_tool = "f"}, {.requires_calls = true}};
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  for (const OutputShape& shape : kShapes) {
    for (const ReasoningMode mode :
         {ReasoningMode::kNone, ReasoningMode::kAuto, ReasoningMode::kOpen}) {
      const Sum whole = Parse(shape, mode, text, text.size() + 1);
      for (const size_t piece_size : {1, 2, 7}) {
        pagoda::fuzz::Require(Parse(shape, mode, text, piece_size) == whole,
                              "the cuts change what comes out");
      }
    }
  }
  return 0;
}
