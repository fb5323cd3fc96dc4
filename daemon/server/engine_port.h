#pragma once

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/request.h"

namespace pagoda::daemon {

// What calls ask of the engine; narrow, so that reactors are tested without one. Thread-safe.
class EnginePort {
 public:
  virtual ~EnginePort() = default;
  virtual absl::Status Submit(engine::Request request) = 0;
  virtual void Cancel(engine::RequestKey key) = 0;
};

// The real one. `engine` outlives it.
class EngineAsPort final : public EnginePort {
 public:
  explicit EngineAsPort(engine::Engine* engine) : engine_(engine) {}
  absl::Status Submit(engine::Request request) override {
    return engine_->Submit(std::move(request));
  }
  void Cancel(engine::RequestKey key) override { engine_->Cancel(key); }

 private:
  engine::Engine* const engine_;
};

}  // namespace pagoda::daemon
