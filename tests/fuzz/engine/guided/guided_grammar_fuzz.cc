#include "tests/fuzz/engine/guided/constraint_fuzz.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pagoda::fuzz::RunConstraint(pagoda::engine::guided::ConstraintSource::Kind::kGrammar, data, size);
  return 0;
}
