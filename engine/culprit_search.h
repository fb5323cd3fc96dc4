#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "engine/ids.h"

namespace pagoda::engine {

// Finds the request that makes workers fail, among those that had a row in the step that failed.
// Suspects are tried again in groups, one group more at a time, beside those that have passed: a
// group in whose trial the workers fail again is halved; a request with which they fail again while
// it runs alone is the culprit. Where all pass nobody was it. Pure; engine thread only.
class CulpritSearch {
 public:
  bool is_active() const { return !groups_.empty(); }
  // Everybody, while no search goes on.
  bool MayRun(RequestKey key) const;
  // Waits for its trial, or is on trial.
  bool IsSuspect(RequestKey key) const;
  // On trial now. REQUIRES: is_active().
  const std::vector<RequestKey>& group() const { return groups_.front(); }
  // Failures that the last culprit explains.
  int num_explained() const { return num_explained_; }

  // The workers failed with rows of these in flight: the culprit, if it is found. It is to be
  // ended; the search forgets it.
  std::optional<RequestKey> Fail(const std::vector<RequestKey>& suspects);
  // One of group() has got past the step that failed, or has ended. True if that was the last of
  // the group: others may run from now on.
  bool Pass(RequestKey key);

 private:
  // Failures in the trial of group(), and of others only.
  std::optional<RequestKey> FailGroup(const std::vector<RequestKey>& suspects);
  std::optional<RequestKey> FailOthers(const std::vector<RequestKey>& suspects);
  RequestKey Found(RequestKey key);
  // Halves of `suspects` go before all other groups.
  void PushHalves(const std::vector<RequestKey>& suspects);
  void EndIfDone();

  std::deque<std::vector<RequestKey>> groups_;  // none empty
  absl::flat_hash_set<RequestKey> passed_;
  // Were the only suspect before: a second time is enough.
  std::deque<RequestKey> failed_alone_;
  int num_failures_ = 0;  // since the search began, or the last culprit was found
  int num_explained_ = 0;
};

}  // namespace pagoda::engine
