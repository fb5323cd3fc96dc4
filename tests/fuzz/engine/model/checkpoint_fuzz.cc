// model.safetensors.index.json, then two shards, each as header and data: the lengths in front are
// written here unless the header begins with '!', which stands for a whole file.
#include <cstring>
#include <vector>

#include "engine/model/checkpoint.h"
#include "tests/fuzz/fuzz_input.h"

namespace pagoda::engine {
namespace {

std::string ShardFile(const std::string& text) {
  if (text.empty()) return "";
  if (text[0] == '!') return text.substr(1);
  // The header ends with its line; the data is what follows.
  const size_t end = text.find('\n');
  const uint64_t header_bytes = std::min(end, text.size());
  std::string file(kSafetensorsPrefixBytes, '\0');
  std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
  file += text.substr(0, header_bytes);
  if (end != std::string::npos) file += text.substr(end + 1);
  return file;
}

void ReadEverything(const Checkpoint& checkpoint) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    std::vector<char> bytes(tensor.size_bytes);
    fuzz::Require(checkpoint.Find(name) == &tensor, "a tensor is not found by its name");
    fuzz::Require(checkpoint.Read(tensor, 0, bytes.size(), bytes.data()).ok(),
                  "a checked range cannot be read");
  }
}

}  // namespace
}  // namespace pagoda::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;
  static const fuzz::ScratchDir dir;
  const std::vector<std::string> parts = fuzz::SplitInput(data, size, 3);
  dir.Put("model.safetensors.index.json", parts[0]);
  dir.Put("a.safetensors", engine::ShardFile(parts[1]));
  dir.Put("b.safetensors", engine::ShardFile(parts[2]));
  const auto checkpoint = engine::Checkpoint::Open(dir.path());
  if (checkpoint.ok()) engine::ReadEverything(**checkpoint);
  return 0;
}
