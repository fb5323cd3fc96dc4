#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// What libFuzzer calls, and what the replay of a corpus calls (corpus_main.cc).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace pagoda::fuzz {

// Cuts an input at its lines "---" into exactly `num_parts`; absent ones are empty, the last takes
// the rest. Text that mutates well and that people can write by hand.
std::vector<std::string> SplitInput(const uint8_t* data, size_t size, size_t num_parts);

// Ends the process with a message, as a sanitizer would: the input is a finding.
void Require(bool condition, absl::string_view what);

// A model directory of this process whose files are the parts of an input; removed at exit.
class ScratchDir {
 public:
  ScratchDir();
  ~ScratchDir();
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;

  const std::string& path() const { return path_; }
  // Writes the file, or removes it when there is no text.
  void Put(const std::string& name, absl::string_view text) const;

 private:
  std::string path_;
};

}  // namespace pagoda::fuzz
