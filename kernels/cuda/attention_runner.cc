#include "kernels/cuda/attention_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/small_copy.h"

namespace pagoda::kernels::cuda {
namespace {

// Room of a plan, so that one serves every batch of a server; a larger batch makes a larger plan.
constexpr int32_t kMinSeqs = 1024;
constexpr int32_t kMinRows = 16384;
// Plans that may be on their way to the device at once: two steps in flight, and slack.
constexpr int kNumSlots = 4;

absl::Status Check(cudaError_t error, absl::string_view call) {
  return CudaStatus(error, call, "the plan of paged_attention");
}

int32_t RoomFor(int32_t count, int32_t minimum) {
  int32_t room = minimum;
  while (room < count) room *= 2;
  return room;
}

}  // namespace

AttentionRunner::~AttentionRunner() = default;

AttentionRunner::Entry::~Entry() {
  for (const Slot& slot : slots) {
    if (slot.copied != nullptr) cudaEventDestroy(slot.copied);
    if (slot.host != nullptr) cudaFreeHost(slot.host);
  }
  if (plan != nullptr) cudaFree(plan);
  if (workspace != nullptr) cudaFree(workspace);
}

absl::StatusOr<std::unique_ptr<AttentionRunner::Entry>> AttentionRunner::MakeEntry(
    const Geometry& geometry) const {
  auto entry = std::make_unique<Entry>();
  entry->geometry = geometry;
  PAGODA_ASSIGN_OR_RETURN(
      entry->shape,
      MakeAttentionPlanShape(
          {.dtype = geometry.dtype,
           .head_dim = geometry.head_dim,
           .num_q_heads = geometry.num_q_heads,
           .num_kv_heads = geometry.num_kv_heads,
           .max_seqs = RoomFor(static_cast<int32_t>(context_lens_.size()), kMinSeqs),
           .max_rows = RoomFor(num_rows_, kMinRows),
           .num_multiprocessors = context_.num_sms}));
  const auto plan_bytes = static_cast<size_t>(entry->shape.size_bytes());
  const auto workspace_bytes =
      static_cast<size_t>(AttentionWorkspaceBytes(entry->shape, geometry.head_dim));
  PAGODA_RETURN_IF_ERROR(Check(cudaMalloc(&entry->plan, plan_bytes), "cudaMalloc"));
  PAGODA_RETURN_IF_ERROR(Check(cudaMalloc(&entry->workspace, workspace_bytes), "cudaMalloc"));
  PAGODA_RETURN_IF_ERROR(Check(
      cudaMemsetAsync(entry->workspace, 0, workspace_bytes, context_.stream), "cudaMemsetAsync"));
  for (int i = 0; i < kNumSlots; ++i) {
    Slot& slot = entry->slots.emplace_back();
    PAGODA_RETURN_IF_ERROR(
        Check(cudaHostAlloc(&slot.host, plan_bytes, cudaHostAllocDefault), "cudaHostAlloc"));
    PAGODA_RETURN_IF_ERROR(
        Check(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming), "cudaEventCreate"));
  }
  return entry;
}

