#include "daemon/server/vllm/reply_translation.h"

#include <utility>

namespace pagoda::daemon {
namespace {

// Null: the call's status says it.
const char* FinishReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
    case v1::FINISH_REASON_STOP_SEQUENCE:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_CANCELLED:
      return "abort";
    default:
      return nullptr;
  }
}

void AppendTop(const v1::TokenLogprobs& position, engine_pb::TopLogProbs* out) {
  for (const v1::Logprob& entry : position.top()) {
    out->add_values(entry.logprob());
    out->add_token_ids(entry.token_id());
  }
}

}  // namespace

absl::optional<engine_pb::GenerateResponse> ReplyTranslator::Translate(
    v1::StreamGenerateResponse event) {
  switch (event.event_case()) {
    case v1::StreamGenerateResponse::kStarted:
      NoteStarted(event.started());
      return absl::nullopt;
    case v1::StreamGenerateResponse::kDelta:
      return TranslateDelta(event.delta());
    case v1::StreamGenerateResponse::kFinished:
      return TranslateFinished(event.finished());
    case v1::StreamGenerateResponse::EVENT_NOT_SET:
      break;
  }
  return absl::nullopt;
}

void ReplyTranslator::NoteStarted(const v1::Started& started) {
  num_prompt_tokens_ = started.prompt_tokens();
  num_cached_tokens_ = started.cached_tokens();
  has_top_logprobs_ = started.output().logprobs() > 0;
  has_prompt_logprobs_ = started.output().has_prompt_logprobs();
  has_top_prompt_logprobs_ = started.output().prompt_logprobs() > 0;
}

ReplyTranslator::Sequence& ReplyTranslator::SequenceAt(uint32_t index) {
  if (sequences_.size() <= index) sequences_.resize(index + 1);
  return sequences_[index];
}

void ReplyTranslator::AppendOutput(const v1::Delta& delta, engine_pb::OutputLogProbs* out) const {
  for (const v1::TokenLogprobs& position : delta.logprobs()) {
    out->add_token_logprobs(position.token().logprob());
    out->add_token_ids(position.token().token_id());
    if (has_top_logprobs_) AppendTop(position, out->add_top_logprobs());
  }
}

void ReplyTranslator::AppendPrompt(const v1::Delta& delta) {
  for (const v1::TokenLogprobs& position : delta.prompt_logprobs()) {
    engine_pb::InputTokenLogProb* logprob = prompt_logprobs_.add_token_logprobs();
    if (position.token().has_logprob()) logprob->set_value(position.token().logprob());
    prompt_logprobs_.add_token_ids(position.token().token_id());
    if (has_top_prompt_logprobs_) AppendTop(position, prompt_logprobs_.add_top_logprobs());
  }
}

absl::optional<engine_pb::GenerateResponse> ReplyTranslator::TranslateDelta(
    const v1::Delta& delta) {
  AppendPrompt(delta);
  if (delta.token_ids().empty()) return absl::nullopt;
  Sequence& sequence = SequenceAt(delta.index());
  if (!stream_) {
    sequence.complete.mutable_output_ids()->MergeFrom(delta.token_ids());
    if (!delta.logprobs().empty()) AppendOutput(delta, sequence.complete.mutable_output_logprobs());
    return absl::nullopt;
  }
  engine_pb::GenerateResponse response;
  engine_pb::GenerateStreamChunk* chunk = response.mutable_chunk();
  *chunk->mutable_token_ids() = delta.token_ids();
  chunk->set_prompt_tokens(num_prompt_tokens_);
  chunk->set_completion_tokens(static_cast<uint32_t>(delta.token_ids_size()));
  chunk->set_cached_tokens(num_cached_tokens_);
  chunk->set_index(delta.index());
  if (!delta.logprobs().empty()) AppendOutput(delta, chunk->mutable_output_logprobs());
  if (!std::exchange(sequence.has_begun, true) && has_prompt_logprobs_)
    *chunk->mutable_input_logprobs() = prompt_logprobs_;
  return response;
}

absl::optional<engine_pb::GenerateResponse> ReplyTranslator::TranslateFinished(
    const v1::Finished& finished) {
  const char* const reason = FinishReasonName(finished.reason());
  if (reason == nullptr) return absl::nullopt;
  has_told_abort_ |= finished.reason() == v1::FINISH_REASON_CANCELLED;
  Sequence& sequence = SequenceAt(finished.index());
  engine_pb::GenerateResponse response;
  engine_pb::GenerateComplete* complete = response.mutable_complete();
  complete->Swap(&sequence.complete);
  complete->set_finish_reason(reason);
  complete->set_prompt_tokens(num_prompt_tokens_);
  complete->set_completion_tokens(finished.usage().completion_tokens());
  complete->set_cached_tokens(num_cached_tokens_);
  complete->set_index(finished.index());
  if (!sequence.has_begun && has_prompt_logprobs_)
    *complete->mutable_input_logprobs() = prompt_logprobs_;
  if (finished.has_stop_token_id()) complete->set_matched_token_id(finished.stop_token_id());
  if (finished.has_stop_string()) complete->set_matched_stop_str(finished.stop_string());
  return response;
}

}  // namespace pagoda::daemon
