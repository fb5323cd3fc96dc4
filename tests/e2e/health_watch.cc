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
  reader_ = stub_->Watch(&context_, request);
}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  ReadRest();
  reader_->Finish();
}

bool HealthWatch::Read(bool* serving) {
  HealthCheckResponse response;
  has_ended_ = has_ended_ || !reader_->Read(&response);
  *serving = response.status() == HealthCheckResponse::SERVING;
  return !has_ended_;
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
