#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::engine {

// Configuration files are a few kilobytes; an index of a very large model is a few megabytes.
inline constexpr uint64_t kMaxJsonFileBytes = uint64_t{64} << 20;

// Reads a whole regular file. NOT_FOUND when there is none, INVALID_ARGUMENT when it is no regular
// file or longer than `max_bytes`, PERMISSION_DENIED when it cannot be read; the message names the
// file.
absl::StatusOr<std::string> ReadSmallFile(absl::string_view path,
                                          uint64_t max_bytes = kMaxJsonFileBytes);

// Reads a file whose top level is a JSON object. A key that occurs twice in one object is refused:
// readers differ in which of the two they take.
absl::StatusOr<nlohmann::json> ReadJsonObject(absl::string_view path);

// `value` as JSON, cut to what fits a message.
std::string JsonForMessage(const nlohmann::json& value);

// `name` with control characters escaped, cut to what fits a message.
std::string NameForMessage(absl::string_view name);

}  // namespace pagoda::engine
