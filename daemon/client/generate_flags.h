#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "pagoda/v1/inference.pb.h"

namespace CLI {
class App;
}

namespace pagoda::daemon {

// Every field of a request as a flag. Absent flags stay absent in the request.
struct GenerateFlags {
  // Prompt.
  std::optional<std::string> prompt;  // "-": standard input
  std::vector<uint32_t> token_ids;
  bool chat = false;
  std::string system;
  std::string messages_file;
  std::string tools_file;
  bool no_generation_prompt = false;
  bool continue_final_message = false;
  std::optional<std::string> template_arguments;  // "@FILE": from a file
  bool no_special_tokens = false;
  bool parse_special_tokens = false;
  std::optional<uint32_t> truncate_prompt_tokens;
  // Sampling.
  std::optional<float> temperature, top_p, min_p, typical_p;
  std::optional<float> repetition_penalty, frequency_penalty, presence_penalty;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // ID=VALUE
  std::vector<uint32_t> allowed_token_ids;
  std::vector<std::string> bad_words;
  std::optional<std::string> json_schema, regex, grammar;  // "@FILE": from a file
  bool json_object = false;
  std::vector<std::string> choices;
  std::optional<uint32_t> beam_width, ngram_draft_tokens;
  std::optional<float> length_penalty;
  bool early_stopping = false;
  // Stopping.
  std::optional<uint32_t> max_tokens, min_tokens;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  bool include_stop = false;
  bool ignore_eos = false;
  // Output.
  std::optional<uint32_t> n, best_of;
  std::optional<int32_t> logprobs, prompt_logprobs;
  std::string logprobs_mode;
  bool echo = false;
  bool keep_special_tokens = false;
  bool omit_text = false;
  // Request.
  std::string request_id;
  std::string model;
  std::optional<int32_t> priority;
  std::string cache_salt;
};

void AddGenerateFlags(CLI::App& command, GenerateFlags* flags);
// Those of a chat whose messages come later.
void AddChatFlags(CLI::App& command, GenerateFlags* flags);

// Fills a GenerateRequest or a StreamGenerateRequest, which have the same fields. INVALID_ARGUMENT
// naming the flag for what cannot be sent; ranges are the daemon's to check.
template <typename Request>
absl::Status BuildRequest(const GenerateFlags& flags, Request* request);

}  // namespace pagoda::daemon
