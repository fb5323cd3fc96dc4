#include "daemon/server/process_stats.h"

#include <dirent.h>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace pagoda::daemon {
namespace {

std::string ReadLine(const char* path, absl::string_view prefix) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (absl::StartsWith(line, prefix)) return line.substr(prefix.size());
  }
  return "";
}

uint64_t CountOpenFds() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  uint64_t count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count < 3 ? 0 : count - 3;  // ".", ".." and the directory itself
}

}  // namespace

ProcessStats ReadProcessStats() {
  ProcessStats stats;
  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  const uint64_t page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  // Fields of proc(5) from the third on: the second, the name, may hold spaces but ends with the
  // last ')'.
  const std::string line = ReadLine("/proc/self/stat", "");
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(line).substr(line.rfind(')') + 1), ' ', absl::SkipEmpty());
  const auto field = [&fields](size_t number) {
    uint64_t value = 0;
    return number - 3 < fields.size() && absl::SimpleAtoi(fields[number - 3], &value) ? value
                                                                                      : uint64_t{0};
  };
  stats.cpu_seconds = static_cast<double>(field(14) + field(15)) / ticks_per_second;
  stats.num_threads = field(20);
  stats.virtual_bytes = field(23);
  stats.resident_bytes = field(24) * page_bytes;
  double boot_seconds = 0.0;
  if (absl::SimpleAtod(ReadLine("/proc/stat", "btime "), &boot_seconds)) {
    stats.start_time_seconds = boot_seconds + static_cast<double>(field(22)) / ticks_per_second;
  }
  stats.num_open_fds = CountOpenFds();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) stats.max_fds = limit.rlim_cur;
  return stats;
}

}  // namespace pagoda::daemon
