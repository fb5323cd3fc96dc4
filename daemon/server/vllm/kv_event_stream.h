#pragma once

#include <atomic>

#include "daemon/server/vllm/kv_event_hub.h"
#include "grpcpp/support/server_callback.h"

namespace pagoda::daemon {

// A SubscribeKvEvents call. gRPC's threads run the reactions, which only tell the hub.
class KvEventStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                            public KvEventSubscriber {
 public:
  // `hub` outlives the call.
  explicit KvEventStream(KvEventHub* hub) : hub_(hub), id_(hub->NewId()) {}

  uint64_t id() const { return id_; }

  void Write(grpc::ByteBuffer batch) override {
    in_flight_ = std::move(batch);
    StartWrite(&in_flight_);
  }
  // Also of a call that the hub does not know yet.
  void End(const absl::Status& status) override;
  bool cancelled() const override { return cancelled_.load(std::memory_order_acquire); }

  // gRPC's reactions.
  void OnWriteDone(bool ok) override {
    if (ok) hub_->NoteWritten(id_);  // else the call is cancelled, which OnCancel says
  }
  void OnCancel() override {
    cancelled_.store(true, std::memory_order_release);
    hub_->NoteCancelled(id_);
  }
  void OnDone() override { delete this; }

 private:
  KvEventHub* const hub_;
  const uint64_t id_;
  std::atomic<bool> cancelled_{false};
  grpc::ByteBuffer in_flight_;  // gRPC's while a write is in flight
};

}  // namespace pagoda::daemon
