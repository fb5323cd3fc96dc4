#pragma once

#include "daemon/server/generation_call.h"

namespace pagoda::daemon {

// A call that gathers every sequence and answers once. A client that goes away ends it as it ends a
// stream.
class UnaryCall : public GenerationCall {
 protected:
  using GenerationCall::GenerationCall;

  // The answer of a call that ends well, with its end.
  virtual void Reply(v1::GenerateResponse reply) = 0;

 private:
  Progress HandleOutput(engine::OutputDelta delta) override;

  // Owner.
  v1::GenerateResponse reply_;
  v1::Delta output_;         // of the delta at hand
  absl::Status end_status_;  // the first failure among the sequences: then there is no reply
};

}  // namespace pagoda::daemon
