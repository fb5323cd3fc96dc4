#include "daemon/server/convert_sampling.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "engine/guided/constraint.h"

namespace pagoda::daemon {
namespace {

constexpr FloatRange kTemperature{.low = 0.0f};
constexpr FloatRange kProbability{.low = 0.0f, .high = 1.0f};
constexpr FloatRange kPositiveProbability{.low = 0.0f, .high = 1.0f, .low_open = true};
// Logits that are divided by less could become infinite.
constexpr FloatRange kRepetitionPenalty{.low = 1e-6f, .high = 10.0f};
constexpr FloatRange kOutputPenalty{.low = -2.0f, .high = 2.0f};
constexpr FloatRange kLengthPenalty{.low = -10.0f, .high = 10.0f};
constexpr FloatRange kBias{.low = -100.0f, .high = 100.0f};
constexpr int32_t kNoThinkingLimit = -1;
// An opening tag and the blanks after it are no more.
constexpr size_t kMostTagTokens = 24;

// The absent-or-present rule for one float field.
struct FloatField {
  const char* path;
  FloatRange range;
  bool present;
  float value;
};

float Resolve(const FloatField& field,
              absl::optional<float> model_default,
              float neutral,
              FieldChecker* checker) {
  if (!field.present) return model_default.value_or(neutral);
  checker->CheckFloat(field.path, field.value, field.range);
  return field.value;
}

int32_t ResolveTopK(const v1::SamplingParams& in,
                    const engine::GenerationConfig& defaults,
                    FieldChecker* checker) {
  const int32_t top_k = in.has_top_k() ? in.top_k() : defaults.top_k.value_or(0);
  if (top_k < -1)
    checker->Fail("sampling.top_k",
                  absl::StrCat(top_k, " is neither -1 or 0 (off) nor at least 1"));
  return std::max(top_k, 0);
}

void ResolveBias(const v1::SamplingParams& in,
                 const ServedModel& model,
                 FieldChecker* checker,
                 engine::SamplingParams* out) {
  checker->CheckCount(
      "sampling.logit_bias", in.logit_bias_size(), model.limits.max_logit_bias_entries());
  for (const auto& [id, bias] : in.logit_bias()) {
    if (id >= static_cast<uint32_t>(model.num_known_ids) || !kBias.Contains(bias)) {
      const std::string path = absl::StrCat("sampling.logit_bias[", id, "]");
      checker->CheckTokenId(path, id, model.num_known_ids);
      checker->CheckFloat(path, bias, kBias);
      continue;
    }
    out->logit_bias.emplace_back(static_cast<engine::TokenId>(id), bias);
  }
  // A map has no order of its own; equal requests make equal plans.
  std::sort(out->logit_bias.begin(), out->logit_bias.end());
}

void ResolveAllowedIds(const v1::SamplingParams& in,
                       const ServedModel& model,
                       FieldChecker* checker,
                       engine::SamplingParams* out) {
  auto& allowed = out->allowed_token_ids;
  for (int i = 0; i < in.allowed_token_ids_size(); ++i) {
    const uint32_t id = in.allowed_token_ids(i);
    if (id >= static_cast<uint32_t>(model.num_known_ids)) {
      checker->CheckTokenId(
          absl::StrCat("sampling.allowed_token_ids[", i, "]"), id, model.num_known_ids);
      return;
    }
    allowed.push_back(static_cast<engine::TokenId>(id));
  }
  std::sort(allowed.begin(), allowed.end());
  allowed.erase(std::unique(allowed.begin(), allowed.end()), allowed.end());
}

// A word is written with and without a space before it, and the two are different tokens.
void ResolveBadWords(const v1::SamplingParams& in,
                     const ServedModel& model,
                     FieldChecker* checker,
                     engine::SamplingParams* out) {
  if (in.bad_words().empty()) return;
  if (model.tokenizer == nullptr) {
    checker->Fail("sampling.bad_words",
                  "the model has no tokenizer.json, so words cannot be encoded");
    return;
  }
  if (!checker->CheckCount("sampling.bad_words", in.bad_words_size(), model.limits.max_bad_words()))
    return;
  for (int i = 0; i < in.bad_words_size(); ++i) {
    const std::string path = absl::StrCat("sampling.bad_words[", i, "]");
    if (!checker->CheckText(path, in.bad_words(i), model.limits.max_stop_string_bytes())) continue;
    const absl::string_view word = absl::StripPrefix(absl::string_view(in.bad_words(i)), " ");
    for (const std::string& spelling : {std::string(word), absl::StrCat(" ", word)}) {
      auto ids = model.tokenizer->Encode(
          spelling, {.add_special_tokens = false, .parse_special_tokens = false});
      if (!ids.ok()) {
        checker->Fail(path, ids.status().message());
        break;
      }
      auto& words = out->bad_words;
      if (!ids->empty() && std::find(words.begin(), words.end(), *ids) == words.end())
        words.push_back(*std::move(ids));
    }
  }
}

// REQUIRES: a constraint is set.
engine::guided::ConstraintSource ConstraintSourceOf(const v1::SamplingParams& in) {
  using Kind = engine::guided::ConstraintSource::Kind;
  engine::guided::ConstraintSource source;
  switch (in.constraint_case()) {
    case v1::SamplingParams::kJsonSchema:
      source.kind = Kind::kJsonSchema;
      source.text = in.json_schema();
      break;
    case v1::SamplingParams::kRegex:
      source.kind = Kind::kRegex;
      source.text = in.regex();
      break;
    case v1::SamplingParams::kGrammar:
      source.kind = Kind::kGrammar;
      source.text = in.grammar();
      break;
    case v1::SamplingParams::kChoice:
      source.kind = Kind::kChoice;
      source.choices.assign(in.choice().choices().begin(), in.choice().choices().end());
      break;
    default:
      source.kind = Kind::kJsonObject;
      break;
  }
  return source;
}

const char* ConstraintField(v1::SamplingParams::ConstraintCase which) {
  switch (which) {
    case v1::SamplingParams::kJsonSchema:
      return "sampling.json_schema";
    case v1::SamplingParams::kJsonObject:
      return "sampling.json_object";
    case v1::SamplingParams::kRegex:
      return "sampling.regex";
    case v1::SamplingParams::kGrammar:
      return "sampling.grammar";
    default:
      return "sampling.choice";
  }
}

// The tags whose opening one ends the prompt, with blanks after it at most; null: none. What
// a template writes there.
const engine::ThoughtTags* OpenTags(const std::vector<engine::TokenId>& prompt,
                                    const ServedModel& model) {
  const size_t num_read = std::min(prompt.size(), kMostTagTokens);
  const std::string text = model.tokenizer->Decode(absl::MakeConstSpan(prompt).last(num_read),
                                                   /*skip_special_tokens=*/false);
  const absl::string_view end = absl::StripTrailingAsciiWhitespace(text);
  for (const engine::ThoughtTags& tags : model.thought_tags) {
    if (absl::EndsWith(end, tags.open)) return &tags;
  }
  return nullptr;
}

}  // namespace

engine::SamplingParams ResolveNumbers(const v1::SamplingParams& in,
                                      const engine::GenerationConfig& defaults,
                                      uint64_t drawn_seed,
                                      FieldChecker* checker) {
  engine::SamplingParams out;
  // do_sample = false is how a generation_config.json says "greedy".
  const absl::optional<float> temperature = defaults.do_sample.has_value() && !*defaults.do_sample
                                                ? absl::optional<float>(0.0f)
                                                : defaults.temperature;
  out.temperature =
      Resolve({"sampling.temperature", kTemperature, in.has_temperature(), in.temperature()},
              temperature,
              1.0f,
              checker);
  out.top_p = Resolve({"sampling.top_p", kPositiveProbability, in.has_top_p(), in.top_p()},
                      defaults.top_p,
                      1.0f,
                      checker);
  out.top_k = ResolveTopK(in, defaults, checker);
  out.min_p = Resolve(
      {"sampling.min_p", kProbability, in.has_min_p(), in.min_p()}, defaults.min_p, 0.0f, checker);
  out.typical_p =
      Resolve({"sampling.typical_p", kPositiveProbability, in.has_typical_p(), in.typical_p()},
              defaults.typical_p,
              1.0f,
              checker);
  out.repetition_penalty = Resolve({"sampling.repetition_penalty",
                                    kRepetitionPenalty,
                                    in.has_repetition_penalty(),
                                    in.repetition_penalty()},
                                   defaults.repetition_penalty,
                                   1.0f,
                                   checker);
  out.frequency_penalty = Resolve({"sampling.frequency_penalty",
                                   kOutputPenalty,
                                   in.has_frequency_penalty(),
                                   in.frequency_penalty()},
                                  absl::nullopt,
                                  0.0f,
                                  checker);
  out.presence_penalty = Resolve({"sampling.presence_penalty",
                                  kOutputPenalty,
                                  in.has_presence_penalty(),
                                  in.presence_penalty()},
                                 absl::nullopt,
                                 0.0f,
                                 checker);
  out.seed = in.has_seed() ? in.seed() : drawn_seed;
  return out;
}

void ResolveTokenRules(const v1::SamplingParams& sampling,
                       const ServedModel& model,
                       FieldChecker* checker,
                       engine::SamplingParams* resolved) {
  ResolveBias(sampling, model, checker, resolved);
  ResolveAllowedIds(sampling, model, checker, resolved);
  ResolveBadWords(sampling, model, checker, resolved);
}

void ResolveSpeculation(const v1::SamplingParams& in,
                        const ServedModel& model,
                        FieldChecker* checker,
                        engine::SamplingParams* resolved) {
  resolved->max_draft_tokens = model.default_draft_tokens;
  if (!in.has_ngram_speculation()) return;
  const uint32_t asked = in.ngram_speculation().max_draft_tokens();
  checker->CheckInt(
      "sampling.ngram_speculation.max_draft_tokens", asked, 0, engine::kMaxDraftTokens);
  resolved->max_draft_tokens =
      static_cast<int32_t>(std::min<uint32_t>(asked, engine::kMaxDraftTokens));
}

void ResolveThoughts(const v1::SamplingParams& in,
                     const ServedModel& model,
                     FieldChecker* checker,
                     engine::Request* request) {
  const bool asks = in.has_thinking_budget();
  const absl::optional<int32_t> limit = asks ? absl::make_optional(in.thinking_budget())
                                        : model.default_thinking_budget.has_value()
                                            ? absl::make_optional(*model.default_thinking_budget)
                                            : absl::nullopt;
  if (!limit.has_value() || *limit == kNoThinkingLimit) return;
  constexpr char kField[] = "sampling.thinking_budget";
  const auto fail = [&](absl::string_view why) {
    if (asks) checker->Fail(kField, why);
  };
  if (asks && !checker->CheckInt(kField, *limit, kNoThinkingLimit, INT32_MAX)) return;
  if (request->sampling.beams.has_value())
    return fail("cannot be combined with sampling.beam_search");
  if (in.constraint_case() != v1::SamplingParams::CONSTRAINT_NOT_SET) {
    return fail(absl::StrCat("cannot be combined with ", ConstraintField(in.constraint_case())));
  }
  if (model.thought_tags.empty())
    return fail("the model has no tokenizer.json, so there is no text to find thoughts in");
  auto budget = std::make_shared<engine::ThoughtBudget>();
  budget->max_tokens = *limit;
  if (const engine::ThoughtTags* open = OpenTags(request->prompt, model)) {
    budget->is_open = true;
    budget->tags = {*open};
  } else {
    budget->tags = model.thought_tags;
  }
  request->sampling.thoughts = std::move(budget);
}

void ResolveBeams(const v1::SamplingParams& in,
                  const v1::OutputOptions& output,
                  const ServedModel& model,
                  FieldChecker* checker,
                  engine::Request* request) {
  if (!in.has_beam_search()) return;
  const v1::SamplingParams::BeamSearch& beams = in.beam_search();
  if (!checker->CheckInt("sampling.beam_search.width", beams.width(), 1, model.limits.max_n()))
    return;
  if (in.constraint_case() != v1::SamplingParams::CONSTRAINT_NOT_SET) {
    checker->Fail("sampling.beam_search",
                  absl::StrCat("cannot be combined with ", ConstraintField(in.constraint_case())));
  }
  const auto width = static_cast<int32_t>(beams.width());
  if (request->n > width) {
    checker->Fail("output.n",
                  absl::StrCat(request->n, " is more than sampling.beam_search.width, ", width));
  }
  if (output.has_best_of() && request->best_of != request->n) {
    checker->Fail("output.best_of", "must equal output.n with sampling.beam_search");
  }
  engine::BeamParams resolved = {.width = width, .early_stopping = beams.early_stopping()};
  resolved.length_penalty = Resolve({"sampling.beam_search.length_penalty",
                                     kLengthPenalty,
                                     beams.has_length_penalty(),
                                     beams.length_penalty()},
                                    absl::nullopt,
                                    1.0f,
                                    checker);
  request->sampling.beams = resolved;
  request->best_of = width;
}

absl::optional<UncompiledConstraint> ResolveConstraint(const v1::SamplingParams& in,
                                                       const ServedModel& model,
                                                       bool leaves_compiling,
                                                       FieldChecker* checker,
                                                       engine::SamplingParams* resolved) {
  if (in.constraint_case() == v1::SamplingParams::CONSTRAINT_NOT_SET) return absl::nullopt;
  const char* const field = ConstraintField(in.constraint_case());
  if (model.tokenizer == nullptr || model.constraints == nullptr) {
    checker->Fail(field, "the model has no tokenizer.json, so there is no text to constrain");
    return absl::nullopt;
  }
  if (in.has_json_object() && !in.json_object()) {
    checker->Fail(field, "must be true where it is set; leave it out for any text");
    return absl::nullopt;
  }
  engine::guided::ConstraintSource source = ConstraintSourceOf(in);
  auto compiled =
      leaves_compiling ? model.constraints->Find(source) : model.constraints->Get(source);
  if (!compiled.ok()) {
    checker->Fail(field, compiled.status().message());
    return absl::nullopt;
  }
  if (*compiled == nullptr) return UncompiledConstraint{std::move(source), field};
  resolved->constraint = *std::move(compiled);
  return absl::nullopt;
}

void EchoNumbers(const engine::SamplingParams& resolved, v1::SamplingParams* echoed) {
  echoed->set_temperature(resolved.temperature);
  echoed->set_top_p(resolved.top_p);
  echoed->set_top_k(resolved.top_k);
  echoed->set_min_p(resolved.min_p);
  echoed->set_typical_p(resolved.typical_p);
  echoed->set_repetition_penalty(resolved.repetition_penalty);
  echoed->set_frequency_penalty(resolved.frequency_penalty);
  echoed->set_presence_penalty(resolved.presence_penalty);
  echoed->set_seed(resolved.seed);
  if (resolved.max_draft_tokens > 0) {
    echoed->mutable_ngram_speculation()->set_max_draft_tokens(
        static_cast<uint32_t>(resolved.max_draft_tokens));
  }
  if (resolved.thoughts != nullptr) echoed->set_thinking_budget(resolved.thoughts->max_tokens);
  if (resolved.beams.has_value())
    echoed->mutable_beam_search()->set_length_penalty(resolved.beams->length_penalty);
}

}  // namespace pagoda::daemon
