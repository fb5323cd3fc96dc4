#pragma once

#include <functional>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace pagoda::daemon {

// What started this process and wants to know how it is: systemd's notification protocol, datagrams
// of KEY=VALUE lines to a socket. Without a socket nothing is sent. Thread-safe.
class ServiceManager {
 public:
  struct Options {
    std::string notify_socket;  // a path, or an abstract name after '@'; empty: nobody asks
    // How often the manager wants to hear of the watchdog; infinite: it does not.
    absl::Duration watchdog_interval = absl::InfiniteDuration();

    // Reads and clears $NOTIFY_SOCKET, $WATCHDOG_USEC and $WATCHDOG_PID: children are not meant.
    // REQUIRES: the process has one thread.
    static Options TakeFromEnvironment();
  };

  explicit ServiceManager(Options options);
  ~ServiceManager();
  ServiceManager(const ServiceManager&) = delete;
  ServiceManager& operator=(const ServiceManager&) = delete;

  // Still starting, and at `status`; the start may take `more` from now.
  void NoteLoading(absl::string_view status, absl::Duration more);
  void NoteReady(absl::string_view status);
  // Reads its configuration again, and has done so.
  void NoteReloading();
  void NoteReloaded();
  // The stop may take `more` from now.
  void NoteStopping(absl::string_view status, absl::Duration more);
  void NoteAlive();

  absl::Duration watchdog_interval() const { return options_.watchdog_interval; }

 private:
  void Send(absl::string_view state);

  const Options options_;
  const int fd_;  // -1: no socket
};

// Tells the manager that the daemon lives, as long as it does: several times in each interval, if
// `pulse` has changed since the last time. `nudge` makes an idle owner of the pulse change it.
// Thread-compatible.
class Watchdog {
 public:
  // Both functions are called from a thread of the watchdog's. Does nothing where the manager wants
  // no watchdog. `manager` outlives it.
  Watchdog(ServiceManager* manager, std::function<uint64_t()> pulse, std::function<void()> nudge);
  ~Watchdog();

 private:
  void Run();

  ServiceManager* const manager_;
  const std::function<uint64_t()> pulse_;
  const std::function<void()> nudge_;
  absl::Notification stop_;
  std::thread thread_;
};

}  // namespace pagoda::daemon
