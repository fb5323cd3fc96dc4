#include "daemon/client/bench_http_plan.h"

#include <algorithm>
#include <random>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "daemon/client/bench_plan.h"

namespace pagoda::daemon {
namespace {

// Sixty-four of the most frequent: tokenizers have each with the blank before it as one token.
constexpr const char* kWords[] = {
    "the",   "and",   "you",   "that",  "was",    "for",   "are",   "with",   "his",   "they",
    "this",  "have",  "from",  "one",   "had",    "word",  "but",   "not",    "what",  "all",
    "were",  "when",  "your",  "can",   "said",   "there", "use",   "each",   "which", "she",
    "how",   "their", "will",  "other", "about",  "out",   "many",  "then",   "them",  "these",
    "some",  "her",   "would", "make",  "like",   "him",   "into",  "time",   "has",   "look",
    "two",   "more",  "write", "see",   "number", "way",   "could", "people", "than",  "first",
    "water", "been",  "call",  "who"};
constexpr size_t kNumWords = std::size(kWords);

}  // namespace

PlannedHttpRequest PlanHttpRequest(const BenchOptions& options, int64_t index) {
  const HttpTarget& target = *options.http;
  // Ids of "words" in place of tokens.
  const v1::StreamGenerateRequest plan =
      PlanRequest(options, {.begin = 0, .end = static_cast<uint32_t>(kNumWords)}, index);
  std::string text = plan.prompt().text();
  for (const uint32_t id : plan.prompt().token_ids().ids())
    absl::StrAppend(&text, text.empty() ? "" : " ", kWords[id % kNumWords]);

  PlannedHttpRequest planned = {.output_tokens = plan.stopping().max_tokens()};
  nlohmann::ordered_json body = {{"model", options.model},
                                 {"max_tokens", planned.output_tokens},
                                 {"stream", true},
                                 {"stream_options", {{"include_usage", true}}},
                                 {"ignore_eos", true},
                                 {"seed", plan.sampling().seed()}};
  if (plan.sampling().has_temperature()) body["temperature"] = plan.sampling().temperature();
  if (target.api == HttpTarget::Api::kChat) {
    planned.route = absl::StrCat(target.path, "/chat/completions");
    body["messages"] = {{{"role", "user"}, {"content", text}}};
  } else {
    planned.route = absl::StrCat(target.path, "/completions");
    body["prompt"] = text;
  }
  planned.body =
      body.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  return planned;
}

}  // namespace pagoda::daemon
