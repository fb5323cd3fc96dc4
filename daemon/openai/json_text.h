#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

// JSON that is written by hand: a stream's event is a few dozen bytes of which most never change.
namespace pagoda::daemon::openai {

// Appends a JSON string. What is not valid UTF-8 becomes U+FFFD, by the maximal-subpart rule.
void AppendString(absl::string_view text, std::string* json);

// Appends a number: the shortest text that reads back as the same float. JSON has neither
// infinities nor NaN; log-probabilities below kLeastLogprob are told as that.
inline constexpr float kLeastLogprob = -9999.0f;
void AppendLogprob(float logprob, std::string* json);

void AppendInteger(int64_t value, std::string* json);

// Appends `,` unless `json` ends where a first member or element may stand.
void AppendComma(std::string* json);

}  // namespace pagoda::daemon::openai
