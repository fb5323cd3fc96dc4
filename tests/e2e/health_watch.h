#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace pagoda::e2e {

// An open Health.Watch call: a stream that tells every change. It is read by a thread of its own,
// since what waits unread is lost where a stream ends with an error. Thread-compatible.
class HealthWatch {
 public:
  // An empty service stands for the whole server.
  explicit HealthWatch(const std::string& address,
                       const std::string& service = "pagoda.v1.InferenceService");
  ~HealthWatch();

  // Reads until the status is, or no longer is, SERVING; false when the stream ended before.
  bool ReadUntil(bool serving);
  // Reads to the end of the stream: whether each further status was SERVING.
  std::vector<bool> ReadRest();

 private:
  // The next status; false at the end of the stream.
  bool Read(bool* serving);

  grpc::ClientContext context_;
  std::unique_ptr<grpc::health::v1::Health::Stub> stub_;
  std::unique_ptr<grpc::ClientReader<grpc::health::v1::HealthCheckResponse>> stream_;
  absl::Mutex mutex_;
  std::deque<bool> unread_ ABSL_GUARDED_BY(mutex_);
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread reader_;
};

}  // namespace pagoda::e2e
