#include "engine/model/rank_group.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/host_group.h"
#include "kernels/base/log.h"
#include "kernels/base/status_macros.h"

namespace pagoda::engine {
namespace {

using kernels::GroupTransport;

absl::StatusOr<GroupTransport> TransportNamed(const std::string& name) {
  if (name.empty() || name == "auto") return GroupTransport::kAuto;
  if (name == "ipc") return GroupTransport::kIpc;
  if (name == "nccl") return GroupTransport::kNccl;
  return absl::InvalidArgumentError(absl::StrCat(
      "worker.tensor_parallel_group is \"", name, "\"; expected \"auto\", \"ipc\" or \"nccl\""));
}

}  // namespace

absl::Status RankGroup::CheckPlace(const internal::v1::OpenWorker& open) const {
  const int num_ranks = std::max(static_cast<int>(open.tensor_ranks()), 1);
  const int rank = static_cast<int>(open.tensor_rank());
  const int group_ranks = host_ == nullptr ? 1 : host_->num_ranks();
  const int group_rank = host_ == nullptr ? 0 : host_->rank();
  if (open.stage() == 0 && num_ranks == group_ranks && rank == group_rank) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a worker of stage ",
                                                 open.stage(),
                                                 ", rank ",
                                                 rank,
                                                 " of ",
                                                 num_ranks,
                                                 " tensor ranks, in a group as rank ",
                                                 group_rank,
                                                 " of ",
                                                 group_ranks,
                                                 "; expected stage 0 and the same rank"));
}

absl::Status RankGroup::Open(kernels::Backend& backend, const internal::v1::ServerConfig& config) {
  if (host_ == nullptr) return absl::OkStatus();
  if (!backend.supports_groups()) {
    devices_ = MakeHostGroup(*host_, &op_ns_);
    return absl::OkStatus();
  }
  kernels::DeviceGroupOptions options = {.rank = host_->rank(), .num_ranks = host_->num_ranks()};
  PAGODA_ASSIGN_OR_RETURN(options.transport,
                          TransportNamed(config.worker().tensor_parallel_group()));
  options.exchange = [this](const void* own, void* all, size_t num_bytes) {
    return host_->AllGather(own, all, num_bytes);
  };
  // The daemon gives a step up before its rank does.
  const int64_t step_timeout_ns = int64_t{config.engine().step_timeout_ms()} * 1'000'000;
  options.timeout_ns = std::max(options.timeout_ns, 2 * step_timeout_ns);
  PAGODA_ASSIGN_OR_RETURN(devices_, backend.MakeGroup(options));
  if (options.rank == 0) {
    LogInfo("%d ranks meet over %s%s",
            options.num_ranks,
            devices_->transport(),
            devices_->ranks_on_device() > 1
                ? absl::StrCat(", ",
                               devices_->ranks_on_device(),
                               " on one device, where they take turns: for tests, not for speed")
                : "");
  }
  return absl::OkStatus();
}

void RankGroup::Close(bool has_steps) {
  if (devices_ != nullptr && has_steps) devices_->Abort();
  devices_.reset();
}

absl::StatusOr<int64_t> RankGroup::LeastOf(int64_t own) {
  if (host_ == nullptr) return own;
  std::vector<int64_t> all(static_cast<size_t>(host_->num_ranks()));
  PAGODA_RETURN_IF_ERROR(host_->AllGather(&own, all.data(), sizeof(own)));
  return *std::min_element(all.begin(), all.end());
}

int DeviceIndexOf(const internal::v1::WorkerConfig& worker, uint32_t rank) {
  const bool has_own = rank < static_cast<uint32_t>(worker.devices_size());
  return static_cast<int>(has_own ? worker.devices(static_cast<int>(rank)) : worker.device_index());
}

}  // namespace pagoda::engine
