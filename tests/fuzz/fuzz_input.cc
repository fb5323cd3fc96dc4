#include "tests/fuzz/fuzz_input.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace pagoda::fuzz {

namespace fs = std::filesystem;

std::vector<std::string> SplitInput(const uint8_t* data, size_t size, size_t num_parts) {
  constexpr absl::string_view kSeparator = "\n---\n";
  absl::string_view rest(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> parts;
  while (parts.size() + 1 < num_parts) {
    const size_t end = rest.find(kSeparator);
    parts.emplace_back(rest.substr(0, end));
    rest =
        end == absl::string_view::npos ? absl::string_view() : rest.substr(end + kSeparator.size());
  }
  parts.emplace_back(rest);
  return parts;
}

void Require(bool condition, absl::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "finding: %.*s\n", static_cast<int>(what.size()), what.data());
  std::abort();
}

ScratchDir::ScratchDir() {
  // Thousands of files a second: in memory where there is such a place.
  const fs::path base = fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path();
  path_ = (base / "fuzz-pagoda-XXXXXX").string();
  Require(mkdtemp(path_.data()) != nullptr, "no scratch directory");
}

ScratchDir::~ScratchDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void ScratchDir::Put(const std::string& name, absl::string_view text) const {
  const std::string path = path_ + "/" + name;
  std::error_code ignored;
  if (text.empty()) {
    fs::remove(path, ignored);
    return;
  }
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
}

}  // namespace pagoda::fuzz
