#include "daemon/client/sse_response.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace pagoda::daemon {
namespace {

// No server has longer lines in its head.
constexpr size_t kMostLineBytes = 64 * 1024;

}  // namespace

size_t SseResponse::Feed(absl::string_view bytes, std::vector<std::string>* events) {
  size_t at = 0;
  while (at < bytes.size() && !is_complete() && !is_broken()) {
    const absl::string_view rest = bytes.substr(at);
    if (stage_ == Stage::kBodyToEnd) {
      TakeBody(rest, events);
      at = bytes.size();
    } else if (stage_ == Stage::kSizedBody || stage_ == Stage::kChunk) {
      const size_t size = static_cast<size_t>(std::min<uint64_t>(rest.size(), num_left_));
      TakeBody(rest.substr(0, size), events);
      at += size;
      num_left_ -= size;
      if (num_left_ > 0) break;
      stage_ = stage_ == Stage::kChunk ? Stage::kChunkEnd : Stage::kComplete;
    } else {
      const size_t end = rest.find('\n');
      const size_t size = end == absl::string_view::npos ? rest.size() : end;
      absl::StrAppend(&line_, rest.substr(0, size));
      at += size + (end == absl::string_view::npos ? 0 : 1);
      if (line_.size() > kMostLineBytes) stage_ = Stage::kBroken;
      if (end == absl::string_view::npos) break;
      const std::string line = std::exchange(line_, "");
      TakeLine(absl::StripSuffix(line, "\r"));
    }
  }
  return at;
}

void SseResponse::FinishInput() {
  if (is_complete()) return;
  keeps_connection_ = false;
  stage_ = stage_ == Stage::kBodyToEnd ? Stage::kComplete : Stage::kBroken;
}

void SseResponse::TakeLine(absl::string_view line) {
  switch (stage_) {
    case Stage::kStatusLine:
      return TakeStatusLine(line);
    case Stage::kHeaders:
      return line.empty() ? BeginBody() : TakeHeader(line);
    case Stage::kChunkSize: {
      // Extensions after a semicolon mean nothing.
      const absl::string_view size = line.substr(0, line.find(';'));
      if (!absl::SimpleHexAtoi(absl::StripAsciiWhitespace(size), &num_left_)) {
        stage_ = Stage::kBroken;
      } else {
        stage_ = num_left_ == 0 ? Stage::kTrailers : Stage::kChunk;
      }
      return;
    }
    case Stage::kChunkEnd:
      stage_ = line.empty() ? Stage::kChunkSize : Stage::kBroken;
      return;
    case Stage::kTrailers:
      if (line.empty()) stage_ = Stage::kComplete;
      return;
    default:
      stage_ = Stage::kBroken;
      return;
  }
}

void SseResponse::TakeStatusLine(absl::string_view line) {
  const bool is_http = absl::StartsWith(line, "HTTP/1.");
  if (!is_http || line.size() < 12 || !absl::SimpleAtoi(line.substr(9, 3), &status_)) {
    stage_ = Stage::kBroken;
    return;
  }
  if (absl::StartsWith(line, "HTTP/1.0")) keeps_connection_ = false;
  stage_ = Stage::kHeaders;
}

void SseResponse::TakeHeader(absl::string_view line) {
  const size_t colon = line.find(':');
  if (colon == absl::string_view::npos) return;
  const absl::string_view name = line.substr(0, colon);
  const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
  if (absl::EqualsIgnoreCase(name, "content-length")) {
    has_length_ = absl::SimpleAtoi(value, &num_left_);
  } else if (absl::EqualsIgnoreCase(name, "transfer-encoding")) {
    is_chunked_ = absl::EqualsIgnoreCase(value, "chunked");
  } else if (absl::EqualsIgnoreCase(name, "content-type")) {
    is_events_ = absl::StartsWithIgnoreCase(value, "text/event-stream");
  } else if (absl::EqualsIgnoreCase(name, "connection")) {
    keeps_connection_ = !absl::EqualsIgnoreCase(value, "close");
  }
}

void SseResponse::BeginBody() {
  if (status_ >= 100 && status_ < 200) {
    stage_ = Stage::kStatusLine;  // the response proper follows
    return;
  }
  is_head_read_ = true;
  if (status_ == 204 || status_ == 304) {
    stage_ = Stage::kComplete;
  } else if (is_chunked_) {
    stage_ = Stage::kChunkSize;
  } else if (has_length_) {
    stage_ = num_left_ == 0 ? Stage::kComplete : Stage::kSizedBody;
  } else {
    stage_ = Stage::kBodyToEnd;
    keeps_connection_ = false;
  }
}

void SseResponse::TakeBody(absl::string_view bytes, std::vector<std::string>* events) {
  absl::StrAppend(&body_, bytes);
  if (!is_events_) return;
  size_t begin = 0;
  for (size_t end; (end = body_.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const absl::string_view line = absl::string_view(body_).substr(begin, end - begin);
    TakeEventLine(absl::StripSuffix(line, "\r"), events);
  }
  body_.erase(0, begin);
}

void SseResponse::TakeEventLine(absl::string_view line, std::vector<std::string>* events) {
  if (line.empty()) {
    if (std::exchange(has_data_, false)) events->push_back(std::exchange(data_, ""));
    return;
  }
  if (!absl::ConsumePrefix(&line, "data:")) return;  // comments and other fields
  absl::ConsumePrefix(&line, " ");
  if (std::exchange(has_data_, true)) data_ += '\n';
  absl::StrAppend(&data_, line);
}

}  // namespace pagoda::daemon
