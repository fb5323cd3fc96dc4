#include "daemon/server/convert_response.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace pagoda::daemon {
namespace {

using engine::FinishReason;

void SetDuration(int64_t ns, google::protobuf::Duration* out) {
  out->set_seconds(ns / 1'000'000'000);
  out->set_nanos(static_cast<int32_t>(ns % 1'000'000'000));
}

v1::FinishReason ToPublic(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kStopSequence:
      return v1::FINISH_REASON_STOP_SEQUENCE;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
    case FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void FillLogprob(const engine::TokenLogprobs::Entry& entry,
                 const engine::Tokenizer* tokenizer,
                 v1::Logprob* out) {
  out->set_token_id(static_cast<uint32_t>(entry.token));
  if (tokenizer == nullptr) return;
  const absl::string_view bytes = tokenizer->TokenBytes(entry.token);
  out->set_token_bytes(bytes.data(), bytes.size());
}

}  // namespace

ResponseConverter::ResponseConverter(const ServedModel* model,
                                     v1::Started started,
                                     std::string echo_text)
    : model_(model),
      started_(std::move(started)),
      echo_text_(std::move(echo_text)),
      omit_text_(started_.output().omit_text()),
      num_sequences_(static_cast<int32_t>(started_.output().n())) {}

v1::Started ResponseConverter::MakeStarted(const engine::RequestStarted& started) {
  num_prompt_tokens_ = static_cast<uint32_t>(started.num_prompt_tokens);
  num_cached_tokens_ = static_cast<uint32_t>(started.num_cached_tokens);
  queue_ns_ = started.queue_ns;
  started_.set_prompt_tokens(num_prompt_tokens_);
  started_.set_cached_tokens(num_cached_tokens_);
  SetDuration(queue_ns_, started_.mutable_queue_duration());
  return std::exchange(started_, v1::Started());
}

std::string ResponseConverter::TakeEcho(int32_t index) {
  if (echo_text_.empty() || index >= num_sequences_) return "";
  if (echoed_.empty()) echoed_.resize(num_sequences_, false);
  if (std::exchange(echoed_[index], true)) return "";
  return echo_text_;
}

void ResponseConverter::AppendOutput(engine::OutputDelta* delta, v1::Delta* out) {
  out->set_index(static_cast<uint32_t>(delta->index));
  if (!omit_text_) {
    if (std::string echo = TakeEcho(delta->index); !echo.empty()) out->mutable_text()->append(echo);
    out->mutable_text()->append(delta->text);
  }
  for (const engine::TokenId id : delta->tokens) out->add_token_ids(static_cast<uint32_t>(id));
  for (const engine::TokenLogprobs& position : delta->logprobs)
    FillLogprobs(position, out->add_logprobs());
}

void ResponseConverter::FillLogprobs(const engine::TokenLogprobs& position,
                                     v1::TokenLogprobs* out) const {
  FillLogprob(position.token, model_->tokenizer.get(), out->mutable_token());
  if (position.rank == 0) return;  // nothing precedes the first prompt token
  out->mutable_token()->set_logprob(position.token.logprob);
  out->mutable_token()->set_rank(static_cast<uint32_t>(position.rank));
  for (size_t i = 0; i < position.top.size(); ++i) {
    v1::Logprob* top = out->add_top();
    FillLogprob(position.top[i], model_->tokenizer.get(), top);
    top->set_logprob(position.top[i].logprob);
    top->set_rank(static_cast<uint32_t>(i + 1));
  }
}

v1::Finished ResponseConverter::MakeFinished(int32_t index,
                                             const engine::SequenceFinished& finished) const {
  v1::Finished out;
  out.set_index(static_cast<uint32_t>(index));
  out.set_reason(ToPublic(finished.reason));
  if (const auto* text = std::get_if<std::string>(&finished.matched_stop))
    out.set_stop_string(*text);
  if (const auto* id = std::get_if<engine::TokenId>(&finished.matched_stop)) {
    out.set_stop_token_id(static_cast<uint32_t>(*id));
  }
  out.mutable_usage()->set_prompt_tokens(num_prompt_tokens_);
  out.mutable_usage()->set_completion_tokens(static_cast<uint32_t>(finished.num_completion_tokens));
  out.mutable_usage()->set_cached_tokens(num_cached_tokens_);
  SetDuration(queue_ns_, out.mutable_timings()->mutable_queue_duration());
  if (finished.first_token_ns != 0) {
    SetDuration(finished.first_token_ns, out.mutable_timings()->mutable_time_to_first_token());
  }
  SetDuration(finished.total_ns, out.mutable_timings()->mutable_total_duration());
  return out;
}

}  // namespace pagoda::daemon
