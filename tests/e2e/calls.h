#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "pagoda/v1/inference.grpc.pb.h"

namespace pagoda::e2e {

// What a test asks for in one line.
v1::GenerateRequest TextRequest(const std::string& prompt, uint32_t max_tokens);
v1::GenerateRequest IdsRequest(const std::vector<uint32_t>& prompt, uint32_t max_tokens);
v1::StreamGenerateRequest AsStream(const v1::GenerateRequest& request);

// One finished call, unary or stream, in one shape.
struct CallResult {
  grpc::Status status;
  v1::Started started;
  struct Sequence {
    std::string text;
    std::vector<uint32_t> token_ids;
    std::vector<v1::TokenLogprobs> logprobs;
    v1::Finished finished;
    int num_finished = 0;
    bool is_greedy = false;

    // The tokens, the text, its end and the bits of log-probabilities are those expected. On a
    // device that is not exact: up to a near tie; greedy outputs that were asked for 2
    // log-probabilities show where that was.
    bool SameOutput(const Sequence& expected) const;
  };
  std::map<uint32_t, Sequence> sequences;
  std::vector<v1::TokenLogprobs> prompt_logprobs;
  int num_messages = 0;
  int num_started = 0;

  const Sequence& first() const { return sequences.at(0); }
};

// A call to a daemon that does not listen waits for it, unless told otherwise.
CallResult Generate(v1::InferenceService::Stub& stub,
                    const v1::GenerateRequest& request,
                    absl::Duration timeout = absl::Seconds(120),
                    bool waits_for_daemon = true);
CallResult StreamGenerate(v1::InferenceService::Stub& stub,
                          const v1::GenerateRequest& request,
                          absl::Duration timeout = absl::Seconds(120));

// A stream that is read step by step.
class OpenStream {
 public:
  OpenStream(v1::InferenceService::Stub& stub,
             const v1::GenerateRequest& request,
             absl::Duration timeout = absl::Seconds(120),
             bool waits_for_daemon = true);

  // Reads one message into `result`; false when there is no more.
  bool Read();
  // Reads until a first token has come; false when the stream ended before.
  bool ReadFirstToken();
  // Reads the rest.
  grpc::Status Finish();
  void Cancel() { context_.TryCancel(); }

  CallResult result;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::StreamGenerateResponse>> reader_;
};

// ErrorInfo.reason and the first BadRequest field of a status' details; empty when there is none.
std::string ErrorReason(const grpc::Status& status);
std::string FirstViolation(const grpc::Status& status);
bool HasRetryInfo(const grpc::Status& status);

}  // namespace pagoda::e2e
