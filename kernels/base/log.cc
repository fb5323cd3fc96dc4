#include "kernels/base/log.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
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
#include "kernels/base/log_format.h"
#include "kernels/base/mutex.h"

namespace pagoda {
namespace {

std::atomic<LogLevel> g_min_level{LogLevel::kInfo};
std::atomic<LogFormat> g_format{LogFormat::kText};

int64_t UnixNs() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
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
  void Write(LogLevel level, absl::string_view text) {
    MutexLock lock(&mutex_);
    const ScopedSigpipeBlock no_sigpipe;
    if (!Follow()) {
      ++num_dropped_;
      return;
    }
    if (num_dropped_ > 0) {
      const std::string notice = absl::StrCat(num_dropped_, " log lines were dropped");
      if (!WriteWhole(Format(LogLevel::kWarning, notice))) {
        ++num_dropped_;
        return;
      }
      num_dropped_ = 0;
    }
    if (!WriteWhole(Format(level, text))) ++num_dropped_;
  }

 private:
  std::string Format(LogLevel level, absl::string_view text) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LogFormat format = g_format.load(std::memory_order_relaxed);
    if (format == LogFormat::kText && is_journal_) format = LogFormat::kJournal;
    return FormatLogLine(format, level, UnixNs(), text);
  }

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
    const char* const journal = std::getenv("JOURNAL_STREAM");
    is_journal_ = journal != nullptr && journal == absl::StrCat(now.st_dev, ":", now.st_ino);
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
  bool is_journal_ ABSL_GUARDED_BY(mutex_) = false;
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

bool SetLogFormat(absl::string_view name) {
  if (name != "text" && name != "json") return false;
  g_format = name == "json" ? LogFormat::kJson : LogFormat::kText;
  return true;
}

void LogLine(LogLevel level, absl::string_view line) {
  if (level < g_min_level.load(std::memory_order_relaxed)) return;
  Stderr().Write(level, line);
}

}  // namespace pagoda
