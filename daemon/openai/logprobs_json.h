#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "pagoda/v1/inference.pb.h"

// Log-probabilities in OpenAI's two shapes.
namespace pagoda::daemon::openai {

using Positions = std::vector<const v1::TokenLogprobs*>;

// The token's text; "token_id:7" where the model has no tokenizer.
std::string TokenText(const v1::Logprob& token);

// {"tokens":[...],"token_logprobs":[...],"top_logprobs":[...],"text_offset":[...]}. Offsets count
// characters of the choice's text from *offset on, which moves past these.
void AppendCompletionLogprobs(const Positions& positions, int64_t* offset, std::string* json);

// {"content":[{"token":...,"logprob":...,"bytes":[...],"top_logprobs":[...]}],"refusal":null}
void AppendChatLogprobs(const Positions& positions, std::string* json);

// [null,{"11":{"logprob":...,"rank":...,"decoded_token":...}}]: those of a prompt.
void AppendPromptLogprobs(const Positions& positions, std::string* json);

}  // namespace pagoda::daemon::openai
