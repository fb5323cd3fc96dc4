#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/server/api_keys.h"
#include "daemon/server/key_guard.h"
#include "daemon/server/server_metrics.h"
#include "grpcpp/server_context.h"
#include "kernels/base/mutex.h"

namespace pagoda::daemon {

// Who may call what, and how long those who may not wait to be told. Thread-safe.
class AccessControl {
 public:
  // `metrics` outlives this and counts who was refused.
  explicit AccessControl(ServerMetrics* metrics,
                         const KeyGuard::Options& guard = KeyGuard::Options())
      : metrics_(metrics), guard_(guard) {}

  // From now on; running calls go on whatever keys brought them.
  void SetKeys(ApiKeys keys);
  bool asks_for_keys() const;

  // The caller, or UNAUTHENTICATED for a header that shows no key, PERMISSION_DENIED for a key of a
  // lower class. Without any keys everybody may use all classes but kAdmin.
  absl::StatusOr<Caller> Check(AccessClass wanted, absl::string_view authorization) const;
  // By the `authorization` of the call's metadata.
  absl::StatusOr<Caller> Check(AccessClass wanted, const grpc::ServerContextBase& context) const;

  // Tells a peer, as gRPC names it, why Check has refused it: calls `tell` now, or where it shows
  // wrong keys all the time a few seconds later on another thread.
  void Refuse(const absl::Status& why,
              absl::string_view peer,
              absl::AnyInvocable<void()> tell) const;
  // Tells all who wait, and from now on nobody waits.
  void StopDelays() { guard_.Stop(); }

 private:
  std::shared_ptr<const ApiKeys> keys() const;

  ServerMetrics* const metrics_;
  mutable KeyGuard guard_;
  mutable Mutex mutex_;
  std::shared_ptr<const ApiKeys> keys_ ABSL_GUARDED_BY(mutex_) = std::make_shared<ApiKeys>();
};

}  // namespace pagoda::daemon
