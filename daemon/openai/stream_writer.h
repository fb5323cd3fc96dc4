#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/openai/logprobs_json.h"
#include "daemon/openai/response_shape.h"
#include "daemon/openai/stop_logprobs.h"
#include "daemon/openai/thought_counter.h"
#include "pagoda/v1/inference.pb.h"

namespace pagoda::daemon::openai {

// Turns the messages of one call into the server-sent events of OpenAI's streams.
// Thread-compatible: the thread that owns the call.
class StreamWriter {
 public:
  // `shape` outlives the writer. Choices are numbered from `first_choice`.
  StreamWriter(const ResponseShape* shape, uint32_t first_choice, uint32_t num_choices);

  // Appends what the message says; nothing for what clients are told otherwise.
  void Append(const v1::StreamGenerateResponse& message, std::string* out);
  const UsageTotals& usage() const { return usage_; }

 private:
  struct Choice {
    explicit Choice(const ResponseShape& shape)
        : logprobs(shape.max_stop_bytes), thoughts(shape.tokenizer), parser(ParserOf(shape)) {}

    int64_t text_offset = 0;
    uint64_t num_tokens = 0;
    bool has_echoed = false;
    HeldLogprobs logprobs;
    ThoughtCounter thoughts;
    std::unique_ptr<OutputParser> parser;  // null: text is only text
  };

  void AppendStarted(std::string* out);
  void AppendDelta(const v1::Delta& delta, std::string* out);
  void AppendText(uint32_t index, const v1::Delta& delta, std::string* out);
  void AppendParsed(uint32_t index,
                    const ParsedOutput& parsed,
                    const v1::Delta* delta,
                    std::string* out);
  void AppendFinished(const v1::Finished& finished, std::string* out);
  // The event around a choice: its start up to the choice's first members, and its end.
  void BeginEvent(uint32_t index, std::string* out) const;
  void EndEvent(uint32_t index, std::string* out) const;
  // Those that are ready, else null.
  void AppendLogprobs(uint32_t index, std::string* out);
  // Before anything else of the choice: the prompt's log-probabilities, once.
  void Echo(Choice* choice);

  const ResponseShape& shape_;
  const uint32_t first_choice_;
  const std::string head_;  // what every event begins with
  std::vector<Choice> choices_;
  // Of the prompt, for every choice's first text.
  google::protobuf::RepeatedPtrField<v1::TokenLogprobs> echoed_;
  UsageTotals usage_;
  uint64_t num_prompt_tokens_ = 0;
};

// The event that tells the usage of a whole stream, and its last one.
std::string UsageEvent(const ResponseShape& shape, const UsageTotals& usage);
extern const char kDoneEvent[];
// An error after the stream has begun.
std::string ErrorEvent(absl::string_view error_json);
// What a stream says while it has nothing to say; parsers skip comments.
extern const char kHeartbeat[];

}  // namespace pagoda::daemon::openai
