#include "kernels/cpu/context.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace pagoda::kernels::cpu {

void Scratch::Free::operator()(void* data) const { std::free(data); }

absl::StatusOr<void*> Scratch::Reserve(size_t size_bytes) {
  if (size_bytes > size_bytes_) {
    // By halves, so that growing contexts do not allocate at every step.
    const size_t grown = (std::max(size_bytes, size_bytes_ + size_bytes_ / 2) + 63) / 64 * 64;
    data_.reset();
    size_bytes_ = 0;
    data_.reset(std::aligned_alloc(64, grown));
    if (data_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", grown, " bytes of kernel scratch"));
    }
    size_bytes_ = grown;
  }
  return data_.get();
}

}  // namespace pagoda::kernels::cpu
