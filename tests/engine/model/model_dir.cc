#include "tests/engine/model/model_dir.h"

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdlib.h>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace pagoda::engine {

namespace fs = std::filesystem;

ModelDir::ModelDir() {
  std::string pattern = absl::StrCat(testing::TempDir(), "/pagoda_model_XXXXXX");
  const char* made = mkdtemp(pattern.data());
  EXPECT_NE(made, nullptr);
  path_ = made == nullptr ? "" : made;
}

ModelDir::~ModelDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string ModelDir::File(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

void ModelDir::Write(absl::string_view name, absl::string_view content) const {
  std::ofstream(File(name), std::ios::binary)
      .write(content.data(), static_cast<std::streamsize>(content.size()));
}

void ModelDir::Write(absl::string_view name, const nlohmann::json& value) const {
  Write(name, absl::string_view(value.dump()));
}

std::string ModelDir::Read(absl::string_view name) const {
  std::stringstream content;
  content << std::ifstream(File(name), std::ios::binary).rdbuf();
  return content.str();
}

void ModelDir::Remove(absl::string_view name) const { fs::remove(File(name)); }

void ModelDir::CopyFrom(const std::string& dir) const {
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string copy = File(entry.path().filename().string());
    fs::copy_file(entry.path(), copy);
    fs::permissions(copy, fs::perms::owner_all);
  }
}

nlohmann::json LlamaConfigJson() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 64},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"torch_dtype", "float32"}};
}

std::string RawSafetensorsFile(absl::string_view header, absl::string_view data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<char>(uint64_t{header.size()} >> (8 * i)));
  absl::StrAppend(&file, header, data);
  return file;
}

std::string SafetensorsFile(const std::vector<TestTensor>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const TestTensor& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return RawSafetensorsFile(header.dump(), data);
}

TestTensor FloatTensor(absl::string_view name,
                       std::vector<int64_t> shape,
                       const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return {.name = std::string(name), .dtype = "F32", .shape = std::move(shape), .bytes = bytes};
}

std::string ConformanceModelDir(absl::string_view name) {
  std::vector<std::string> places = {absl::StrCat(PAGODA_SOURCE_DIR "/tests/data/", name)};
  const char* dir = std::getenv("PAGODA_CONFORMANCE_DIR");
  places.push_back(absl::StrCat(
      dir != nullptr ? dir : PAGODA_SOURCE_DIR "/../shared/conformance", "/models/", name));
  for (const std::string& place : places) {
    if (fs::exists(place + "/golden.json")) return place;
  }
  return "";
}

}  // namespace pagoda::engine
