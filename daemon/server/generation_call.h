#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "daemon/server/convert_request.h"
#include "daemon/server/convert_response.h"
#include "daemon/server/engine_port.h"
#include "daemon/server/live_requests.h"
#include "daemon/server/served_model.h"
#include "daemon/server/server_metrics.h"
#include "engine/ids.h"
#include "engine/output.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/status.h"
#include "kernels/base/clock.h"

namespace pagoda::daemon {

class OutputShards;

// What generation calls share. Everything outlives every call.
struct CallServices {
  const ServedModel* model = nullptr;
  EnginePort* engine = nullptr;
  OutputShards* shards = nullptr;
  LiveRequestIds* request_ids = nullptr;
  CallCounter* calls = nullptr;
  ServerMetrics* metrics = nullptr;
  const Clock* clock = &Clock::Monotonic();
  // Output that may wait for a slow reader.
  size_t max_stream_buffer_bytes = 0;
};

// A Generate or StreamGenerate call from its arrival to its Finish. One thread owns it at a time
// and alone calls its gRPC operations: the text thread that admits it, then, once attached, its
// output shard's. gRPC's own threads only post events by key. The owner forgets the call when it
// ends: gRPC may delete it at any moment after that.
class GenerationCall {
 public:
  enum class Progress { kLive, kEnded };

  GenerationCall(const CallServices& services,
                 grpc::CallbackServerContext* context,
                 engine::RequestKey key,
                 bool stream);
  virtual ~GenerationCall();
  GenerationCall(const GenerationCall&) = delete;
  GenerationCall& operator=(const GenerationCall&) = delete;

  // Text thread, the owner until then: parses, checks, encodes, gives the call to its shard and
  // submits; or ends it.
  void Admit(const grpc::ByteBuffer& request_bytes);

  // Owner: the engine has taken the request. (Its first output may come before this is known.)
  void NoteAdmitted() { admitted_ = true; }
  // Owner: output of the engine.
  Progress Deliver(engine::OutputDelta delta);
  // Owner: the write that had output waiting behind it has ended.
  virtual Progress ContinueWriting() { return Progress::kLive; }
  // Owner: ends the call at once, dropping output that waits. A cancellation past the deadline is
  // told as such.
  void End(absl::Status why);
  // Owner: ends a call whose client does not read, and its request.
  void EndSlow(absl::string_view what);
  // Owner: since when output has waited for the reader; absent when none does.
  virtual absl::optional<int64_t> stalled_since_ns() const { return absl::nullopt; }

  engine::RequestKey key() const { return key_; }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }
  bool DeadlinePassed() const;

 protected:
  virtual absl::StatusOr<ConvertedRequest> Convert(const grpc::ByteBuffer& request_bytes,
                                                   const CallOrigin& origin) = 0;
  virtual Progress HandleOutput(engine::OutputDelta delta) = 0;
  // Sends the status; no other gRPC operation of this call follows.
  virtual void Finish(const grpc::Status& status) = 0;

  // Counts the end and frees the request id, so that a client that has seen its call end can use
  // the id again. Returns what the client is told. Before Finish or its like.
  grpc::Status Close(const absl::Status& status);
  // gRPC thread: the client is gone or its deadline passed.
  void HandleCancel();
  ResponseConverter& converter() { return *converter_; }
  const CallServices& services() const { return services_; }

 private:
  absl::Status Prepare(const grpc::ByteBuffer& request_bytes, engine::Request* request);
  void NoteOutput(const engine::OutputDelta& delta);
  engine::Outcome OutcomeOf(const absl::Status& status) const;

  const CallServices& services_;
  grpc::CallbackServerContext* const context_;
  const engine::RequestKey key_;
  const bool stream_;
  const int64_t arrival_ns_;
  const absl::optional<int64_t> deadline_ns_;
  std::atomic<bool> cancelled_{false};
  // The owner's.
  absl::optional<ResponseConverter> converter_;  // from Admit on
  std::string live_id_;                          // in services_.request_ids; empty: not there
  bool admitted_ = false;
  bool seen_token_ = false;
  engine::FinishReason reason_ = engine::FinishReason::kStop;  // of index 0
};

}  // namespace pagoda::daemon
