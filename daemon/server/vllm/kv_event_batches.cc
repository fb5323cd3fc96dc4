#include "daemon/server/vllm/kv_event_batches.h"

#include <array>
#include <utility>

#include "google/protobuf/io/coded_stream.h"

namespace pagoda::daemon {
namespace {

// About 300 KB; clients receive 4 MiB by default.
constexpr size_t kMaxBatchTokens = size_t{1} << 16;
constexpr int kMaxBatchHashes = 1 << 15;
// Field 1, a varint: KvEventBatch.sequence_number. Its value takes ten bytes at most.
constexpr uint8_t kSequenceNumberTag = 0x08;
constexpr size_t kMaxNumberBytes = 11;

}  // namespace

smg_pb::KvCacheEvent* KvEventBatches::AddEvent() {
  smg_pb::KvCacheEvent* event = batch_.add_events();
  if (options_.last_event_id != nullptr) event->set_event_id(++*options_.last_event_id);
  return event;
}

void KvEventBatches::AddStored(uint64_t hash,
                               absl::optional<uint64_t> parent,
                               absl::Span<const engine::TokenId> tokens) {
  if (num_batch_tokens_ + tokens.size() > kMaxBatchTokens) Close();
  smg_pb::KvBlocksStored* stored = nullptr;
  if (!batch_.events().empty() && parent.has_value()) {
    smg_pb::KvCacheEvent* last = batch_.mutable_events(batch_.events_size() - 1);
    const bool continues = last->has_stored() && last->stored().blocks().rbegin()->block_hash() ==
                                                     static_cast<int64_t>(*parent);
    if (continues) stored = last->mutable_stored();
  }
  if (stored == nullptr) {
    stored = AddEvent()->mutable_stored();
    if (parent.has_value()) stored->set_parent_block_hash(static_cast<int64_t>(*parent));
  }
  smg_pb::KvBlock* block = stored->add_blocks();
  block->set_block_hash(static_cast<int64_t>(hash));
  block->set_block_size(static_cast<int32_t>(options_.block_size));
  block->mutable_token_ids()->Add(tokens.begin(), tokens.end());
  num_batch_tokens_ += tokens.size();
}

void KvEventBatches::AddRemoved(uint64_t hash) {
  smg_pb::KvCacheEvent* last =
      batch_.events().empty() ? nullptr : batch_.mutable_events(batch_.events_size() - 1);
  if (last != nullptr && last->has_removed() &&
      last->removed().block_hashes_size() >= kMaxBatchHashes) {
    Close();
    last = nullptr;
  }
  if (last == nullptr || !last->has_removed()) last = AddEvent();
  last->mutable_removed()->add_block_hashes(static_cast<int64_t>(hash));
}

void KvEventBatches::AddCleared() { AddEvent()->mutable_cleared(); }

void KvEventBatches::Close() {
  num_batch_tokens_ = 0;
  if (batch_.events().empty()) return;
  batch_.set_timestamp(options_.timestamp);
  batch_.set_dp_rank(0);
  grpc::Slice slice(batch_.ByteSizeLong());
  // A slice's bytes are writable until it is shared.
  batch_.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  slices_.push_back(std::move(slice));
  batch_.Clear();
}

std::vector<grpc::Slice> KvEventBatches::Take() {
  Close();
  return std::exchange(slices_, {});
}

grpc::ByteBuffer NumberKvEventBatch(uint64_t sequence_number, const grpc::Slice& batch) {
  std::array<uint8_t, kMaxNumberBytes> number;
  number[0] = kSequenceNumberTag;
  const uint8_t* const end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(
      sequence_number, number.data() + 1);
  const grpc::Slice slices[] = {
      grpc::Slice(number.data(), static_cast<size_t>(end - number.data())), batch};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace pagoda::daemon
