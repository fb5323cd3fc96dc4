#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace pagoda::e2e {

struct HttpResponse {
  int status = 0;                              // 0: the connection ended before one came
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  bool Has(const std::string& name) const { return headers.count(name) > 0; }
  std::string Header(const std::string& name) const;
  // Null when the body is no JSON.
  nlohmann::json Json() const;
  // error.param, error.message, ... of an error; empty when null.
  std::string Error(const char* member) const;
};

// A connection to a port of 127.0.0.1 by plain sockets, which shares no code with the server. What
// does not come within 30 s counts as never. Thread-compatible.
class HttpClient {
 public:
  // `receive_bytes`: the size of the kernel's buffer; 0: its own.
  explicit HttpClient(int port, int receive_bytes = 0);
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool Send(absl::string_view bytes);
  // `headers`: lines that end in CRLF.
  bool Get(absl::string_view path, absl::string_view headers = "");
  bool Post(absl::string_view path,
            absl::string_view body,
            absl::string_view headers = "Content-Type: application/json\r\n");

  // The next response, whole. `has_body`: false after HEAD.
  HttpResponse Read(bool has_body = true);
  // The head of the next one; then ReadEvent until it returns "".
  HttpResponse ReadHead();
  // An event without its blank line, such as "data: {...}" or ": working".
  std::string ReadEvent();
  // Whether the server ends the connection within the time, sending nothing more.
  bool Ends(absl::Duration timeout);

  // Half of the connection, and all of it.
  void EndSending();
  void Close();

 private:
  bool Fill();
  std::string Take(size_t size);
  std::string TakeLine();
  // A chunk of a chunked body; empty: the last.
  std::string TakeChunk();

  int fd_ = -1;
  std::string buffer_;
  std::string events_;  // of the stream, not given out yet
  bool is_chunked_ = false;
};

// One request on a connection of its own.
HttpResponse HttpPost(int port, absl::string_view path, const nlohmann::json& body);
HttpResponse HttpGet(int port, absl::string_view path, absl::string_view headers = "");

// A stream, which must begin with status 200 and end with [DONE]; comments left out.
std::vector<nlohmann::json> HttpStream(int port, absl::string_view path, nlohmann::json body);

}  // namespace pagoda::e2e
