#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/request.h"

namespace pagoda::daemon {

// What a route or an RPC is for. Who may use one may use those before it.
enum class AccessClass : uint8_t {
  kPublic,   // tells nothing that a load balancer may not know; nobody is asked for a key
  kMetrics,  // reads counters
  kUser,     // has text made
  kAdmin     // changes how the daemon serves others
};

// Who calls, as far as it was asked.
struct Caller {
  engine::Tenant tenant;
  AccessClass access = AccessClass::kPublic;
};

// The keys that clients may show. Immutable; thread-safe.
class ApiKeys {
 public:
  // A key a line, after it `tenant=NAME`, `weight=NUMBER` of the tenant and `class=CLASS` (user,
  // metrics or admin) as need be; empty lines and lines that begin with # are skipped. Keys without
  // a tenant have the unnamed one in common. INVALID_ARGUMENT with the line but without the key.
  static absl::StatusOr<ApiKeys> Parse(absl::string_view text);
  // Asks for none.
  ApiKeys() = default;

  bool empty() const { return entries_.empty(); }
  // Whose key an Authorization header shows; null: nobody's. How long it takes depends on the
  // number of keys and the length of what is shown alone.
  const Caller* Find(absl::string_view authorization) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Entry {
    Digest digest;
    Caller caller;
  };

  static Digest DigestOf(absl::string_view key);
  // Gives every tenant its part of the waiting queue.
  void ShareQueue();

  std::vector<Entry> entries_;
};

}  // namespace pagoda::daemon
