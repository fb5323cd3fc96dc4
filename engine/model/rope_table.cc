#include "engine/model/rope_table.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/model/rope_config.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

// Host memory of one copy, whatever the context's length.
constexpr int32_t kPositionsPerCopy = 4096;

}  // namespace

absl::StatusOr<RopeTable> RopeTable::Make(kernels::Backend& backend,
                                          const ModelConfig& model,
                                          int32_t num_positions) {
  const std::vector<double> frequencies = RopeFrequencies(model.rope, model.head_dim);
  const size_t half = frequencies.size();
  RopeTable table;
  table.num_positions = num_positions;
  table.dim = model.head_dim;
  const size_t row_bytes = 2 * half * sizeof(float);
  PAGODA_ASSIGN_OR_RETURN(
      table.buffer,
      backend.Allocate(static_cast<size_t>(num_positions) * row_bytes, "rotary embedding"));
  std::vector<float> rows;
  for (int32_t begin = 0; begin < num_positions; begin += kPositionsPerCopy) {
    const int32_t end = std::min(begin + kPositionsPerCopy, num_positions);
    rows.clear();
    for (int32_t position = begin; position < end; ++position) {
      for (double frequency : frequencies) {
        rows.push_back(static_cast<float>(std::cos(position * frequency)));
      }
      for (double frequency : frequencies) {
        rows.push_back(static_cast<float>(std::sin(position * frequency)));
      }
    }
    char* const to = table.buffer.as<char>() + static_cast<size_t>(begin) * row_bytes;
    PAGODA_RETURN_IF_ERROR(backend.CopyToDevice(to, rows.data(), rows.size() * sizeof(float)));
    PAGODA_RETURN_IF_ERROR(backend.Synchronize());
  }
  return table;
}

}  // namespace pagoda::engine