absl::Status AttentionRunner::Plan(Entry& entry) {
  Slot& slot = entry.slots[entry.next_slot];
  entry.next_slot = (entry.next_slot + 1) % entry.slots.size();
  PAGODA_RETURN_IF_ERROR(Check(cudaEventSynchronize(slot.copied), "cudaEventSynchronize"));
  PAGODA_RETURN_IF_ERROR(MakeAttentionPlan(
      entry.shape,
      {.row_offsets = row_offsets_, .context_lens = context_lens_, .window = entry.geometry.window},
      slot.host));
  const AttentionPlanHeader& header = *ViewAttentionPlan(entry.shape, slot.host).header;
  entry.launches = {.decode = header.num_decode_seqs > 0, .prefill = header.num_prefill_tiles > 0};
  const auto copy = [&](int64_t offset, int64_t bytes) {
    char* const to = static_cast<char*>(entry.plan) + offset;
    const char* const from = static_cast<const char*>(slot.host) + offset;
    if (IsSmallCopy(to, from, static_cast<size_t>(bytes))) {
      return SmallCopyToDevice(context_, to, from, static_cast<size_t>(bytes));
    }
    return Check(cudaMemcpyAsync(
                     to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, context_.stream),
                 "cudaMemcpyAsync");
  };
  // Only what is in use travels: at most two copies of a few KB.
  PAGODA_RETURN_IF_ERROR(copy(
      0, entry.shape.seqs_offset_bytes() + header.num_decode_seqs * int64_t{sizeof(DecodeSeq)}));
  if (header.num_prefill_tiles > 0) {
    PAGODA_RETURN_IF_ERROR(copy(entry.shape.prefill_offset_bytes(),
                                header.num_prefill_tiles * int64_t{sizeof(PrefillTile)}));
  }
  return Check(cudaEventRecord(slot.copied, context_.stream), "cudaEventRecord");
}

absl::Status AttentionRunner::Prepare(const AttentionBatch& batch) {
  row_offsets_.assign(batch.host_row_offsets, batch.host_row_offsets + batch.num_seqs + 1);
  context_lens_.assign(batch.host_context_lens, batch.host_context_lens + batch.num_seqs);
  num_rows_ = batch.num_rows;
  launches_ = {};
  for (std::unique_ptr<Entry>& entry : entries_) {
    if (batch.num_seqs > entry->shape.max_seqs || batch.num_rows > entry->shape.max_rows) {
      PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<Entry> larger, MakeEntry(entry->geometry));
      outgrown_.push_back(std::exchange(entry, std::move(larger)));
    }
    PAGODA_RETURN_IF_ERROR(Plan(*entry));
    launches_.decode |= entry->launches.decode;
    launches_.prefill |= entry->launches.prefill;
  }
  return absl::OkStatus();
}

absl::Status AttentionRunner::Run(const PagedAttentionParams& params) {
  const Geometry geometry = {.dtype = params.dtype,
                             .head_dim = params.cache.head_dim,
                             .num_q_heads = params.num_q_heads,
                             .num_kv_heads = params.cache.num_kv_heads,
                             .window = params.window};
  auto it = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry->geometry == geometry;
  });
  if (it == entries_.end()) {
    if (context_.recording) {
      return absl::FailedPreconditionError(
          absl::StrCat("paged_attention with ",
                       geometry.num_q_heads,
                       "/",
                       geometry.num_kv_heads,
                       " heads of ",
                       geometry.head_dim,
                       " and window ",
                       geometry.window,
                       " was never run: run a step once before recording it"));
    }
    PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<Entry> entry, MakeEntry(geometry));
    PAGODA_RETURN_IF_ERROR(Plan(*entry));
    launches_.decode |= entry->launches.decode;
    launches_.prefill |= entry->launches.prefill;
    it = entries_.insert(entries_.end(), std::move(entry));
  }
  const Entry& entry = **it;
  // The kernels read plan, tables and the cache of earlier steps before they wait for the kernel
  // ahead, and that one may have begun before those were written: other kernels let their next in
  // at once. In a graph all of them are older than the graph; elsewhere the kernel ahead must end
  // first.
  const bool is_older = context_.recording;
  const bool weights_written = std::exchange(context_.weights_written, false);
  const AttentionLaunch launch = {.params = &params,
                                  .shape = entry.shape,
                                  .plan = entry.plan,
                                  .workspace = entry.workspace,
                                  .programmatic = is_older && !weights_written};
  if (entry.launches.decode) {
    PAGODA_RETURN_IF_ERROR(LaunchPagedAttentionDecode(launch, context_.stream));
  }
  if (entry.launches.prefill) {
    PAGODA_RETURN_IF_ERROR(LaunchPagedAttentionPrefill(launch, context_.stream));
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels::cuda
