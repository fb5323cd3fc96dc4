#include "daemon/server/convert_request.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "daemon/server/convert_chat.h"
#include "daemon/server/convert_sampling.h"
#include "daemon/server/request_fields.h"
#include "daemon/server/rpc_error.h"
#include "kernels/base/status_macros.h"

namespace pagoda::daemon {
namespace {

using engine::TokenId;

// A normaliser may shorten a text (NFC does, at most threefold in UTF-8), so its bytes say only
// roughly how many tokens it can become at least.
constexpr size_t kNormalisationShrink = 4;
// Bytes of one Logprob message with its tags and a short token, rounded up.
constexpr uint64_t kLogprobReplyBytes = 32;

struct PromptTokens {
  std::vector<TokenId> ids;
  std::string text;  // as `echo` returns it
};

// Holds a text's bytes against the context, before the work of encoding it.
absl::Status CheckTextFits(absl::string_view text,
                           absl::string_view field,
                           const v1::Prompt& prompt,
                           const ServedModel& model) {
  const size_t most_bytes = static_cast<size_t>(model.max_context_tokens) *
                            std::max<size_t>(model.max_token_bytes, 1) * kNormalisationShrink;
  if (text.size() <= most_bytes || prompt.has_truncate_prompt_tokens()) return absl::OkStatus();
  return PromptTooLongError(field,
                            absl::StrCat(text.size(),
                                         " bytes cannot fit the context of ",
                                         model.max_context_tokens,
                                         " tokens, each at most ",
                                         model.max_token_bytes,
                                         " bytes"));
}

// BOS comes from the template; only its text becomes control tokens.
absl::StatusOr<std::vector<TokenId>> EncodeChat(const v1::Prompt& prompt,
                                                const ServedModel& model) {
  FieldChecker checker;
  if (prompt.has_add_special_tokens())
    checker.Fail("prompt.add_special_tokens",
                 "is for prompt.text; a chat's come from its template");
  if (prompt.parse_special_tokens())
    checker.Fail("prompt.parse_special_tokens", "is for prompt.text; messages never hold any");
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  PAGODA_ASSIGN_OR_RETURN(const engine::RenderedChat rendered, RenderChat(prompt.chat(), model));
  PAGODA_RETURN_IF_ERROR(CheckTextFits(rendered.text, "prompt.chat", prompt, model));
  return EncodeText(
      "prompt.chat",
      rendered.text,
      {.add_special_tokens = false, .parse_special_tokens = true, .trusted = rendered.trusted},
      *model.tokenizer);
}

absl::StatusOr<std::vector<TokenId>> EncodePromptText(const v1::Prompt& prompt,
                                                      const ServedModel& model) {
  if (model.tokenizer == nullptr) {
    return FieldError("prompt.text", "the model has no tokenizer.json; send prompt.token_ids");
  }
  PAGODA_RETURN_IF_ERROR(CheckTextFits(prompt.text(), "prompt.text", prompt, model));
  return EncodeText(
      "prompt.text",
      prompt.text(),
      {.add_special_tokens = !prompt.has_add_special_tokens() || prompt.add_special_tokens(),
       .parse_special_tokens = prompt.parse_special_tokens()},
      *model.tokenizer);
}

absl::StatusOr<std::vector<TokenId>> CheckPromptIds(const v1::TokenIds& ids,
                                                    const ServedModel& model) {
  FieldChecker checker;
  std::vector<TokenId> tokens;
  tokens.reserve(ids.ids_size());
  for (int i = 0; i < ids.ids_size() && checker.ok(); ++i) {
    const uint32_t id = ids.ids(i);
    if (id < static_cast<uint32_t>(model.num_known_ids)) {
      tokens.push_back(static_cast<TokenId>(id));
    } else {
      checker.CheckTokenId(absl::StrCat("prompt.token_ids.ids[", i, "]"), id, model.num_known_ids);
    }
  }
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  return tokens;
}

// Keeps the last tokens when asked to, and holds the rest against the context.
absl::Status FitContext(const v1::Prompt& prompt,
                        const ServedModel& model,
                        std::vector<TokenId>* ids) {
  if (prompt.has_truncate_prompt_tokens()) {
    FieldChecker checker;
    if (!checker.CheckInt("prompt.truncate_prompt_tokens",
                          prompt.truncate_prompt_tokens(),
                          1,
                          model.max_context_tokens)) {
      return checker.ToStatus();
    }
    const size_t keep = prompt.truncate_prompt_tokens();
    if (ids->size() > keep) ids->erase(ids->begin(), ids->end() - static_cast<ptrdiff_t>(keep));
  }
  const absl::string_view field = prompt.has_text()   ? "prompt.text"
                                  : prompt.has_chat() ? "prompt.chat"
                                                      : "prompt.token_ids";
  if (ids->empty()) return FieldError(field, "holds no tokens; the shortest prompt is one token");
  if (ids->size() > static_cast<size_t>(model.max_context_tokens)) {
    return PromptTooLongError(field,
                              absl::StrCat("holds ",
                                           ids->size(),
                                           " tokens; the context is ",
                                           model.max_context_tokens,
                                           " tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<PromptTokens> ResolvePrompt(const v1::Prompt& prompt,
                                           const ServedModel& model,
                                           bool echo,
                                           bool skip_special) {
  PromptTokens out;
  switch (prompt.input_case()) {
    case v1::Prompt::kText: {
      PAGODA_ASSIGN_OR_RETURN(out.ids, EncodePromptText(prompt, model));
      break;
    }
    case v1::Prompt::kTokenIds: {
      PAGODA_ASSIGN_OR_RETURN(out.ids, CheckPromptIds(prompt.token_ids(), model));
      break;
    }
    case v1::Prompt::kChat: {
      PAGODA_ASSIGN_OR_RETURN(out.ids, EncodeChat(prompt, model));
      break;
    }
    case v1::Prompt::INPUT_NOT_SET:
      return FieldError("prompt", "one of text, token_ids and chat must be set");
  }
  const size_t num_tokens = out.ids.size();
  PAGODA_RETURN_IF_ERROR(FitContext(prompt, model, &out.ids));
  if (echo && model.tokenizer != nullptr) {
    // A whole text comes back as it was sent, whatever the tokenizer normalises.
    const bool whole_text = prompt.has_text() && out.ids.size() == num_tokens;
    out.text = whole_text ? prompt.text() : model.tokenizer->Decode(out.ids, skip_special);
  }
  return out;
}

engine::StopParams ResolveStop(const v1::StopConditions& in,
                               const ServedModel& model,
                               FieldChecker* checker) {
  engine::StopParams out;
  if (in.has_max_tokens())
    out.max_tokens = static_cast<int32_t>(std::min<uint32_t>(in.max_tokens(), INT32_MAX));
  if (in.has_max_tokens() && in.min_tokens() > in.max_tokens()) {
    checker->Fail(
        "stopping.min_tokens",
        absl::StrCat(in.min_tokens(), " is more than stopping.max_tokens, ", in.max_tokens()));
  } else {
    checker->CheckInt("stopping.min_tokens", in.min_tokens(), 0, model.max_context_tokens);
  }
  out.min_tokens =
      static_cast<int32_t>(std::min<uint32_t>(in.min_tokens(), model.max_context_tokens));

  if (!in.stop().empty() && model.tokenizer == nullptr) {
    checker->Fail("stopping.stop", "the model has no tokenizer.json, so there is no text to match");
  }
  if (checker->CheckCount("stopping.stop", in.stop_size(), model.limits.max_stop_strings())) {
    for (int i = 0; i < in.stop_size(); ++i) {
      checker->CheckText(
          absl::StrCat("stopping.stop[", i, "]"), in.stop(i), model.limits.max_stop_string_bytes());
    }
    out.stop_strings.assign(in.stop().begin(), in.stop().end());
  }
  if (checker->CheckCount(
          "stopping.stop_token_ids", in.stop_token_ids_size(), model.limits.max_stop_token_ids())) {
    for (int i = 0; i < in.stop_token_ids_size(); ++i) {
      const uint32_t id = in.stop_token_ids(i);
      if (checker->CheckTokenId(
              absl::StrCat("stopping.stop_token_ids[", i, "]"), id, model.num_known_ids)) {
        out.stop_token_ids.push_back(static_cast<TokenId>(id));
      }
    }
  }
  out.eos_token_ids = model.eos_token_ids;
  out.include_stop = in.include_stop();
  out.ignore_eos = in.ignore_eos();
  return out;
}

// Ids that can be asked for are those that have a distribution.
absl::optional<int32_t> ResolveLogprobs(absl::string_view field,
                                        absl::optional<int32_t> asked,
                                        const ServedModel& model,
                                        FieldChecker* checker) {
  if (!asked.has_value()) return absl::nullopt;
  const auto most = std::min<int64_t>(model.limits.max_logprobs(), model.num_known_ids);
  checker->CheckInt(field, *asked, 0, most);
  return asked;
}

void ResolveOutput(const v1::OutputOptions& in,
                   const ServedModel& model,
                   const CallOrigin& origin,
                   FieldChecker* checker,
                   engine::Request* out) {
  const uint32_t n = in.has_n() ? in.n() : 1;
  checker->CheckInt("output.n", n, 1, model.limits.max_n());
  const uint32_t best_of = in.has_best_of() ? in.best_of() : n;
  if (best_of < n) {
    checker->Fail("output.best_of", absl::StrCat(best_of, " is less than output.n, ", n));
  } else if (best_of > n && origin.stream) {
    checker->Fail("output.best_of",
                  "must equal output.n in a stream, where nothing can be taken back");
  } else if (in.has_best_of()) {
    checker->CheckInt("output.best_of", best_of, 1, model.limits.max_n());
  }
  out->n = static_cast<int32_t>(n);
  out->best_of = static_cast<int32_t>(best_of);

  const auto logprobs = in.has_logprobs() ? absl::make_optional(in.logprobs()) : absl::nullopt;
  auto prompt_logprobs =
      in.has_prompt_logprobs() ? absl::make_optional(in.prompt_logprobs()) : absl::nullopt;
  // Echo returns the prompt as if it had been generated, log-probabilities included.
  if (in.echo() && !prompt_logprobs.has_value()) prompt_logprobs = logprobs;
  const auto set = [](absl::optional<int32_t> from, std::optional<int32_t>* to) {
    if (from.has_value()) *to = *from;
  };
  set(ResolveLogprobs("output.logprobs", logprobs, model, checker), &out->sampling.num_logprobs);
  set(ResolveLogprobs("output.prompt_logprobs", prompt_logprobs, model, checker),
      &out->sampling.num_prompt_logprobs);
  if (!v1::LogprobsMode_IsValid(in.logprobs_mode())) {
    checker->Fail("output.logprobs_mode",
                  absl::StrCat(static_cast<int>(in.logprobs_mode()), " is no LogprobsMode"));
  }
  out->sampling.processed_logprobs = in.logprobs_mode() == v1::LOGPROBS_MODE_PROCESSED;
  out->skip_special_tokens = !in.has_skip_special_tokens() || in.skip_special_tokens();
  // Stop strings are matched on text even when none is returned.
  out->want_text =
      model.tokenizer != nullptr && (!in.omit_text() || !out->stop.stop_strings.empty());
}

// What cannot be sampled before min_tokens, and single-token bad words, must leave something of the
// allowed ids.
void CheckSomethingAllowed(const engine::Request& request, FieldChecker* checker) {
  const auto& allowed = request.sampling.allowed_token_ids;
  if (allowed.empty()) return;
  const auto contains = [](const std::vector<TokenId>& ids, TokenId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  const bool any = std::any_of(allowed.begin(), allowed.end(), [&](TokenId id) {
    if (contains(request.stop.stop_token_ids, id) || contains(request.stop.eos_token_ids, id)) {
      if (request.stop.min_tokens > 0) return false;
    }
    const auto& words = request.sampling.bad_words;
    return std::find(words.begin(), words.end(), std::vector<TokenId>{id}) == words.end();
  });
  if (!any)
    checker->Fail("sampling.allowed_token_ids", "every id is masked by bad_words or min_tokens");
}

// A unary reply is one message; one that may pass the limit is refused before any work is done for
// it.
void CheckReplySize(const engine::Request& request,
                    const ServedModel& model,
                    const CallOrigin& origin,
                    FieldChecker* checker) {
  if (origin.stream || !checker->ok()) return;
  const auto entries = [](std::optional<int32_t> num) {
    return num.has_value() ? static_cast<uint64_t>(*num) + 1 : 0;
  };
  const uint64_t num_output_tokens =
      static_cast<uint64_t>(request.n) * static_cast<uint64_t>(*request.stop.max_tokens);
  const uint64_t logprob_bytes =
      num_output_tokens * entries(request.sampling.num_logprobs) * kLogprobReplyBytes;
  const uint64_t prompt_bytes =
      request.prompt.size() * entries(request.sampling.num_prompt_logprobs) * kLogprobReplyBytes;
  if (logprob_bytes + prompt_bytes <= model.max_message_bytes) return;
  checker->Fail(logprob_bytes >= prompt_bytes ? "output.logprobs" : "output.prompt_logprobs",
                absl::StrCat("the reply may take ",
                             logprob_bytes + prompt_bytes,
                             " bytes; the limit is ",
                             model.max_message_bytes,
                             "; ask for less or use StreamGenerate"));
}

template <typename Message>
absl::Status CheckHeader(const Message& message, const ServedModel& model) {
  if (!model.Answers(message.model())) return ModelNotFoundError(message.model(), model.name());
  FieldChecker checker;
  if (!message.request_id().empty())
    checker.CheckText("request_id", message.request_id(), kMaxRequestIdBytes);
  if (!message.cache_salt().empty())
    checker.CheckText("cache_salt", message.cache_salt(), kMaxCacheSaltBytes);
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  return absl::OkStatus();
}

template <typename Message>
v1::Started EchoResolved(const Message& message,
                         const engine::Request& request,
                         const ServedModel& model,
                         const CallOrigin& origin) {
  v1::Started started;
  started.set_request_id(message.request_id().empty() ? origin.made_request_id
                                                      : message.request_id());
  started.set_model(model.name());
  started.set_prompt_tokens(static_cast<uint32_t>(request.prompt.size()));
  *started.mutable_sampling() = message.sampling();
  EchoNumbers(request.sampling, started.mutable_sampling());
  *started.mutable_stopping() = message.stopping();
  started.mutable_stopping()->set_max_tokens(static_cast<uint32_t>(*request.stop.max_tokens));
  started.mutable_stopping()->set_min_tokens(static_cast<uint32_t>(request.stop.min_tokens));
  v1::OutputOptions* output = started.mutable_output();
  *output = message.output();
  output->set_n(static_cast<uint32_t>(request.n));
  // Of beams, best_of is the width, which the request has said.
  const bool has_beams = request.sampling.beams.has_value();
  output->set_best_of(static_cast<uint32_t>(has_beams ? request.n : request.best_of));
  if (request.sampling.num_prompt_logprobs.has_value())
    output->set_prompt_logprobs(*request.sampling.num_prompt_logprobs);
  output->set_logprobs_mode(request.sampling.processed_logprobs ? v1::LOGPROBS_MODE_PROCESSED
                                                                : v1::LOGPROBS_MODE_RAW);
  output->set_skip_special_tokens(request.skip_special_tokens);
  output->set_omit_text(model.tokenizer == nullptr || message.output().omit_text());
  return started;
}

}  // namespace

absl::Status FieldError(absl::string_view field, absl::string_view description) {
  FieldChecker checker;
  checker.Fail(field, description);
  return checker.ToStatus();
}

absl::StatusOr<std::vector<TokenId>> EncodeText(absl::string_view field,
                                                absl::string_view text,
                                                const engine::EncodeOptions& options,
                                                const engine::Tokenizer& tokenizer) {
  auto ids = tokenizer.Encode(text, options);
  if (!ids.ok()) return FieldError(field, ids.status().message());
  return ids;
}

v1::SamplingParams DefaultSampling(const ServedModel& model) {
  FieldChecker checker;
  v1::SamplingParams sampling;
  EchoNumbers(ResolveNumbers({}, model.generation, 0, &checker), &sampling);
  sampling.clear_seed();  // drawn for each request
  return sampling;
}

template <typename Message>
absl::StatusOr<ConvertedRequest> ConvertRequest(const Message& message,
                                                const ServedModel& model,
                                                const CallOrigin& origin) {
  PAGODA_RETURN_IF_ERROR(CheckHeader(message, model));

  ConvertedRequest out;
  engine::Request& request = out.request;
  FieldChecker checker;
  request.sampling =
      ResolveNumbers(message.sampling(), model.generation, origin.drawn_seed, &checker);
  ResolveTokenRules(message.sampling(), model, &checker, &request.sampling);
  ResolveSpeculation(message.sampling(), model, &checker, &request.sampling);
  request.stop = ResolveStop(message.stopping(), model, &checker);
  ResolveOutput(message.output(), model, origin, &checker, &request);
  ResolveBeams(message.sampling(), message.output(), model, &checker, &request);
  CheckSomethingAllowed(request, &checker);
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());
  out.uncompiled = ResolveConstraint(
      message.sampling(), model, origin.leaves_compiling, &checker, &request.sampling);
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());

  PAGODA_ASSIGN_OR_RETURN(
      PromptTokens prompt,
      ResolvePrompt(message.prompt(), model, message.output().echo(), request.skip_special_tokens));
  request.prompt = std::move(prompt.ids);
  if (!message.output().omit_text()) out.echo_text = std::move(prompt.text);
  ResolveThoughts(message.sampling(), model, &checker, &request);
  // The context cuts what is asked for; `started` says where.
  const int32_t room = model.max_context_tokens - static_cast<int32_t>(request.prompt.size());
  request.stop.max_tokens = std::min(request.stop.max_tokens.value_or(room), room);
  request.stop.min_tokens = std::min(request.stop.min_tokens, *request.stop.max_tokens);
  CheckReplySize(request, model, origin, &checker);
  PAGODA_RETURN_IF_ERROR(checker.ToStatus());

  request.key = origin.key;
  request.tenant = origin.tenant;
  request.arrival_ns = origin.arrival_ns;
  if (origin.deadline_ns.has_value()) request.deadline_ns = *origin.deadline_ns;
  request.priority = message.has_priority() ? message.priority() : 0;
  request.cache_salt = message.cache_salt();
  out.started = EchoResolved(message, request, model, origin);
  return out;
}

template absl::StatusOr<ConvertedRequest> ConvertRequest(const v1::GenerateRequest&,
                                                         const ServedModel&,
                                                         const CallOrigin&);
template absl::StatusOr<ConvertedRequest> ConvertRequest(const v1::StreamGenerateRequest&,
                                                         const ServedModel&,
                                                         const CallOrigin&);

}  // namespace pagoda::daemon
