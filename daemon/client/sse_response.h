#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace pagoda::daemon {

// Reads one HTTP/1.1 response as it comes: its head, then its body, of which the data of
// server-sent events is given out event by event where it has that type. Gives the same however the
// bytes are cut. Thread-compatible.
class SseResponse {
 public:
  // Takes bytes of the response and no more; returns how many it took. Data of complete events is
  // appended to `events`.
  size_t Feed(absl::string_view bytes, std::vector<std::string>* events);
  // The connection has ended.
  void FinishInput();

  // 0 until the head has come.
  int status() const { return is_head_read_ ? status_ : 0; }
  bool is_complete() const { return stage_ == Stage::kComplete; }
  // It is no HTTP, or ended early.
  bool is_broken() const { return stage_ == Stage::kBroken; }
  // Whether another request may follow on the connection.
  bool keeps_connection() const { return keeps_connection_ && is_complete(); }
  // Of a response without events.
  const std::string& body() const { return body_; }

 private:
  enum class Stage : uint8_t {
    kStatusLine,
    kHeaders,
    kSizedBody,
    kChunkSize,
    kChunk,
    kChunkEnd,
    kTrailers,
    kBodyToEnd,  // of the connection
    kComplete,
    kBroken
  };

  void TakeLine(absl::string_view line);
  void TakeStatusLine(absl::string_view line);
  void TakeHeader(absl::string_view line);
  void BeginBody();
  void TakeBody(absl::string_view bytes, std::vector<std::string>* events);
  void TakeEventLine(absl::string_view line, std::vector<std::string>* events);

  Stage stage_ = Stage::kStatusLine;
  std::string line_;  // the start of one that has not ended
  int status_ = 0;
  bool is_head_read_ = false;
  bool is_chunked_ = false;
  bool is_events_ = false;
  bool has_length_ = false;
  bool keeps_connection_ = true;
  uint64_t num_left_ = 0;  // bytes of the body, or of its chunk
  std::string body_;       // where there are events: the start of a line
  std::string data_;       // of the event
  bool has_data_ = false;
};

}  // namespace pagoda::daemon
