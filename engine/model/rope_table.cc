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
// Sines and cosines are made of those of a multiple of this and of what is left over, by the
// addition theorems: a long table costs multiplications instead of calls. In double precision, so
// that the error is far below what a float can hold.
constexpr int32_t kStride = 256;

struct Angle {
  double cosine = 1.0;
  double sine = 0.0;
};

Angle AngleOf(double radians) { return {std::cos(radians), std::sin(radians)}; }

// Of positions 0 to kStride - 1, frequency by frequency.
std::vector<Angle> FirstAngles(const std::vector<double>& frequencies) {
  std::vector<Angle> angles;
  for (int32_t position = 0; position < kStride; ++position) {
    for (double frequency : frequencies) angles.push_back(AngleOf(position * frequency));
  }
  return angles;
}

// Rows of the table: the cosines of a position, then its sines.
class RowWriter {
 public:
  RowWriter(const std::vector<double>& frequencies, double factor)
      : frequencies_(frequencies),
        factor_(factor),
        first_(FirstAngles(frequencies)),
        base_(frequencies.size()) {}

  void Write(int32_t position, float* row) {
    const size_t half = frequencies_.size();
    if (position / kStride != stride_) {
      stride_ = position / kStride;
      for (size_t i = 0; i < half; ++i) {
        base_[i] = AngleOf(static_cast<double>(stride_) * kStride * frequencies_[i]);
        base_[i].cosine *= factor_;
        base_[i].sine *= factor_;
      }
    }
    const Angle* const rest = &first_[static_cast<size_t>(position % kStride) * half];
    for (size_t i = 0; i < half; ++i) {
      row[i] = static_cast<float>(base_[i].cosine * rest[i].cosine - base_[i].sine * rest[i].sine);
      row[half + i] =
          static_cast<float>(base_[i].sine * rest[i].cosine + base_[i].cosine * rest[i].sine);
    }
  }

 private:
  const std::vector<double>& frequencies_;
  const double factor_;  // of every cosine and sine
  const std::vector<Angle> first_;
  int32_t stride_ = -1;
  std::vector<Angle> base_;  // of position stride_ * kStride
};

}  // namespace

absl::StatusOr<RopeTable> RopeTable::Make(kernels::Backend& backend,
                                          const RopeConfig& rope,
                                          int32_t dim,
                                          int32_t num_positions) {
  const std::vector<double> frequencies = RopeFrequencies(rope, dim, num_positions);
  const size_t half = frequencies.size();
  RopeTable table;
  table.num_positions = num_positions;
  table.dim = dim;
  const size_t row_bytes = 2 * half * sizeof(float);
  PAGODA_ASSIGN_OR_RETURN(
      table.buffer,
      backend.Allocate(static_cast<size_t>(num_positions) * row_bytes, "rotary embedding"));
  RowWriter writer(frequencies, rope.attention_factor);
  std::vector<float> rows;
  for (int32_t begin = 0; begin < num_positions; begin += kPositionsPerCopy) {
    const int32_t end = std::min(begin + kPositionsPerCopy, num_positions);
    rows.resize(static_cast<size_t>(end - begin) * 2 * half);
    for (int32_t position = begin; position < end; ++position) {
      writer.Write(position, &rows[static_cast<size_t>(position - begin) * 2 * half]);
    }
    char* const to = table.buffer.as<char>() + static_cast<size_t>(begin) * row_bytes;
    PAGODA_RETURN_IF_ERROR(backend.CopyToDevice(to, rows.data(), rows.size() * sizeof(float)));
    PAGODA_RETURN_IF_ERROR(backend.Synchronize());
  }
  return table;
}

}  // namespace pagoda::engine
