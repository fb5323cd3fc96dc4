#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/safetensors_header.h"

namespace pagoda::engine {

// Where a tensor of a checkpoint lies.
struct CheckpointTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  int32_t file_idx = 0;
  uint64_t file_offset = 0;
  uint64_t size_bytes = 0;
};

// The safetensors files of a model directory, opened and checked: every header, and every file's
// size against its header. Which files are read:
//   - with model.safetensors.index.json: the files that it names, each tensor from the file that it
//   assigns;
//   - without: every *.safetensors but consolidated* (another layout of the same weights) and
//   adapter_model*.
// Reads go through read calls, never through a map: a file that shrinks while it is read is an
// error, not a signal. Immutable once read from, so thread-safe.
class Checkpoint {
 public:
  // NOT_FOUND, INVALID_ARGUMENT or DATA_LOSS naming file or tensor. Reads headers only.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(absl::string_view model_dir);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  // Gives every tensor that lacks the prefix one, but for `except`: some models' checkpoints were
  // written from inside the module that the prefix names.
  void AddPrefix(absl::string_view prefix, absl::string_view except);

  // Null when there is none of that name.
  const CheckpointTensor* Find(absl::string_view name) const;
  const std::map<std::string, CheckpointTensor, std::less<>>& tensors() const { return tensors_; }
  // Path of the file that holds the tensor.
  const std::string& FileOf(const CheckpointTensor& tensor) const {
    return files_[static_cast<size_t>(tensor.file_idx)].path;
  }

  // Reads bytes [begin, begin + size_bytes) of the tensor. REQUIRES: they lie within it.
  absl::Status Read(const CheckpointTensor& tensor,
                    uint64_t begin,
                    size_t size_bytes,
                    void* destination) const;

 private:
  struct File {
    std::string path;
    int fd = -1;
    std::vector<SafetensorsEntry> entries;
    uint64_t data_offset = 0;
  };

  Checkpoint() = default;
  absl::Status OpenFile(const std::string& path);
  absl::Status OpenIndexed(absl::string_view model_dir, absl::string_view index_path);
  absl::Status OpenAll(absl::string_view model_dir);
  absl::Status AddTensor(int32_t file_idx, const SafetensorsEntry& entry);

  std::vector<File> files_;
  std::map<std::string, CheckpointTensor, std::less<>> tensors_;
};

}  // namespace pagoda::engine
