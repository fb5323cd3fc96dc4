#include "tests/bench/daemon_probe.h"

#include <cstdio>
#include <fstream>
#include <iterator>
#include <unistd.h>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace pagoda::bench {
namespace {

// Fields of /proc/PID/stat from the third on.
std::vector<std::string> StatFields(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t paren = text.rfind(')');
  if (paren == std::string::npos) return {};
  return absl::StrSplit(text.substr(paren + 1), ' ', absl::SkipEmpty());
}

uint64_t Field(const std::vector<std::string>& fields, size_t number) {
  uint64_t value = 0;
  return number - 3 < fields.size() && absl::SimpleAtoi(fields[number - 3], &value) ? value : 0;
}

}  // namespace

uint64_t ResidentBytes(pid_t pid) {
  return Field(StatFields(pid), 24) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

double CpuSeconds(pid_t pid) {
  const std::vector<std::string> fields = StatFields(pid);
  return static_cast<double>(Field(fields, 14) + Field(fields, 15)) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

bool Print(const Figure& figure) {
  const double ratio = figure.goal > 0.0 ? figure.value / figure.goal : 0.0;
  const bool reached =
      figure.lower_is_better ? figure.value <= figure.goal : figure.value >= figure.goal;
  std::printf("%-40s goal %10.3f  figure %10.3f %-10s ratio %6.3f  %s\n",
              figure.name.c_str(),
              figure.goal,
              figure.value,
              figure.unit.c_str(),
              ratio,
              reached ? "ok" : "MISSED");
  std::printf(
      "{\"name\":\"%s\",\"unit\":\"%s\",\"goal\":%.6g,\"figure\":%.6g,\"ratio\":%.6g,\"reached\":%"
      "s}\n",
      figure.name.c_str(),
      figure.unit.c_str(),
      figure.goal,
      figure.value,
      ratio,
      reached ? "true" : "false");
  return reached;
}

}  // namespace pagoda::bench
