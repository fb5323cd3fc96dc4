#include "tests/e2e/http_client.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace pagoda::e2e {
namespace {

using nlohmann::json;

constexpr absl::Duration kPatience = absl::Seconds(30);

void SetReceiveTimeout(int fd, absl::Duration timeout) {
  const timeval time = absl::ToTimeval(timeout);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
}

}  // namespace

std::string HttpResponse::Header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

json HttpResponse::Json() const {
  json value = json::parse(body, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? json() : value;
}

std::string HttpResponse::Error(const char* member) const {
  const json value = Json();
  if (!value.is_object() || !value.contains("error") || !value["error"].contains(member)) return "";
  return value["error"][member].is_string() ? value["error"][member].get<std::string>() : "";
}

HttpClient::HttpClient(int port, int receive_bytes)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_bytes > 0)
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Close();
  SetReceiveTimeout(fd_, kPatience);
}

bool HttpClient::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool HttpClient::Get(absl::string_view path, absl::string_view headers) {
  return Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n", headers, "\r\n"));
}

bool HttpClient::Post(absl::string_view path, absl::string_view body, absl::string_view headers) {
  return Send(
      absl::StrCat(
          "POST ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ", body.size(), "\r\n") +
      absl::StrCat(headers, "\r\n", body));
}

bool HttpClient::Fill() {
  char bytes[16384];
  const ssize_t size = recv(fd_, bytes, sizeof(bytes), 0);
  if (size <= 0) return false;
  buffer_.append(bytes, static_cast<size_t>(size));
  return true;
}

std::string HttpClient::Take(size_t size) {
  while (buffer_.size() < size) {
    if (!Fill()) break;
  }
  std::string taken = buffer_.substr(0, size);
  buffer_.erase(0, size);
  return taken;
}

std::string HttpClient::TakeLine() {
  size_t end;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!Fill()) return "";
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return line;
}

std::string HttpClient::TakeChunk() {
  size_t size = 0;
  if (!absl::SimpleHexAtoi(TakeLine(), &size)) return "";
  std::string chunk = Take(size);
  TakeLine();
  return chunk;
}

HttpResponse HttpClient::ReadHead() {
  HttpResponse response;
  const std::string status = TakeLine();
  if (!absl::StartsWith(status, "HTTP/1.1 ")) return response;
  EXPECT_TRUE(absl::SimpleAtoi(status.substr(9, 3), &response.status)) << status;
  for (std::string line = TakeLine(); !line.empty(); line = TakeLine()) {
    const size_t colon = line.find(':');
    const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
    EXPECT_EQ(response.headers.count(name), 0u) << line;
    response.headers[name] = std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  is_chunked_ = response.Header("transfer-encoding") == "chunked";
  events_.clear();
  return response;
}

HttpResponse HttpClient::Read(bool has_body) {
  HttpResponse response = ReadHead();
  if (response.status == 0 || response.status == 204 || response.status == 100 || !has_body)
    return response;
  if (is_chunked_) {
    for (std::string chunk = TakeChunk(); !chunk.empty(); chunk = TakeChunk())
      response.body += chunk;
  } else {
    size_t size = 0;
    EXPECT_TRUE(absl::SimpleAtoi(response.Header("content-length"), &size));
    response.body = Take(size);
    EXPECT_EQ(response.body.size(), size);
  }
  return response;
}

std::string HttpClient::ReadEvent() {
  size_t end;
  while ((end = events_.find("\n\n")) == std::string::npos) {
    std::string more;
    if (is_chunked_) {
      more = TakeChunk();
    } else if (!buffer_.empty() || Fill()) {
      more = std::exchange(buffer_, "");
    }
    if (more.empty()) return "";
    events_ += more;
  }
  std::string event = events_.substr(0, end);
  events_.erase(0, end + 2);
  return event;
}

bool HttpClient::Ends(absl::Duration timeout) {
  SetReceiveTimeout(fd_, timeout);
  char byte;
  const ssize_t size = buffer_.empty() ? recv(fd_, &byte, 1, 0) : 1;
  const bool ended = size == 0 || (size < 0 && errno == ECONNRESET);
  SetReceiveTimeout(fd_, kPatience);
  return ended;
}

void HttpClient::EndSending() { shutdown(fd_, SHUT_WR); }

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

HttpResponse HttpPost(int port, absl::string_view path, const json& body) {
  HttpClient client(port);
  EXPECT_TRUE(client.Post(path, body.dump()));
  return client.Read();
}

HttpResponse HttpGet(int port, absl::string_view path, absl::string_view headers) {
  HttpClient client(port);
  EXPECT_TRUE(client.Get(path, headers));
  return client.Read();
}

std::vector<json> HttpStream(int port, absl::string_view path, json body) {
  body["stream"] = true;
  HttpClient client(port);
  EXPECT_TRUE(client.Post(path, body.dump()));
  const HttpResponse head = client.ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(absl::StartsWith(head.Header("content-type"), "text/event-stream"));
  std::vector<json> events;
  bool done = false;
  for (std::string event = client.ReadEvent(); !event.empty(); event = client.ReadEvent()) {
    EXPECT_FALSE(done) << event;
    if (absl::StartsWith(event, ":")) continue;
    EXPECT_TRUE(absl::StartsWith(event, "data: ")) << event;
    done = event == "data: [DONE]";
    if (!done) events.push_back(json::parse(event.substr(6), nullptr, false));
  }
  EXPECT_TRUE(done);
  return events;
}

}  // namespace pagoda::e2e
