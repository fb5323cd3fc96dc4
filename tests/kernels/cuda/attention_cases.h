#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/cuda/case_runner.h"
#include "tests/kernels/cuda/paged_data.cuh"

// Cases of the attention kernels, one function a file, and what the files share.

namespace pagoda::kernels::cuda::test {

void AddPagedCases(std::vector<Case>* cases);
void AddClassicCases(std::vector<Case>* cases);
void AddRopeCases(std::vector<Case>* cases);

struct Difference {
  double total = 0;  // |out - ref| / |ref|
  double worst = 0;  // the same of one row and head
  int64_t worst_at = -1;
  int64_t bad = -1;  // first element that is not finite
};

Difference Compare(const std::vector<float>& out,
                   const std::vector<float>& reference,
                   int32_t head_dim);

// What is wrong with an output of the batch's type, or ""; the errors go to *note.
std::string Judge(const PagedData& data,
                  const std::vector<float>& out,
                  const std::vector<float>& reference,
                  std::string* note);

// "bf16_d128_32x8_b64".
std::string ShapeName(const PagedShape& shape);

}  // namespace pagoda::kernels::cuda::test
