#include "tests/parallel/fake_executor.h"

#include <algorithm>
#include <cstdlib>
#include <dirent.h>
#include <set>
#include <signal.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace pagoda::parallel {

using internal::v1::LoadProgress;
using internal::v1::ModelReady;
using internal::v1::StepResult;
using internal::v1::WorkerHello;

std::string OpenDescriptors() {
  std::set<int> fds;
  DIR* dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) {
    const int fd = std::atoi(entry->d_name);
    if (entry->d_name[0] != '.' && fd != dirfd(dir)) fds.insert(fd);
  }
  closedir(dir);
  return absl::StrJoin(fds, " ");
}

absl::StatusOr<WorkerHello> FakeExecutor::Open(const internal::v1::OpenWorker& open) {
  if (Is("open-error")) return absl::FailedPreconditionError("device 7 does not exist");
  if (Is("open-exit")) _exit(9);
  start_ = open.start();
  rank_ = open.tensor_rank();
  if (rank_ == 1 && Is("rank-1-open-stop")) raise(SIGSTOP);
  WorkerHello hello;
  hello.set_pid(getpid());
  hello.set_device(open.config().worker().device());
  hello.set_device_name(OpenDescriptors());
  return hello;
}

absl::StatusOr<ModelReady> FakeExecutor::Load(const internal::v1::LoadModel& load,
                                              const ProgressFn& progress) {
  if (Is("load-error")) return absl::InvalidArgumentError("model.safetensors: truncated");
  if (Is("load-throw")) throw std::runtime_error("thrown");
  for (uint64_t done = 0; done <= 3; ++done) {
    LoadProgress part;
    part.set_phase("weights");
    part.set_bytes_done(100 * done);
    part.set_bytes_total(300);
    progress(part);
  }
  if (Is("load-kill")) kill(getpid(), SIGKILL);
  if (rank_ == 1 && Is("rank-1-load-stop")) raise(SIGSTOP);
  const bool is_second = start_ == 2;
  if (is_second && Is("second-load-kill")) kill(getpid(), SIGKILL);
  if (is_second && Is("second-load-error")) return absl::InternalError("no memory");
  ModelReady ready;
  const bool has_fewer = is_second && Is("second-fewer-blocks");
  ready.set_num_kv_blocks(load.num_kv_blocks() - (has_fewer ? 1 : 0));
  ready.set_weight_bytes(300);
  return ready;
}

absl::Status FakeExecutor::Misbehave() {
  if (Is("exit")) _exit(4);
  if (Is("rank-1-kill") && rank_ == 1) kill(getpid(), SIGKILL);
  if (Is("kill")) kill(getpid(), SIGKILL);
  if (Is("abort")) {
    signal(SIGABRT, SIG_DFL);
    std::abort();
  }
  if (Is("error")) return absl::InternalError("device fault 17");
  if (Is("throw")) throw std::runtime_error("thrown");
  if (Is("hang")) {
    while (true) pause();
  }
  if (Is("close")) shutdown(behaviour_.channel_fd, SHUT_RDWR);
  if (Is("garbage")) {
    const std::string noise(100, '\x5a');
    send(behaviour_.channel_fd, noise.data(), noise.size(), MSG_NOSIGNAL);
  }
  return absl::OkStatus();
}

absl::Status FakeExecutor::Submit(const internal::v1::StepPlan& plan) {
  StepResult result;
  result.set_step_id(plan.step_id());
  // Each begins 5 ns before the one before ends.
  result.set_start_ns(10 * plan.step_id());
  result.set_end_ns(result.start_ns() + 15);
  result.add_device_work()->set_eager_steps(rank_ + 1);
  for (int i = 0; i < plan.row_slots_size(); ++i) {
    result.add_sampled_slots(plan.row_slots(i));
    result.add_token_ids(plan.row_num_tokens(i) + static_cast<uint32_t>(plan.step_id()));
  }
  // A large result for a large plan: what came is sent back.
  for (const auto& sequence : plan.new_sequences()) {
    auto* echo = result.add_prompt_logprobs();
    *echo->mutable_top_ids() = sequence.token_ids();
    for (const uint32_t id : sequence.token_ids()) echo->add_logprobs(static_cast<float>(id));
  }
  if (plan.step_id() == behaviour_.at_step) {
    if (absl::Status status = Misbehave(); !status.ok()) return status;
    if (Is("wrong-step")) result.set_step_id(plan.step_id() + 5);
  }
  results_.push_back(std::move(result));
  max_steps_in_flight_ = std::max<int>(max_steps_in_flight_, results_.size());
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeExecutor::TakeResult(StepResult* result) {
  if (results_.empty()) return absl::InternalError("TakeResult without a step in flight");
  // "pairs": a step ends when the next one is there, so that the loop has to read ahead.
  if (Is("pairs") && results_.size() < 2 && results_.front().step_id() % 2 == 1) return false;
  const int num_polls = Is("late") ? 100 : 1;
  if (num_polls_ < num_polls) {
    ++num_polls_;
    return false;
  }
  num_polls_ = 0;
  *result = std::move(results_.front());
  results_.pop_front();
  return true;
}

absl::Status FakeExecutor::Reset() { return absl::OkStatus(); }

}  // namespace pagoda::parallel
