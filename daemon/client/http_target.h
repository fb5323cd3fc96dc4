#pragma once

#include <cstdint>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::daemon {

// A server of OpenAI's API, of this or another make.
struct HttpTarget {
  enum class Api { kCompletions, kChat };

  Api api = Api::kCompletions;
  std::string host;  // as in the URL, with its port
  std::string path;  // before "/completions", such as "/v1"
  std::string api_key;
  sockaddr_storage address{};
  socklen_t address_size = 0;

  const char* api_name() const { return api == Api::kChat ? "openai-chat" : "openai-completions"; }
};

// "http://HOST[:PORT][/PATH]", resolved; without a path it is "/v1". INVALID_ARGUMENT says what is
// wrong with it; UNAVAILABLE: there is no such host.
absl::StatusOr<HttpTarget> ParseHttpTarget(absl::string_view url);

// A POST of JSON to a route of the API, or a GET where `body` is empty.
std::string HttpRequestText(const HttpTarget& target,
                            absl::string_view route,
                            absl::string_view body);

// One call on a connection of its own: the body of a 200. UNAVAILABLE where nobody answers; else
// UNKNOWN with status and body.
absl::StatusOr<std::string> CallHttp(const HttpTarget& target,
                                     absl::string_view route,
                                     absl::string_view body);

}  // namespace pagoda::daemon
