// The input is a file of weights; once more, all of it is a header over a few lengths of data,
// since a mutation rarely keeps the length in front right.
#include "absl/strings/string_view.h"
#include "engine/model/safetensors_header.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::engine {
namespace {

using fuzz::Require;

// The ranges cover the data in order, without gap or overlap, and are as long as shape and type
// say.
void CheckEntries(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : entries) {
    Require(entry.data_begin == end && entry.data_begin <= entry.data_end, "gap or overlap");
    Require(entry.shape.size() <= kMaxTensorRank, "rank");
    for (const int64_t dim : entry.shape) Require(dim >= 0, "negative dimension");
    Require(!TensorTypeName(entry.type).empty(), "type without a name");
    end = entry.data_end;
  }
  Require(end == data_bytes, "data that no entry covers");
}

void CheckHeader(absl::string_view header, uint64_t data_bytes) {
  const auto entries = ParseSafetensorsHeader(header, data_bytes);
  if (entries.ok()) {
    CheckEntries(*entries, data_bytes);
  } else {
    Require(absl::IsInvalidArgument(entries.status()) || absl::IsDataLoss(entries.status()),
            "unexpected code");
    Require(entries.status().message().size() < 4096, "endless message");
  }
}

}  // namespace
}  // namespace pagoda::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda::engine;
  const absl::string_view file(reinterpret_cast<const char*>(data), size);
  for (const uint64_t data_bytes : {0, 2, 16, 48}) CheckHeader(file, data_bytes);
  const auto header_bytes = SafetensorsHeaderBytes(file.substr(0, kSafetensorsPrefixBytes), size);
  if (!header_bytes.ok()) return 0;
  pagoda::fuzz::Require(*header_bytes <= size - kSafetensorsPrefixBytes, "header beyond the file");
  CheckHeader(file.substr(kSafetensorsPrefixBytes, *header_bytes),
              size - kSafetensorsPrefixBytes - *header_bytes);
  return 0;
}
