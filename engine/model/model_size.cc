// Types and sizes that follow from a ModelConfig: pure functions of model_config.h.
#include "engine/model/architecture.h"
#include "engine/model/model_config.h"
#include "kernels/base/check.h"

namespace pagoda::engine {
namespace {

struct ParameterCounts {
  uint64_t matrices = 0;  // stored in the model's dtype
  uint64_t vectors = 0;   // norms and biases, float32 on the device
};

ParameterCounts CountParameters(const ModelConfig& config) {
  const Architecture* architecture = FindArchitecture(config.architecture);
  PAGODA_CHECK(architecture != nullptr);
  ParameterCounts counts;
  for (const WeightSpec& spec : architecture->weights(config)) {
    for (const WeightPart& part : spec.parts) {
      (spec.is_vector ? counts.vectors : counts.matrices) +=
          static_cast<uint64_t>(part.rows) * static_cast<uint64_t>(part.cols);
    }
  }
  return counts;
}

}  // namespace

absl::StatusOr<DType> ResolveDType(absl::string_view dtype,
                                   const ModelConfig& config,
                                   absl::string_view device) {
  if (dtype == "auto") {
    return config.dtype == DType::kFloat16 && device == "cpu" ? DType::kFloat32 : config.dtype;
  }
  return ParseDType(dtype);
}

uint64_t WeightBytes(const ModelConfig& config, DType dtype) {
  const ParameterCounts counts = CountParameters(config);
  return counts.matrices * DTypeBytes(dtype) + counts.vectors * sizeof(float);
}

uint64_t NumParameters(const ModelConfig& config) {
  const ParameterCounts counts = CountParameters(config);
  return counts.matrices + counts.vectors;
}

uint64_t KvBytesPerToken(const ModelConfig& config, DType kv_dtype) {
  return 2 * static_cast<uint64_t>(config.num_layers) * config.num_kv_heads * config.head_dim *
         DTypeBytes(kv_dtype);
}

}  // namespace pagoda::engine
