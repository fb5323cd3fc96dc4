#include "tests/e2e/health_watch.h"

#include <chrono>

namespace pagoda::e2e {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthWatch::HealthWatch(const std::string& address, const std::string& service) {
  context_.set_wait_for_ready(true);
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  stub_ = Health::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  HealthCheckRequest request;
  request.set_service(service);
  stream_ = stub_->Watch(&context_, request);
  reader_ = std::thread([this] {
    for (HealthCheckResponse response; stream_->Read(&response);) {
      absl::MutexLock lock(&mutex_);
      unread_.push_back(response.status() == HealthCheckResponse::SERVING);
    }
    absl::MutexLock lock(&mutex_);
    has_ended_ = true;
  });
}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  reader_.join();
  stream_->Finish();
}

bool HealthWatch::Read(bool* serving) {
  absl::MutexLock lock(&mutex_);
  const auto has_news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return has_ended_ || !unread_.empty();
  };
  mutex_.Await(absl::Condition(&has_news));
  if (unread_.empty()) return false;
  *serving = unread_.front();
  unread_.pop_front();
  return true;
}

bool HealthWatch::ReadUntil(bool serving) {
  for (bool next = false; Read(&next);) {
    if (next == serving) return true;
  }
  return false;
}

std::vector<bool> HealthWatch::ReadRest() {
  std::vector<bool> rest;
  for (bool next = false; Read(&next);) rest.push_back(next);
  return rest;
}

}  // namespace pagoda::e2e
