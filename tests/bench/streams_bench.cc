// Many concurrent streams at a steady pace: the simulated device makes one token for each every 50
// ms, and the daemon has to pass every one on in time.
//
// usage: streams_bench [STREAMS] [TOKENS]

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

constexpr double kStepMs = 50.0;
constexpr double kTokensPerSecond = 1000.0 / kStepMs;
// As clients that share a gateway do.
constexpr int kStreamsPerChannel = 100;
// At the start prompts come in and at the end streams leave; between them every stream is alive.
constexpr int kEdgeTokens = 20;

// One stream, read by gRPC's own threads.
class PacedStream final : public grpc::ClientReadReactor<v1::StreamGenerateResponse> {
 public:
  PacedStream(v1::InferenceService::Stub* stub,
              const v1::StreamGenerateRequest* request,
              absl::BlockingCounter* done)
      : done_(done) {
    stub->async()->StreamGenerate(&context_, request, this);
    StartRead(&message_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    num_tokens_ += message_.delta().token_ids_size();
    if (num_tokens_ > 0) {
      const absl::Time now = absl::Now();
      if (first_tokens_ == 0) {
        first_ = now;
        first_tokens_ = num_tokens_;
      }
      if (message_.has_delta()) last_ = now;
    }
    StartRead(&message_);
  }
  void OnDone(const grpc::Status& status) override {
    ok_ = status.ok();
    done_->DecrementCount();
  }

  // After its end.
  bool ok() const { return ok_; }
  double TokensPerSecond() const {
    return (num_tokens_ - first_tokens_) / absl::ToDoubleSeconds(last_ - first_);
  }

 private:
  grpc::ClientContext context_;
  v1::StreamGenerateResponse message_;
  absl::BlockingCounter* const done_;
  int num_tokens_ = 0;
  int first_tokens_ = 0;
  absl::Time first_, last_;
  bool ok_ = false;
};

int Run(int num_streams, int num_tokens) {
  auto started =
      e2e::TestDaemon::Start({.flags = {"--device=sim",
                                        absl::StrCat("--sim-base-us=", kStepMs * 1000.0),
                                        "--sim-per-token-us=0",
                                        "--sim-per-context-token-ns=0",
                                        absl::StrCat("--max-num-seqs=", num_streams),
                                        absl::StrCat("--max-waiting-requests=", 2 * num_streams)}});
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
    return 1;
  }
  e2e::TestDaemon& daemon = **started;
  v1::GenerateRequest unary =
      e2e::TextRequest("Once upon a time", static_cast<uint32_t>(num_tokens));
  unary.mutable_stopping()->set_ignore_eos(true);
  const v1::StreamGenerateRequest request = e2e::AsStream(unary);
  e2e::StreamGenerate(daemon.stub(), e2e::TextRequest("warm", 4));
  const uint64_t idle_bytes = ResidentBytes(daemon.pid());

  absl::BlockingCounter done(num_streams);
  std::vector<std::unique_ptr<v1::InferenceService::Stub>> stubs;
  std::vector<std::unique_ptr<PacedStream>> streams;
  for (int i = 0; i < num_streams; ++i) {
    if (i % kStreamsPerChannel == 0) stubs.push_back(daemon.NewStub());
    streams.push_back(std::make_unique<PacedStream>(stubs.back().get(), &request, &done));
  }
  absl::SleepFor(absl::Milliseconds(kStepMs * kEdgeTokens));
  const absl::Time begin = absl::Now();
  const double cpu_begin = CpuSeconds(daemon.pid());
  absl::SleepFor(absl::Milliseconds(kStepMs * (num_tokens - 2 * kEdgeTokens)));
  const double cores =
      (CpuSeconds(daemon.pid()) - cpu_begin) / absl::ToDoubleSeconds(absl::Now() - begin);
  const uint64_t busy_bytes = ResidentBytes(daemon.pid());
  done.Wait();

  double slowest = 1e9, fastest = 0.0;
  for (const auto& stream : streams) {
    if (!stream->ok()) {
      std::fprintf(stderr, "a stream failed\n");
      return 1;
    }
    slowest = std::min(slowest, stream->TokensPerSecond());
    fastest = std::max(fastest, stream->TokensPerSecond());
  }
  std::printf("%d streams of %d tokens: %.2f to %.2f tokens/s each\n",
              num_streams,
              num_tokens,
              slowest,
              fastest);
  bool reached =
      Print({"pace of the slowest stream", "tokens/s", 0.95 * kTokensPerSecond, slowest, false});
  reached &= Print({"cores of the daemon", "cores", 1.0, cores});
  const double kib_per_stream =
      (static_cast<double>(busy_bytes) - static_cast<double>(idle_bytes)) / 1024.0 / num_streams;
  reached &= Print({"resident memory per stream", "KiB", 100.0, kib_per_stream});
  return reached ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  return pagoda::bench::Run(argc > 1 ? std::atoi(argv[1]) : 1000,
                            argc > 2 ? std::atoi(argv[2]) : 200);
}
