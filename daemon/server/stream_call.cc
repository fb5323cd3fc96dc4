#include "daemon/server/stream_call.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "daemon/server/output_shards.h"

namespace pagoda::daemon {
namespace {

// Prompt log-probabilities can take megabytes; in pieces of this size every client's receive limit
// (4 MiB by default) holds them.
constexpr size_t kMaxPieceBytes = size_t{1} << 20;
// What a token without log-probabilities takes, and one log-probability: more than the engine's
// output does while it waits, less than JSON does once it is being written.
constexpr size_t kTokenBytes = 8;
constexpr size_t kLogprobBytes = 32;

size_t OutputBytes(const engine::OutputDelta& delta) {
  size_t bytes = delta.text.size() + delta.tokens.size() * kTokenBytes;
  for (const engine::TokenLogprobs& position : delta.logprobs)
    bytes += (position.top.size() + 1) * kLogprobBytes;
  return bytes;
}

void Join(engine::OutputDelta* from, engine::OutputDelta* to) {
  to->text += from->text;
  to->tokens.insert(to->tokens.end(), from->tokens.begin(), from->tokens.end());
  to->logprobs.insert(to->logprobs.end(),
                      std::make_move_iterator(from->logprobs.begin()),
                      std::make_move_iterator(from->logprobs.end()));
}

// What AppendOutput reads.
engine::OutputDelta TakeOutput(engine::OutputDelta* from) {
  engine::OutputDelta out;
  out.index = from->index;
  out.text = std::move(from->text);
  out.tokens = std::move(from->tokens);
  out.logprobs = std::move(from->logprobs);
  return out;
}

}  // namespace

GenerationCall::Progress StreamCall::HandleOutput(engine::OutputDelta delta) {
  if (CanWriteAtOnce(delta)) {
    WriteAtOnce(&delta);
    return Progress::kLive;
  }
  if (delta.started.has_value()) AddStarted(*delta.started);
  if (!delta.prompt_logprobs.empty()) AddPromptLogprobs(delta.prompt_logprobs);
  AddOutput(&delta);
  if (delta.finished.has_value()) AddFinished(delta.index, *delta.finished);
  ended_ = delta.last;
  return Advance();
}

bool StreamCall::CanWriteAtOnce(const engine::OutputDelta& delta) const {
  return waiting_.empty() && !delta.tokens.empty() && !delta.started.has_value() &&
         delta.prompt_logprobs.empty() && !delta.finished.has_value() && !delta.last &&
         !converter().echoes() && write_state_.load(std::memory_order_acquire) == WriteState::kIdle;
}

void StreamCall::WriteAtOnce(engine::OutputDelta* delta) {
  // Most of what is written at all; the thread's message keeps its memory. It stays small: a step's
  // output of one sequence.
  thread_local v1::StreamGenerateResponse message;
  message.mutable_delta()->Clear();
  in_flight_output_bytes_ = OutputBytes(*delta);
  converter().AppendOutput(delta, message.mutable_delta());
  BeginWrite(absl::MakeSpan(&message, 1), /*more=*/false);
}

void StreamCall::AddStarted(const engine::RequestStarted& started) {
  *waiting_.emplace_back().message.mutable_started() = converter().MakeStarted(started);
}

void StreamCall::AddPromptLogprobs(const std::vector<engine::TokenLogprobs>& positions) {
  v1::Delta* piece = nullptr;
  size_t piece_bytes = 0;
  for (const engine::TokenLogprobs& position : positions) {
    if (piece == nullptr || piece_bytes > kMaxPieceBytes) {
      piece = waiting_.emplace_back().message.mutable_delta();
      piece_bytes = 0;
    }
    converter().FillLogprobs(position, piece->add_prompt_logprobs());
    piece_bytes += (position.top.size() + 1) * kLogprobBytes;
  }
}

StreamCall::Waiting* StreamCall::WaitingDelta(int32_t index) {
  // A delta of the same sequence is its last event but one at most: nothing follows `finished`.
  const auto found = std::find_if(waiting_.rbegin(), waiting_.rend(), [index](const Waiting& each) {
    return each.message.has_delta() && each.message.delta().index() == static_cast<uint32_t>(index);
  });
  return found == waiting_.rend() ? nullptr : &*found;
}

void StreamCall::AddOutput(engine::OutputDelta* delta) {
  const size_t output_bytes = OutputBytes(*delta);
  Waiting* waiting = WaitingDelta(delta->index);
  if (waiting != nullptr) {
    metrics().stream_coalesced_tokens.fetch_add(delta->tokens.size(), std::memory_order_relaxed);
  } else if (delta->tokens.empty()) {
    // Text that came late, or what is to be echoed; or nothing.
    v1::StreamGenerateResponse message;
    converter().AppendOutput(delta, message.mutable_delta());
    if (!message.delta().text().empty()) waiting_.push_back({.message = std::move(message)});
    return;
  } else {
    waiting = &waiting_.emplace_back();
    waiting->message.mutable_delta()->set_index(static_cast<uint32_t>(delta->index));
  }
  if (waiting->output.has_value()) {
    Join(delta, &*waiting->output);
  } else {
    waiting->output = TakeOutput(delta);
  }
  waiting->output_bytes += output_bytes;
  waiting_output_bytes_ += output_bytes;
}

void StreamCall::AddFinished(int32_t index, const engine::SequenceFinished& finished) {
  *waiting_.emplace_back().message.mutable_finished() = converter().MakeFinished(index, finished);
  // The call ends with the first failure among its sequences; the others are still delivered.
  end_status_.Update(finished.status);
}

GenerationCall::Progress StreamCall::Advance() {
  if (waiting_.empty() && !ended_) return Progress::kLive;
  WriteState state = WriteState::kWriting;
  const bool in_flight = write_state_.compare_exchange_strong(state, WriteState::kWritingMore) ||
                         state == WriteState::kWritingMore;
  if (!in_flight) return StartNextWrite();
  if (waiting_output_bytes_ + in_flight_output_bytes_ <= services().max_stream_buffer_bytes)
    return Progress::kLive;
  EndSlow("more output waits than max_stream_buffer_bytes");
  return Progress::kEnded;
}

GenerationCall::Progress StreamCall::ContinueWriting() {
  write_state_.store(WriteState::kIdle, std::memory_order_relaxed);
  return StartNextWrite();
}

std::vector<v1::StreamGenerateResponse> StreamCall::TakeMessages() {
  const auto end = waiting_.begin() +
                   static_cast<ptrdiff_t>(std::min(waiting_.size(), most_messages_per_write_));
  std::vector<v1::StreamGenerateResponse> taken;
  taken.reserve(static_cast<size_t>(end - waiting_.begin()));
  in_flight_output_bytes_ = 0;
  for (auto it = waiting_.begin(); it != end; ++it) {
    if (it->output.has_value()) converter().AppendOutput(&*it->output, it->message.mutable_delta());
    in_flight_output_bytes_ += it->output_bytes;
    taken.push_back(std::move(it->message));
  }
  waiting_output_bytes_ -= in_flight_output_bytes_;
  if (end == waiting_.end()) {
    std::vector<Waiting>().swap(waiting_);  // a reader that was slow once need not be again
  } else {
    waiting_.erase(waiting_.begin(), end);
  }
  return taken;
}

GenerationCall::Progress StreamCall::StartNextWrite() {
  if (waiting_.empty()) {
    if (!ended_) return Progress::kLive;
    Close(end_status_);
    Finish(end_status_);
    return Progress::kEnded;
  }
  std::vector<v1::StreamGenerateResponse> messages = TakeMessages();
  if (waiting_.empty() && ended_ && end_status_.ok()) {
    metrics().stream_messages.fetch_add(messages.size(), std::memory_order_relaxed);
    Close(end_status_);
    WriteLast(absl::MakeSpan(messages));
    return Progress::kEnded;
  }
  BeginWrite(absl::MakeSpan(messages), /*more=*/!waiting_.empty() || ended_);
  return Progress::kLive;
}

void StreamCall::BeginWrite(Messages messages, bool more) {
  metrics().stream_messages.fetch_add(messages.size(), std::memory_order_relaxed);
  write_start_ns_ = services().clock->NowNs();
  write_state_.store(more ? WriteState::kWritingMore : WriteState::kWriting,
                     std::memory_order_release);
  Write(messages, more);
}

void StreamCall::HandleWritten() {
  WriteState state = WriteState::kWriting;
  if (write_state_.compare_exchange_strong(state, WriteState::kIdle)) return;
  services().shards->NoteWriteReady(key());
}

absl::optional<int64_t> StreamCall::stalled_since_ns() const {
  if (write_state_.load(std::memory_order_relaxed) != WriteState::kWritingMore)
    return absl::nullopt;
  return write_start_ns_;
}

}  // namespace pagoda::daemon
