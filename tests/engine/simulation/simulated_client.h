#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/output.h"
#include "engine/request.h"
#include "tests/engine/simulation/reference_output.h"

namespace pagoda::engine::simulation {

// One request as its client sees it: compares every delta, as it comes, with what the reference
// says. Nothing may be lost, repeated, changed or out of order, whatever happens to the workers.
class SimulatedClient {
 public:
  // What may end a request before the reference does.
  struct Excuses {
    bool is_cancelled = false;
    bool is_past_deadline = false;
    bool may_be_blamed = false;  // workers failed in a way that blames rows, or it holds bad tokens
    bool may_be_unfinite = false;
    bool may_lose_workers = false;  // for good
    int64_t num_pool_tokens = 0;    // that the pool holds
  };

  // `expected`: by index; empty: outputs are not compared.
  SimulatedClient(Request request, std::vector<ReferenceOutput> expected)
      : request_(std::move(request)),
        expected_(std::move(expected)),
        outputs_(static_cast<size_t>(request_.n)) {}

  // What is wrong with the delta; empty: nothing.
  std::string Take(const OutputDelta& delta);
  // The same of the request's end, when `has_ended`.
  std::string CheckEnd(const Excuses& excuses) const;

  const Request& request() const { return request_; }
  // Which draws are shown is known when all have ended, and the first to end need not be.
  bool is_ranked() const {
    return request_.best_of > request_.n || request_.sampling.beams.has_value();
  }
  bool has_ended() const { return has_ended_; }
  bool has_tokens() const { return has_tokens_; }
  int64_t num_tokens() const { return num_tokens_; }
  const std::vector<ReferenceOutput>& expected() const { return expected_; }
  // How the request ended, as the first of its sequences or the one with an error says.
  FinishReason reason() const { return *reason_; }
  const absl::Status& status() const { return status_; }

  // ---- Its reader, which takes `read_tokens_per_s`.
  // Tokens that wait for it; the front end gives up on a reader that leaves too many.
  int64_t NumUnread(int64_t now_ns) const;
  double read_tokens_per_s = 1e9;
  int64_t first_delta_ns = 0;

  // ---- When it came.
  uint64_t num_steps_before = 0, num_restarts_before = 0;
  int64_t num_sequences_before = 0;  // of requests that were live
  // Where few sequences run at once, and nothing is cached, beams are computed again by turns.
  bool is_behind_beams = false;

  Excuses excuses;

 private:
  struct Output {
    std::vector<TokenId> tokens;
    std::string text;
    std::optional<SequenceFinished> finished;
  };

  // Whether outputs can be compared with the reference: beams are another engine's.
  bool is_compared() const { return !expected_.empty(); }
  std::string CompareBeginning(const Output& output, size_t index) const;
  std::string CheckSequence(size_t index, const Excuses& excuses) const;

  const Request request_;
  const std::vector<ReferenceOutput> expected_;
  std::vector<Output> outputs_;
  bool has_started_ = false;
  bool has_ended_ = false;
  bool has_tokens_ = false;
  int64_t num_tokens_ = 0;
  std::optional<FinishReason> reason_;
  absl::Status status_;
};

}  // namespace pagoda::engine::simulation
