#include "daemon/server/unary_call.h"

#include <utility>

namespace pagoda::daemon {

GenerationCall::Progress UnaryCall::HandleOutput(engine::OutputDelta delta) {
  if (delta.started.has_value())
    *reply_.mutable_started() = converter().MakeStarted(*delta.started);
  for (const engine::TokenLogprobs& position : delta.prompt_logprobs) {
    converter().FillLogprobs(position, reply_.add_prompt_logprobs());
  }
  while (reply_.sequences_size() < converter().num_sequences()) reply_.add_sequences();
  v1::GenerateResponse::Sequence* sequence = reply_.mutable_sequences(delta.index);
  output_.Clear();
  converter().AppendOutput(&delta, &output_);
  sequence->mutable_text()->append(output_.text());
  sequence->mutable_token_ids()->MergeFrom(output_.token_ids());
  for (v1::TokenLogprobs& position : *output_.mutable_logprobs())
    *sequence->add_logprobs() = std::move(position);
  if (delta.finished.has_value()) {
    *sequence->mutable_finished() = converter().MakeFinished(delta.index, *delta.finished);
    end_status_.Update(delta.finished->status);
  }
  if (!delta.last) return Progress::kLive;
  Close(end_status_);
  if (end_status_.ok()) {
    Reply(std::move(reply_));
  } else {
    Finish(end_status_);
  }
  return Progress::kEnded;
}

}  // namespace pagoda::daemon
