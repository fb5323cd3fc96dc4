#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"

namespace pagoda::engine {

// A temporary model directory, removed with the object.
class ModelDir {
 public:
  ModelDir();
  ~ModelDir();
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const;
  void Write(absl::string_view name, absl::string_view content) const;
  void Write(absl::string_view name, const nlohmann::json& value) const;
  std::string Read(absl::string_view name) const;
  void Remove(absl::string_view name) const;
  // Copies every file of another directory.
  void CopyFrom(const std::string& dir) const;

 private:
  std::string path_;
};

// config.json of a small Llama, all fields that are required.
nlohmann::json LlamaConfigJson();

struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

// The bytes of a valid safetensors file.
std::string SafetensorsFile(const std::vector<TestTensor>& tensors);
// The bytes of a file with any header and data.
std::string RawSafetensorsFile(absl::string_view header, absl::string_view data);
// A tensor of float32 values.
TestTensor FloatTensor(absl::string_view name,
                       std::vector<int64_t> shape,
                       const std::vector<float>& values);

// Names of the reference checkpoints, one or more an architecture.
inline constexpr const char* kConformanceModels[] = {
    "bloom",
    "gemma2",
    "gemma3",
    "gpt2",
    "granite",
    "llama_bias",
    "llama_gqa",
    "llama_hd128",
    "llama_mha_tied",
    "llama_mqa",
    "llama_rope_linear",
    "llama_rope_llama3",
    "llama_rope_llama3_new",
    "llama_rope_yarn",
    "llama_sharded",
    "mistral_swa",
    "mixtral",
    "mpt",
    "olmo2",
    "phi3_longrope",
    "phi3_window",
    "qwen2",
    "qwen2_window",
    "qwen3",
    "qwen3_moe",
    "starcoder2",
};

// Where the reference checkpoints are: the committed copy, else PAGODA_CONFORMANCE_DIR/models/NAME
// (default
// ../shared/conformance beside the source tree). Empty when absent.
std::string ConformanceModelDir(absl::string_view name);

}  // namespace pagoda::engine
