#include "daemon/server/access.h"

#include <iterator>
#include <utility>

#include "daemon/server/rpc_error.h"

namespace pagoda::daemon {
namespace {

absl::StatusOr<Caller> Find(const ApiKeys& keys,
                            AccessClass wanted,
                            absl::string_view authorization) {
  if (wanted == AccessClass::kPublic) return Caller();
  if (keys.empty()) {
    if (wanted == AccessClass::kAdmin) return WrongAccessClassError();
    return Caller{.access = AccessClass::kUser};
  }
  const Caller* const caller = keys.Find(authorization);
  if (caller == nullptr) return UnauthenticatedError();
  if (caller->access < wanted) return WrongAccessClassError();
  return *caller;
}

}  // namespace

void AccessControl::SetKeys(ApiKeys keys) {
  auto added = std::make_shared<const ApiKeys>(std::move(keys));
  MutexLock lock(&mutex_);
  keys_ = std::move(added);
}

std::shared_ptr<const ApiKeys> AccessControl::keys() const {
  MutexLock lock(&mutex_);
  return keys_;
}

bool AccessControl::asks_for_keys() const { return !keys()->empty(); }

absl::StatusOr<Caller> AccessControl::Check(AccessClass wanted,
                                            absl::string_view authorization) const {
  absl::StatusOr<Caller> caller = Find(*keys(), wanted, authorization);
  if (!caller.ok()) metrics_->CountRejected(RejectReason::kAuth);
  return caller;
}

absl::StatusOr<Caller> AccessControl::Check(AccessClass wanted,
                                            const grpc::ServerContextBase& context) const {
  const auto& metadata = context.client_metadata();
  const auto [begin, end] = metadata.equal_range("authorization");
  // Of two it would not be clear who calls.
  const bool is_one = begin != end && std::next(begin) == end;
  const absl::string_view shown =
      is_one ? absl::string_view(begin->second.data(), begin->second.size()) : absl::string_view();
  return Check(wanted, shown);
}

void AccessControl::Refuse(const absl::Status& why,
                           absl::string_view peer,
                           absl::AnyInvocable<void()> tell) const {
  // Of a lower class than is wanted, a key is right.
  const absl::Duration delay = absl::IsUnauthenticated(why)
                                   ? guard_.NoteWrongKey(AddressOfPeer(peer))
                                   : absl::ZeroDuration();
  guard_.AnswerLater(delay, std::move(tell));
}

}  // namespace pagoda::daemon
