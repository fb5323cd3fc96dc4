#include "engine/model/json_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

constexpr size_t kMaxMessageChars = 120;
// Deeper nesting than any real configuration has.
constexpr int kMaxJsonDepth = 64;

absl::Status OpenError(absl::string_view path, int error) {
  const std::string message = absl::StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  return absl::UnavailableError(message);
}

std::string Cut(std::string text) {
  if (text.size() > kMaxMessageChars) {
    text.resize(kMaxMessageChars);
    text += "...";
  }
  return text;
}

// Follows the parser and keeps the keys of every open object.
class ParseGuard {
 public:
  using Event = nlohmann::json::parse_event_t;

  bool operator()(int depth, Event event, nlohmann::json& parsed) {
    if (!problem_.empty()) return false;
    if (depth > kMaxJsonDepth) Fail("is nested too deeply");
    if (event == Event::object_start) {
      keys_.emplace_back();
    } else if (event == Event::object_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_.back().insert(key).second) {
        Fail(absl::StrCat("has the key '", NameForMessage(key), "' twice in one object"));
      }
    }
    return problem_.empty();
  }

  const std::string& problem() const { return problem_; }

 private:
  void Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
  }

  std::vector<std::set<std::string>> keys_;
  std::string problem_;
};

}  // namespace

absl::StatusOr<std::string> ReadSmallFile(absl::string_view path, uint64_t max_bytes) {
  // O_NONBLOCK: a pipe in place of a file must not stop the start.
  const int fd = open(std::string(path).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return OpenError(path, errno);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return OpenError(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
  }
  const uint64_t size_bytes = static_cast<uint64_t>(info.st_size);
  if (size_bytes > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", size_bytes, " bytes; expected at most ", max_bytes, " in such a file"));
  }
  std::string content(size_bytes, '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = read(fd, content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OpenError(path, errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  content.resize(done);
  return content;
}

absl::StatusOr<nlohmann::json> ReadJsonObject(absl::string_view path) {
  PAGODA_ASSIGN_OR_RETURN(const std::string content, ReadSmallFile(path));
  // The parser takes a zero byte for the end of its input.
  if (content.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not valid JSON: has a zero byte"));
  }
  ParseGuard guard;
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(
        content, [&guard](int depth, ParseGuard::Event event, nlohmann::json& parsed) {
          return guard(depth, event, parsed);
        });
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is not valid JSON: ", Cut(absl::CHexEscape(error.what()))));
  }
  if (!guard.problem().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", guard.problem()));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is ", JsonForMessage(value), "; expected a JSON object"));
  }
  return value;
}

std::string JsonForMessage(const nlohmann::json& value) {
  return Cut(value.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace));
}

std::string NameForMessage(absl::string_view name) {
  return Cut(absl::CHexEscape(name.substr(0, 4 * kMaxMessageChars)));
}

}  // namespace pagoda::engine
