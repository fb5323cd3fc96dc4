#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/output.h"
#include "engine/request.h"
#include "engine/stop_checker.h"

namespace pagoda::engine {

// The beams of one request: which continuations go on, which have ended, and when no better one can
// come. They are those of transformers' beam search: scores are sum of log-probabilities /
// length^length_penalty, where the length counts every generated token, one that ends the beam
// included.
//
// In each round every open beam says what may follow it. Of all continuations, best first, those
// among the first `width` that end by a stop rule join the ended beams, of which the `width` best
// are kept; the best `width` that do not end are the open beams of the next round. It is over when
// `width` beams have ended and early_stopping is set, or no open beam scores better at its present
// length than the worst of them, or nothing goes on.
//
// A function of what it is told. Thread-compatible.
class BeamSearch {
 public:
  // A beam of the next round: that of sequence `index` is `parent`'s with one token more.
  struct Child {
    int32_t index = 0;
    int32_t parent = 0;
    TokenId token = 0;
  };
  struct Ended {
    int32_t last = 0;  // node
    int32_t num_tokens = 0;
    double score = 0.0;
    StopMatch match;
  };

  // `stop_checker`: of a sequence without output; says how beams end. With `num_logprobs`, beams
  // remember so many of what might have followed each token instead.
  BeamSearch(const BeamParams& params,
             const StopChecker& stop_checker,
             std::optional<int32_t> num_logprobs);

  // Top log-probabilities that each beam is to say where so many ids end one: `width` of them do
  // not, unless stop strings do.
  static int32_t NumTop(const BeamParams& params, size_t num_end_ids) {
    return params.width + static_cast<int32_t>(num_end_ids);
  }

  // What may follow the beam of sequence `index`, best first. True once every open beam has said
  // it. REQUIRES: the sequence has an open beam that has not.
  bool Take(int32_t index, std::vector<TokenLogprobs::Entry> next);
  // Begins the next round, of which these are the beams, those that take another's place first: of
  // the children of a beam one stays in its sequence, the others take those that have none. Empty:
  // it is over. REQUIRES: every open beam has said what may follow.
  std::vector<Child> Advance();
  bool is_open(int32_t index) const { return beams_[index].is_open; }
  // Every open beam ends as it is: nothing can be computed any more.
  void EndAll();

  // Best first; at most `width`.
  const std::vector<Ended>& ended() const { return ended_; }
  // With one entry per token.
  std::vector<TokenLogprobs> TokensOf(const Ended& ended) const;

 private:
  // A token of a beam; beams share those that they have in common.
  struct Node {
    int32_t before = -1;  // -1: the first
    TokenLogprobs logprobs;
  };
  struct Beam {
    bool is_open = false;
    int32_t last = -1;  // node
    int32_t num_tokens = 0;
    double sum = 0.0;
    StopChecker stop_checker;
    std::vector<TokenLogprobs::Entry> next;
  };
  struct Candidate {
    int32_t parent = 0;
    int32_t rank = 0;  // among what may follow the parent
    double sum = 0.0;
  };
  using Offspring = std::vector<std::pair<int32_t, Beam>>;  // parent, beam

  std::vector<Candidate> SortedCandidates() const;
  // The candidate's beam, without its last token's node.
  Beam Extend(const Candidate& candidate) const;
  int32_t AddNode(const Candidate& candidate);
  TokenId TokenOf(const Beam& beam) const { return nodes_[beam.last].logprobs.token.token; }
  double ScoreOf(const Beam& beam) const;
  void AddEnded(const Beam& beam, StopMatch match);
  bool IsOver() const;
  std::vector<Child> Place(Offspring offspring);

  const BeamParams params_;
  const std::optional<int32_t> num_logprobs_;
  std::vector<Node> nodes_;
  std::vector<Beam> beams_;  // by sequence
  int32_t num_open_ = 1;
  int32_t num_said_ = 0;
  std::vector<Ended> ended_;
  std::string unseen_text_;
};

}  // namespace pagoda::engine
