#include "kernels/base/log.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/mutex.h"

namespace pagoda {
namespace {

// PIPE_BUF on Linux: a write of at most this many bytes to a pipe is whole or nothing, so lines of
// several processes do not mix.
constexpr size_t kMaxLineBytes = 4096;
constexpr absl::string_view kCut = " ...\n";

std::atomic<LogLevel> g_min_level{LogLevel::kInfo};

absl::string_view LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug: ";
    case LogLevel::kInfo:
      return "";
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
  }
  return "";
}

void AppendEscaped(absl::string_view text, std::string* out) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out->append("\\n");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (byte < 0x20 || byte == 0x7f) {
      absl::StrAppendFormat(out, "\\x%02x", byte);
    } else {
      out->push_back(c);
    }
  }
}

std::string FormatLine(LogLevel level, absl::string_view line) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  tm utc;
  gmtime_r(&now.tv_sec, &utc);
  std::string out = absl::StrFormat("%04d-%02d-%02dT%02d:%02d:%02d.%03dZ pagoda: %s",
                                    utc.tm_year + 1900,
                                    utc.tm_mon + 1,
                                    utc.tm_mday,
                                    utc.tm_hour,
                                    utc.tm_min,
                                    utc.tm_sec,
                                    static_cast<int>(now.tv_nsec / 1'000'000),
                                    LevelName(level));
  AppendEscaped(line, &out);
  if (out.size() >= kMaxLineBytes) {
    size_t end = kMaxLineBytes - kCut.size();
    // Do not cut a UTF-8 character in two.
    while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xc0) == 0x80) --end;
    out.resize(end);
    out.append(kCut.data(), kCut.size());
  } else {
    out.push_back('\n');
  }
  return out;
}

// Keeps SIGPIPE from the calling thread while a write may raise it, without touching the process's
// handlers.
class ScopedSigpipeBlock {
 public:
  ScopedSigpipeBlock() {
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &old_mask_);
  }
  ~ScopedSigpipeBlock() {
    if (!was_pending_) {
      const timespec zero = {0, 0};
      while (sigtimedwait(&sigpipe_, nullptr, &zero) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
  }

 private:
  sigset_t sigpipe_;
  sigset_t old_mask_;
  bool was_pending_ = false;
};

// Standard error without waiting. O_NONBLOCK on descriptor 2 itself would change it for every
// process that shares the terminal or pipe, so a pipe or terminal is opened a second time, and a
// socket is told for each message. Thread-safe.
class StandardError {
 public:
  void Write(absl::string_view line) {
    MutexLock lock(&mutex_);
    const ScopedSigpipeBlock no_sigpipe;
    if (!Follow()) {
      ++num_dropped_;
      return;
    }
    if (num_dropped_ > 0) {
      const std::string notice =
          absl::StrCat("pagoda: ", num_dropped_, " log lines were dropped\n");
      if (!WriteWhole(notice)) {
        ++num_dropped_;
        return;
      }
      num_dropped_ = 0;
    }
    if (!WriteWhole(line)) ++num_dropped_;
  }

 private:
  // Looks where descriptor 2 leads now: it may have been redirected since the last line.
  bool Follow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    struct stat now;
    if (fstat(STDERR_FILENO, &now) != 0) return false;
    if (known_ && now.st_dev == device_ && now.st_ino == inode_) return true;
    if (own_fd_ >= 0) close(own_fd_);
    own_fd_ = -1;
    known_ = true;
    device_ = now.st_dev;
    inode_ = now.st_ino;
    is_socket_ = S_ISSOCK(now.st_mode);
    if (S_ISFIFO(now.st_mode) || S_ISCHR(now.st_mode)) {
      own_fd_ = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    }
    return true;
  }

  bool WriteWhole(absl::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ssize_t written = 0;
    do {
      if (is_socket_) {
        written = send(STDERR_FILENO, line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      } else if (own_fd_ >= 0) {
        written = write(own_fd_, line.data(), line.size());
      } else {
        pollfd ready = {STDERR_FILENO, POLLOUT, 0};
        if (poll(&ready, 1, 0) != 1 || (ready.revents & POLLOUT) == 0) return false;
        written = write(STDERR_FILENO, line.data(), line.size());
      }
    } while (written < 0 && errno == EINTR);
    return written > 0;
  }

  Mutex mutex_;
  bool known_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_socket_ ABSL_GUARDED_BY(mutex_) = false;
  dev_t device_ ABSL_GUARDED_BY(mutex_) = 0;
  ino_t inode_ ABSL_GUARDED_BY(mutex_) = 0;
  int own_fd_ ABSL_GUARDED_BY(mutex_) = -1;
  int64_t num_dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

StandardError& Stderr() {
  // Never destroyed: threads may log while the process exits.
  static auto* const standard_error = new StandardError;
  return *standard_error;
}

}  // namespace

bool SetLogLevel(absl::string_view name) {
  if (name == "debug") {
    g_min_level = LogLevel::kDebug;
  } else if (name == "info") {
    g_min_level = LogLevel::kInfo;
  } else if (name == "warning") {
    g_min_level = LogLevel::kWarning;
  } else if (name == "error") {
    g_min_level = LogLevel::kError;
  } else {
    return false;
  }
  return true;
}

void LogLine(LogLevel level, absl::string_view line) {
  if (level < g_min_level.load(std::memory_order_relaxed)) return;
  Stderr().Write(FormatLine(level, line));
}

}  // namespace pagoda
