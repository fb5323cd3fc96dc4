#include "daemon/server/vllm/kv_event_stream.h"

#include "daemon/server/rpc_error.h"

namespace pagoda::daemon {

void KvEventStream::End(const absl::Status& status) { Finish(ToGrpcStatus(status)); }

}  // namespace pagoda::daemon
