#pragma once

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "nlohmann/json.hpp"

// What the subcommands that work on a model directory without a daemon have in common: they answer
// arguments, or one line of JSON with one line of JSON.
namespace pagoda::daemon {

using Json = nlohmann::ordered_json;
using Answer = absl::FunctionRef<absl::StatusOr<Json>(const Json& question)>;

// The directory of MODEL: a directory, or ORG/NAME from the local Hugging Face cache.
absl::StatusOr<std::string> FindModelDirectory(const std::string& model);

// Answers every line of standard input until its end: the answer, or {"error": why}. An ExitCode.
int AnswerLines(Answer answer);
// Answers one question from arguments; what is wrong with it goes to standard error. An ExitCode.
int AnswerOnce(Answer answer, const Json& question);
// Says on standard error what is wrong with the model or the command line; returns exit_code.
int Fail(const absl::Status& status, int exit_code);

// A member of a question; INVALID_ARGUMENT naming it when it has another type.
absl::StatusOr<bool> BoolMember(const Json& question, const char* key, bool otherwise);
// Null: absent or null. The same of a type that Json names ("array", ...).
absl::StatusOr<const Json*> Member(const Json& question, const char* key, Json::value_t type);

}  // namespace pagoda::daemon
