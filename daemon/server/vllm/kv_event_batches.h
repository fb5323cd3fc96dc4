#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "engine/ids.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "smg/grpc/common/common.pb.h"

namespace pagoda::daemon {

namespace smg_pb = ::smg::grpc::common;

// Puts block events into KvEventBatch messages of a size that every client takes. They are
// serialised without their sequence numbers, which differ from stream to stream, so that
// subscribers share them. Thread-compatible.
class KvEventBatches {
 public:
  struct Options {
    double timestamp = 0;  // seconds since 1970
    uint32_t block_size = 0;
    // Of the last event that was told; null: these restate what is cached, and are not counted.
    uint64_t* last_event_id = nullptr;
  };

  explicit KvEventBatches(const Options& options) : options_(options) {}

  // A block that follows the one added before it joins its event.
  void AddStored(uint64_t hash,
                 absl::optional<uint64_t> parent,
                 absl::Span<const engine::TokenId> tokens);
  void AddRemoved(uint64_t hash);
  void AddCleared();
  std::vector<grpc::Slice> Take();

 private:
  smg_pb::KvCacheEvent* AddEvent();
  void Close();

  const Options options_;
  smg_pb::KvEventBatch batch_;
  size_t num_batch_tokens_ = 0;
  std::vector<grpc::Slice> slices_;
};

// The message with its number.
grpc::ByteBuffer NumberKvEventBatch(uint64_t sequence_number, const grpc::Slice& batch);

}  // namespace pagoda::daemon
