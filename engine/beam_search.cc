#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace pagoda::engine {

BeamSearch::BeamSearch(const BeamParams& params,
                       const StopChecker& stop_checker,
                       std::optional<int32_t> num_logprobs)
    : params_(params), num_logprobs_(num_logprobs) {
  for (int32_t i = 0; i < params.width; ++i) beams_.push_back({.stop_checker = stop_checker});
  beams_[0].is_open = true;
}

bool BeamSearch::Take(int32_t index, std::vector<TokenLogprobs::Entry> next) {
  beams_[index].next = std::move(next);
  return ++num_said_ == num_open_;
}

std::vector<BeamSearch::Candidate> BeamSearch::SortedCandidates() const {
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < beams_.size(); ++i) {
    const Beam& beam = beams_[i];
    if (!beam.is_open) continue;
    for (size_t rank = 0; rank < beam.next.size(); ++rank) {
      candidates.push_back({.parent = static_cast<int32_t>(i),
                            .rank = static_cast<int32_t>(rank),
                            .sum = beam.sum + double{beam.next[rank].logprob}});
    }
  }
  const auto is_better = [](const Candidate& a, const Candidate& b) { return a.sum > b.sum; };
  std::stable_sort(candidates.begin(), candidates.end(), is_better);
  return candidates;
}

BeamSearch::Beam BeamSearch::Extend(const Candidate& candidate) const {
  const Beam& parent = beams_[candidate.parent];
  return {.is_open = true,
          .num_tokens = parent.num_tokens + 1,
          .sum = candidate.sum,
          .stop_checker = parent.stop_checker};
}

int32_t BeamSearch::AddNode(const Candidate& candidate) {
  const Beam& parent = beams_[candidate.parent];
  Node node = {.before = parent.last};
  node.logprobs.token = parent.next[candidate.rank];
  node.logprobs.rank = candidate.rank + 1;
  const auto num_top = std::min(parent.next.size(), static_cast<size_t>(num_logprobs_.value_or(0)));
  node.logprobs.top.assign(parent.next.begin(),
                           parent.next.begin() + static_cast<std::ptrdiff_t>(num_top));
  nodes_.push_back(std::move(node));
  return static_cast<int32_t>(nodes_.size()) - 1;
}

double BeamSearch::ScoreOf(const Beam& beam) const {
  return beam.sum / std::pow(static_cast<double>(beam.num_tokens),
                             static_cast<double>(params_.length_penalty));
}

void BeamSearch::AddEnded(const Beam& beam, StopMatch match) {
  Ended ended = {.last = beam.last,
                 .num_tokens = beam.num_tokens,
                 .score = ScoreOf(beam),
                 .match = std::move(match)};
  // After those that are as good: they came first.
  const auto is_worse = [&](const Ended& other) { return other.score < ended.score; };
  ended_.insert(std::find_if(ended_.begin(), ended_.end(), is_worse), std::move(ended));
  if (ended_.size() > beams_.size()) ended_.pop_back();
}

bool BeamSearch::IsOver() const {
  if (num_open_ == 0) return true;
  if (ended_.size() < beams_.size()) return false;
  if (params_.early_stopping) return true;
  double best = -std::numeric_limits<double>::infinity();
  for (const Beam& beam : beams_)
    if (beam.is_open) best = std::max(best, ScoreOf(beam));
  return best <= ended_.back().score;
}

std::vector<BeamSearch::Child> BeamSearch::Place(Offspring offspring) {
  for (Beam& beam : beams_) beam.is_open = false;
  std::vector<Child> children, stays;
  Offspring others;
  for (auto& [parent, beam] : offspring) {
    if (beams_[parent].is_open) {
      others.emplace_back(parent, std::move(beam));
    } else {
      stays.push_back({.index = parent, .parent = parent, .token = TokenOf(beam)});
      beams_[parent] = std::move(beam);
    }
  }
  int32_t index = 0;
  for (auto& [parent, beam] : others) {
    while (beams_[index].is_open) ++index;
    children.push_back({.index = index, .parent = parent, .token = TokenOf(beam)});
    beams_[index] = std::move(beam);
  }
  children.insert(children.end(), stays.begin(), stays.end());
  return children;
}

std::vector<BeamSearch::Child> BeamSearch::Advance() {
  const size_t width = beams_.size();
  Offspring offspring;
  const std::vector<Candidate> candidates = SortedCandidates();
  for (size_t i = 0; i < candidates.size() && (i < width || offspring.size() < width); ++i) {
    Beam beam = Extend(candidates[i]);
    const TokenId token = beams_[candidates[i].parent].next[candidates[i].rank].token;
    unseen_text_.clear();
    auto match = beam.stop_checker.Accept(token, beam.num_tokens, &unseen_text_);
    const bool is_kept = match.has_value() ? i < width : offspring.size() < width;
    if (!is_kept) continue;
    beam.last = AddNode(candidates[i]);
    if (match.has_value()) {
      AddEnded(beam, *std::move(match));
    } else {
      offspring.emplace_back(candidates[i].parent, std::move(beam));
    }
  }
  num_open_ = static_cast<int32_t>(offspring.size());
  num_said_ = 0;
  std::vector<Child> children = Place(std::move(offspring));
  return IsOver() ? std::vector<Child>() : children;
}

void BeamSearch::EndAll() {
  for (Beam& beam : beams_) {
    if (beam.is_open && beam.num_tokens > 0) AddEnded(beam, {.reason = FinishReason::kLength});
    beam.is_open = false;
  }
  num_open_ = 0;
}

std::vector<TokenLogprobs> BeamSearch::TokensOf(const Ended& ended) const {
  std::vector<TokenLogprobs> tokens;
  for (int32_t node = ended.last; node >= 0; node = nodes_[node].before)
    tokens.push_back(nodes_[node].logprobs);
  std::reverse(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace pagoda::engine
