#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "daemon/server/access.h"
#include "daemon/server/convert_request.h"
#include "daemon/server/convert_response.h"
#include "daemon/server/engine_port.h"
#include "daemon/server/live_requests.h"
#include "daemon/server/request_log.h"
#include "daemon/server/served_model.h"
#include "daemon/server/server_metrics.h"
#include "engine/ids.h"
#include "engine/output.h"
#include "kernels/base/clock.h"

namespace pagoda::daemon {

class ConstraintCompiler;
class OutputShards;

// What generation calls share. Everything outlives every call.
struct CallServices {
  const ServedModel* model = nullptr;
  EnginePort* engine = nullptr;
  OutputShards* shards = nullptr;
  LiveRequestIds* request_ids = nullptr;
  CallCounter* calls = nullptr;
  ServerMetrics* metrics = nullptr;
  const AccessControl* access = nullptr;
  RequestLog* log = nullptr;  // null: requests are not logged
  // Null: text threads compile constraints themselves.
  ConstraintCompiler* compiler = nullptr;
  const Clock* clock = &Clock::Monotonic();
  // Output that may wait for a slow reader.
  size_t max_stream_buffer_bytes = 0;
};

// Counts a request that was turned away before it became a call, as the call would have.
void CountRefusal(const CallServices& services, Api api, const absl::Status& status);

// A generation from its arrival to its Finish, whatever brought it. One thread owns it at a time
// and alone calls the operations of its transport: the text thread that admits it, the compiler's
// when its constraint is new, then, once attached, its output shard's. The transport's own threads
// only post events by key. The owner forgets the call when it ends: the transport may delete it at
// any moment after that.
class GenerationCall {
 public:
  enum class Progress { kLive, kEnded };

  struct Options {
    Caller caller;
    engine::RequestKey key;
    bool stream = false;
    absl::optional<int64_t> deadline_ns;
    Api api = Api::kGrpc;
    std::string traceparent;  // valid or empty
  };

  GenerationCall(const CallServices& services, const Options& options);
  virtual ~GenerationCall();
  GenerationCall(const GenerationCall&) = delete;
  GenerationCall& operator=(const GenerationCall&) = delete;

  // Text thread, the owner until then: parses, checks, encodes, gives the call to its shard and
  // submits; or ends it.
  void Admit();

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
  // Transport's thread: the client is gone or its deadline passed.
  void HandleCancel();

 protected:
  virtual absl::StatusOr<ConvertedRequest> Convert(const CallOrigin& origin) = 0;
  // What is wrong with a field, in the words of the client's protocol.
  virtual absl::Status Restate(absl::Status invalid) { return invalid; }
  virtual Progress HandleOutput(engine::OutputDelta delta) = 0;
  // Tells the client how the call ended; no other operation of this call follows.
  virtual void Finish(const absl::Status& status) = 0;
  // The same for a client that does not read: what waits for it is dropped.
  virtual void CutOff(const absl::Status& status) = 0;

  // Counts the end and frees the request id, so that a client that has seen its call end can use
  // the id again. Before Finish or its like.
  void Close(const absl::Status& status);
  ResponseConverter& converter() { return *converter_; }
  const ResponseConverter& converter() const { return *converter_; }
  const CallServices& services() const { return services_; }
  ApiMetrics& metrics() { return metrics_; }

 private:
  absl::Status Prepare(engine::Request* request, absl::optional<UncompiledConstraint>* uncompiled);
  // The call goes on when the constraint has been compiled.
  void Compile(engine::Request request, UncompiledConstraint uncompiled);
  void Submit(engine::Request request);
  void NoteAsked(const engine::Request& request);
  void NoteStarted(const engine::Request& request, std::string request_id);
  void NoteOutput(const engine::OutputDelta& delta);
  void NoteFinished(const engine::SequenceFinished& finished);
  engine::Outcome OutcomeOf(const absl::Status& status) const;

  const CallServices& services_;
  ApiMetrics& metrics_;
  const engine::Tenant tenant_;
  const engine::RequestKey key_;
  const bool stream_;
  const int64_t arrival_ns_;
  const absl::optional<int64_t> deadline_ns_;
  std::atomic<bool> cancelled_{false};
  // The owner's.
  absl::optional<ResponseConverter> converter_;  // from Admit on
  std::string live_name_;                        // in services_.request_ids; empty: not there
  LoggedRequest logged_;
  bool admitted_ = false;
  bool seen_token_ = false;
  int64_t queue_ns_ = 0;
  engine::FinishReason reason_ = engine::FinishReason::kStop;  // of index 0
};

}  // namespace pagoda::daemon
