#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::e2e {

// Flags of a daemon with several ranks. On cuda one GPU is enough: ranks take turns on it, unless
// $PAGODA_RANK_DEVICES names a GPU for each. $PAGODA_RANK_GROUP is what they meet over.
inline std::vector<std::string> RankFlags(int num_ranks) {
  std::vector<std::string> flags = {absl::StrCat("--tensor-parallel-size=", num_ranks)};
  if (num_ranks < 2 || DeviceUnderTest() != "cuda") return flags;
  const char* const devices = std::getenv("PAGODA_RANK_DEVICES");
  const char* const group = std::getenv("PAGODA_RANK_GROUP");
  flags.push_back(absl::StrCat(
      "--devices=",
      devices != nullptr ? devices : absl::StrJoin(std::vector<int>(num_ranks, 0), ",")));
  if (group != nullptr) flags.push_back(absl::StrCat("--tensor-parallel-group=", group));
  return flags;
}

}  // namespace pagoda::e2e
