#include "daemon/server/serve.h"

#include "kernels/base/log.h"

namespace pagoda::daemon {

int RunServe(const internal::v1::ServerConfig& config) {
  LogError("serving %s is not built into this version yet", config.model().path());
  return kExitUsage;
}

}  // namespace pagoda::daemon
