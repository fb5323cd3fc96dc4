#include "kernels/cuda/linear/plan_cache.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace pagoda::kernels::cuda {
namespace {

// Changes when a kernel changes so much that old measurements mislead.
constexpr int kGeneration = 1;

std::string FileName(absl::string_view device_name, absl::string_view version) {
  std::string name =
      absl::StrCat("linear-", device_name, "-cublaslt-", version, "-v", kGeneration, ".txt");
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-' && c != '.') c = '_';
  }
  return name;
}

}  // namespace

std::string PlanCache::DefaultFolder() {
  const char* home = std::getenv("XDG_CACHE_HOME");
  if (home != nullptr && *home != '\0') return absl::StrCat(home, "/pagoda");
  return "/var/cache/pagoda";
}

PlanCache::PlanCache(absl::string_view folder,
                     absl::string_view device_name,
                     absl::string_view version)
    : folder_(folder), path_(absl::StrCat(folder, "/", FileName(device_name, version))) {}

LinearPlanTable PlanCache::Read() const {
  LinearPlanTable table;
  std::ifstream file(path_);
  std::string line;
  while (std::getline(file, line)) {
    auto parsed = ParsePlanLine(line);
    if (parsed.ok()) table.insert_or_assign(parsed->first, parsed->second);
  }
  return table;
}

absl::Status PlanCache::Write(const LinearPlanTable& table) const {
  std::vector<std::string> lines;
  for (const auto& [key, plan] : table) {
    // Without a time it was not measured.
    if (plan.time_us > 0.0f) lines.push_back(FormatPlanLine(key, plan));
  }
  std::sort(lines.begin(), lines.end());

  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  const std::string temporary = absl::StrCat(path_, ".", getpid());
  {
    std::ofstream file(temporary, std::ios::trunc);
    for (const std::string& line : lines) file << line << '\n';
    file.flush();
    if (!file) {
      std::filesystem::remove(temporary, error);
      return absl::UnavailableError(absl::StrCat("cannot write ", temporary));
    }
  }
  std::filesystem::rename(temporary, path_, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot replace ", path_, ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cuda
