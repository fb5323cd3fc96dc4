#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace pagoda::daemon::openai {

// An error as OpenAI's clients expect it: their classes follow the status, people read the message.
struct HttpError {
  int status = 500;
  std::string type;   // "invalid_request_error", ...
  std::string code;   // "model_not_found", ...; empty: null
  std::string param;  // the field as the client knows it; empty: null
  std::string message;
  // Clients wait so long before they try again.
  absl::optional<absl::Duration> retry_after;
  // Whether trying again can help; told to clients where the status would mislead them.
  bool worth_retrying = false;

  // {"error":{"message":...,"type":...,"param":...,"code":...}}
  std::string ToJson() const;
};

// What a client is told of a status made by rpc_error.h or the engine; fields by their names here.
// `form_field`: the name of the field that gave the output its form, if one did.
HttpError ToHttpError(const absl::Status& status, absl::string_view form_field = "");

// Errors that only HTTP has.
HttpError MalformedRequestError(absl::string_view what);
HttpError RequestTooLargeError(size_t most_bytes);
HttpError HeadersTooLargeError(size_t most_bytes);
HttpError SlowRequestError();
HttpError UnknownRouteError(absl::string_view method, absl::string_view path);
HttpError WrongMethodError(absl::string_view method, absl::string_view allowed);
HttpError WrongContentTypeError();
HttpError NotImplementedError(absl::string_view what);
// 503 and 429, worth trying again soon.
HttpError TooManyConnectionsError();
HttpError TooManyBodiesError();

// "sampling.top_p" -> "top_p", "prompt.chat.messages[1].role" -> "messages[1].role".
std::string FieldNameOf(absl::string_view path);

}  // namespace pagoda::daemon::openai
