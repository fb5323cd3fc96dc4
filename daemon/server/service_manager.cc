#include "daemon/server/service_manager.h"

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/log.h"

namespace pagoda::daemon {
namespace {

// A manager that does not read may not stop the daemon.
constexpr timeval kSendTimeout = {.tv_sec = 1, .tv_usec = 0};
// Beats in each interval of the watchdog: one may be late.
constexpr int kBeats = 3;

std::string TakeVariable(const char* name) {
  const char* value = std::getenv(name);
  std::string text = value == nullptr ? "" : value;
  unsetenv(name);
  return text;
}

int OpenNotifySocket(const std::string& name) {
  if (name.empty()) return -1;
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &kSendTimeout, sizeof(kSendTimeout));
  return fd;
}

// A value of one line: the protocol's lines are its assignments.
std::string OneLine(absl::string_view text) { return absl::StrReplaceAll(text, {{"\n", " "}}); }

std::string ExtendTimeout(absl::Duration more) {
  return absl::StrCat("EXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(more));
}

}  // namespace

ServiceManager::Options ServiceManager::Options::TakeFromEnvironment() {
  Options options;
  options.notify_socket = TakeVariable("NOTIFY_SOCKET");
  const std::string interval = TakeVariable("WATCHDOG_USEC");
  const std::string pid = TakeVariable("WATCHDOG_PID");
  int64_t interval_us = 0;
  if (!absl::SimpleAtoi(interval, &interval_us) || interval_us <= 0) return options;
  // Left over from the process that the manager meant.
  if (!pid.empty() && pid != absl::StrCat(getpid())) return options;
  options.watchdog_interval = absl::Microseconds(interval_us);
  return options;
}

ServiceManager::ServiceManager(Options options)
    : options_(std::move(options)), fd_(OpenNotifySocket(options_.notify_socket)) {}

ServiceManager::~ServiceManager() {
  if (fd_ >= 0) close(fd_);
}

void ServiceManager::NoteLoading(absl::string_view status, absl::Duration more) {
  Send(absl::StrCat("STATUS=", OneLine(status), "\n", ExtendTimeout(more)));
}

void ServiceManager::NoteReady(absl::string_view status) {
  Send(absl::StrCat("READY=1\nSTATUS=", OneLine(status)));
}

void ServiceManager::NoteReloading() { Send("RELOADING=1"); }

void ServiceManager::NoteReloaded() { Send("READY=1"); }

void ServiceManager::NoteStopping(absl::string_view status, absl::Duration more) {
  Send(absl::StrCat("STOPPING=1\nSTATUS=", OneLine(status), "\n", ExtendTimeout(more)));
}

void ServiceManager::NoteAlive() { Send("WATCHDOG=1"); }

void ServiceManager::Send(absl::string_view state) {
  if (fd_ < 0) return;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string& name = options_.notify_socket;
  if (name.size() >= sizeof(address.sun_path)) {
    return LogWarning("NOTIFY_SOCKET=%s: longer than a socket's name can be", name);
  }
  std::memcpy(address.sun_path, name.data(), name.size());
  // Abstract names begin with a NUL and end where the address does.
  if (name[0] == '@') address.sun_path[0] = '\0';
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  const ssize_t sent = sendto(fd_,
                              state.data(),
                              state.size(),
                              MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address),
                              size);
  if (sent < 0) LogWarning("NOTIFY_SOCKET=%s: %s", name, std::strerror(errno));
}

Watchdog::Watchdog(ServiceManager* manager,
                   std::function<uint64_t()> pulse,
                   std::function<void()> nudge)
    : manager_(manager), pulse_(std::move(pulse)), nudge_(std::move(nudge)) {
  if (manager_->watchdog_interval() == absl::InfiniteDuration()) return;
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "watchdog");
}

Watchdog::~Watchdog() {
  stop_.Notify();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Run() {
  uint64_t seen = pulse_();
  do {
    nudge_();
    if (stop_.WaitForNotificationWithTimeout(manager_->watchdog_interval() / kBeats)) return;
    const uint64_t now = pulse_();
    if (now != seen) manager_->NoteAlive();
    seen = now;
  } while (true);
}

}  // namespace pagoda::daemon
