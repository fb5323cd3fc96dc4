#include "tests/bench/daemon_probe.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "pagoda_version.h"

namespace pagoda::bench {
namespace {

// Fields of a stat file of /proc from the third on, and the second, a name.
std::vector<std::string> StatFields(const std::string& file, std::string* name = nullptr) {
  std::ifstream in(file);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t open = text.find('('), close = text.rfind(')');
  if (close == std::string::npos) return {};
  if (name != nullptr) *name = text.substr(open + 1, close - open - 1);
  return absl::StrSplit(text.substr(close + 1), ' ', absl::SkipEmpty());
}

std::string StatOf(pid_t pid) { return absl::StrCat("/proc/", pid, "/stat"); }

uint64_t Field(const std::vector<std::string>& fields, size_t number) {
  uint64_t value = 0;
  return number - 3 < fields.size() && absl::SimpleAtoi(fields[number - 3], &value) ? value : 0;
}

double CpuSecondsOf(const std::vector<std::string>& fields) {
  return static_cast<double>(Field(fields, 14) + Field(fields, 15)) /
         static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace

uint64_t ResidentBytes(pid_t pid) {
  return Field(StatFields(StatOf(pid)), 24) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

double CpuSeconds(pid_t pid) { return CpuSecondsOf(StatFields(StatOf(pid))); }

std::map<std::string, double> CpuSecondsByThread(pid_t pid) {
  std::map<std::string, double> seconds;
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"), error)) {
    std::string name;
    const std::vector<std::string> fields = StatFields(task.path() / "stat", &name);
    seconds[name] += CpuSecondsOf(fields);
  }
  return seconds;
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

void Report::Add(const Figure& figure) {
  reached_ &= Print(figure);
  std::fflush(stdout);
  AddLine(figure, /*has_goal=*/true);
}

void Report::Note(const std::string& name, const std::string& unit, double value) {
  std::printf("%-40s %10.3f %s\n", name.c_str(), value, unit.c_str());
  AddLine({.name = name, .unit = unit, .value = value}, /*has_goal=*/false);
}

void Report::AddLine(const Figure& figure, bool has_goal) {
  absl::StrAppend(&lines_,
                  lines_.empty() ? "" : ",\n",
                  "  {\"name\": \"",
                  figure.name,
                  "\", \"unit\": \"",
                  figure.unit,
                  "\", ",
                  has_goal ? absl::StrCat("\"goal\": ", figure.goal, ", ") : "",
                  "\"figure\": ",
                  figure.value,
                  "}");
}

bool Report::Write(const char* path) const {
  if (path == nullptr) return true;
  // Of the last quarter of an hour: what else the machine did.
  double load[3] = {};
  getloadavg(load, 3);
  std::ofstream out(path);
  out << "{\n \"command\": \"" << command_ << "\",\n \"commit\": \"" << PAGODA_COMMIT
      << "\",\n \"load_average\": " << load[2] << ",\n \"results\": [\n"
      << lines_ << "\n ]\n}\n";
  return out.good();
}

}  // namespace pagoda::bench
