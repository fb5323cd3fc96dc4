#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "daemon/openai/generation_request.h"
#include "daemon/openai/output_parser.h"
#include "engine/text/tokenizer.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon::openai {

// What all objects of one response have in common.
struct ResponseShape {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string id;
  std::string model;
  int64_t created = 0;  // Unix seconds
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool echo = false;
  bool logprobs = false;
  // Bytes of the longest stop string, where the text leaves out the one that matches; 0: none does.
  size_t max_stop_bytes = 0;
  OutputShape output;
  ReasoningMode reasoning = ReasoningMode::kAuto;
  // Counts thoughts' tokens; null: they are not counted. Outlives the response.
  const engine::Tokenizer* tokenizer = nullptr;
};

struct UsageTotals {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t reasoning_tokens = 0;

  // One sequence's; the prompt counts with the first of its sequences.
  void Add(const v1::Usage& usage, bool counts_prompt);
  void Add(const UsageTotals& other);
};

// {"prompt_tokens":...,...}
void AppendUsage(const UsageTotals& usage, std::string* json);

// `{"id":...,"object":...,"created":...,"model":...`, without an end. `object` is that of a
// stream's chunk or of a whole response.
void AppendHead(const ResponseShape& shape, bool chunk, std::string* json);

// "stop", "length" or "tool_calls"; empty when the sequence did not end by itself.
absl::string_view FinishReasonOf(v1::FinishReason reason, bool has_calls);

// `,"stop_reason":...`: the stop string or id that matched, else null.
void AppendStopReason(const v1::Finished& finished, std::string* json);

// [1,2,3]
void AppendIds(const google::protobuf::RepeatedField<uint32_t>& ids, std::string* json);

// "call_..." of a choice's n-th call.
std::string ToolCallId(const ResponseShape& shape, uint32_t choice, size_t call);

// The parser of a choice; null where its text is only text.
std::unique_ptr<OutputParser> ParserOf(const ResponseShape& shape);

}  // namespace pagoda::daemon::openai
