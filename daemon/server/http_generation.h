#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/openai/generation_request.h"
#include "daemon/openai/response_shape.h"
#include "daemon/server/generation_call.h"
#include "daemon/server/http_message.h"

namespace pagoda::daemon {

// A completion or a chat from its body to its answer: one generation call per prompt, whose outputs
// it joins. Calls run on text and output threads and post what they have to the I/O thread, which
// owns all else. Lives as long as anybody holds it, and ends the exchange exactly once.
class HttpGeneration final : public HttpExchange,
                             public std::enable_shared_from_this<HttpGeneration> {
 public:
  struct Options {
    Caller caller;
    openai::Endpoint endpoint = openai::Endpoint::kCompletions;
    openai::ReasoningMode reasoning = openai::ReasoningMode::kAuto;
    std::string id;  // of the response
    std::string traceparent;
    int64_t created = 0;
  };

  HttpGeneration(const CallServices* services, std::shared_ptr<HttpPeer> peer, Options options);
  ~HttpGeneration() override;

  // Text thread: reads the body and admits the calls.
  void Run(const std::string& body);

  // I/O thread.
  void HandleClientGone() override;
  void HandleWritten() override;
  void HandleQuiet() override;

 private:
  class StreamingCall;
  class GatheringCall;

  // Output threads: what a call has for the client.
  void PostWrite(size_t call, std::string events);
  void PostEnd(size_t call, std::string last, absl::Status status, openai::UsageTotals usage);
  void PostCutOff(size_t call, absl::Status status);

  // I/O thread.
  void HandlePrepared();
  void HandleWrite(size_t call, absl::string_view events);
  void NoteWritten(size_t call);
  void HandleEnd(size_t call, std::string last, const absl::Status& status);
  void BeginStream();
  void CancelRest();
  void End();
  void EndWithError(const absl::Status& status);

  const CallServices& services_;
  const std::shared_ptr<HttpPeer> peer_;
  const Options options_;
  // Written by the text thread before the first post, constant since.
  openai::ResponseShape shape_;
  bool is_stream_ = false;
  std::vector<std::unique_ptr<GenerationCall>> calls_;
  // I/O thread.
  // Of each call.
  std::vector<bool> ended_;
  std::vector<bool> awaits_write_;    // its events are not all with the kernel
  std::vector<std::string> choices_;  // where the answer comes whole
  size_t num_running_ = 0;
  openai::UsageTotals usage_;
  absl::Status error_;  // the first
  bool has_begun_ = false;
  bool is_prepared_ = false;
  bool client_gone_ = false;
};

}  // namespace pagoda::daemon
