#pragma once

#include <array>
#include <cstddef>

#include "absl/strings/string_view.h"
#include "daemon/server/access.h"
#include "pagoda/v1/admin.grpc.pb.h"
#include "pagoda/v1/inference.grpc.pb.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

// Who may call which RPC, of every RPC that the protos have: one without a line here does not
// compile.
namespace pagoda::daemon {

struct RpcRoute {
  absl::string_view method;
  AccessClass access = AccessClass::kAdmin;
};

// Methods of a generated service, whose CallbackService wraps one class a method around Service.
template <typename Service>
inline constexpr size_t kNumMethods = 0;
template <template <typename> typename WithMethod, typename Base>
inline constexpr size_t kNumMethods<WithMethod<Base>> = kNumMethods<Base> + 1;

template <size_t kSize>
constexpr bool HasOneOfEach(const std::array<RpcRoute, kSize>& routes) {
  for (size_t i = 0; i < kSize; ++i) {
    if (routes[i].method.empty()) return false;
    for (size_t j = 0; j < i; ++j)
      if (routes[i].method == routes[j].method) return false;
  }
  return true;
}

using InferenceRoutes = std::array<RpcRoute, kNumMethods<v1::InferenceService::CallbackService>>;
inline constexpr InferenceRoutes kInferenceRoutes = {{
    {"Generate", AccessClass::kUser},
    {"StreamGenerate", AccessClass::kUser},
    {"Tokenize", AccessClass::kUser},
    {"Detokenize", AccessClass::kUser},
    {"GetModel", AccessClass::kUser},
}};
static_assert(HasOneOfEach(kInferenceRoutes), "an RPC of InferenceService has no access class");

using EngineRoutes =
    std::array<RpcRoute, kNumMethods<vllm::grpc::engine::VllmEngine::CallbackService>>;
inline constexpr EngineRoutes kEngineRoutes = {{
    {"Generate", AccessClass::kUser},
    {"Embed", AccessClass::kUser},
    // What a gateway looks for before it has been told a key.
    {"HealthCheck", AccessClass::kPublic},
    {"Abort", AccessClass::kUser},
    {"GetModelInfo", AccessClass::kUser},
    {"GetServerInfo", AccessClass::kUser},
    {"GetLoads", AccessClass::kUser},
    {"GetTokenizer", AccessClass::kUser},
    {"SubscribeKvEvents", AccessClass::kUser},
}};
static_assert(HasOneOfEach(kEngineRoutes), "an RPC of VllmEngine has no access class");

// The socket's mode says who may open it; there are no keys.
using AdminRoutes = std::array<RpcRoute, kNumMethods<v1::AdminService::CallbackService>>;
inline constexpr AdminRoutes kAdminRoutes = {{
    {"Drain", AccessClass::kAdmin},
    {"SetLogLevel", AccessClass::kAdmin},
    {"GetConfig", AccessClass::kAdmin},
    {"FlushPrefixCache", AccessClass::kAdmin},
    {"DumpState", AccessClass::kAdmin},
}};
static_assert(HasOneOfEach(kAdminRoutes), "an RPC of AdminService has no access class");

// A method that is not in the list does not compile.
template <size_t kSize>
consteval AccessClass AccessOf(const std::array<RpcRoute, kSize>& routes,
                               absl::string_view method) {
  size_t i = 0;
  while (routes.at(i).method != method) ++i;
  return routes[i].access;
}

}  // namespace pagoda::daemon
