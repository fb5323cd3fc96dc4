#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace pagoda::engine {

// Deeper values than this are refused: no tool or message needs them, and what reads them recurses.
inline constexpr int kMaxChatJsonDepth = 64;
// Likewise more members in all its objects, whose keys are compared one by one.
inline constexpr int kMaxChatJsonMembers = 10'000;

// Parses JSON that a client wrote, keeping the order of members. INVALID_ARGUMENT saying why not.
absl::StatusOr<nlohmann::ordered_json> ParseChatJson(absl::string_view text);

}  // namespace pagoda::engine
