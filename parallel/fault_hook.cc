#include "parallel/fault_hook.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status_macros.h"

namespace pagoda::parallel {
namespace {

using internal::v1::StepPlan;
using internal::v1::StepResult;
using Kind = FaultHook::Kind;

constexpr int kExitedByHook = 4;

absl::Status BadHook(absl::string_view hook, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrFormat("fault hook \"%s\": expected %s", hook, expected));
}

absl::StatusOr<Kind> ParseKind(absl::string_view hook, absl::string_view name, int64_t* delay_ms) {
  if (name == "error") return Kind::kError;
  if (name == "abort") return Kind::kAbort;
  if (name == "exit") return Kind::kExit;
  if (name == "kill") return Kind::kKill;
  if (name == "hang") return Kind::kHang;
  if (absl::ConsumePrefix(&name, "delay") && absl::SimpleAtoi(name, delay_ms)) return Kind::kDelay;
  return BadHook(hook, "error, abort, exit, kill, hang or delayMILLISECONDS");
}

absl::StatusOr<absl::optional<uint32_t>> ParseNumberOrAny(absl::string_view hook,
                                                          absl::string_view text) {
  uint32_t number = 0;
  if (text == "*") return absl::optional<uint32_t>();
  if (!absl::SimpleAtoi(text, &number)) return BadHook(hook, "numbers or * after its colons");
  return absl::optional<uint32_t>(number);
}

absl::StatusOr<FaultHook> ParseFaultHook(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  const size_t sign = parts[0].find_first_of("@#");
  if (parts.size() != 3 || sign == absl::string_view::npos) {
    return BadHook(text, "KIND@STEP:RANK:START or KIND#TOKEN:RANK:START");
  }
  FaultHook hook;
  PAGODA_ASSIGN_OR_RETURN(hook.kind, ParseKind(text, parts[0].substr(0, sign), &hook.delay_ms));
  uint32_t number = 0;
  if (!absl::SimpleAtoi(parts[0].substr(sign + 1), &number)) return BadHook(text, "a number");
  if (parts[0][sign] == '@') {
    hook.step_id = number;
  } else {
    hook.token = number;
  }
  PAGODA_ASSIGN_OR_RETURN(hook.rank, ParseNumberOrAny(text, parts[1]));
  PAGODA_ASSIGN_OR_RETURN(hook.start, ParseNumberOrAny(text, parts[2]));
  return hook;
}

absl::Status Strike(const FaultHook& hook) {
  switch (hook.kind) {
    case Kind::kError:
      return absl::InternalError("fault hook");
    case Kind::kAbort:
      prctl(PR_SET_DUMPABLE, 0);  // no core
      signal(SIGABRT, SIG_DFL);
      std::abort();
    case Kind::kExit:
      _exit(kExitedByHook);
    case Kind::kKill:
      raise(SIGKILL);
      break;
    case Kind::kHang:
      while (true) pause();
    case Kind::kDelay: {
      timespec left{.tv_sec = hook.delay_ms / 1000, .tv_nsec = hook.delay_ms % 1000 * 1'000'000};
      while (nanosleep(&left, &left) != 0) {
      }
      break;
    }
  }
  return absl::OkStatus();
}

class FaultyExecutor final : public StepExecutor {
 public:
  FaultyExecutor(std::unique_ptr<StepExecutor> executor, std::vector<FaultHook> hooks)
      : executor_(std::move(executor)), hooks_(std::move(hooks)), struck_slots_(hooks_.size()) {}

  absl::StatusOr<internal::v1::WorkerHello> Open(const internal::v1::OpenWorker& open) override {
    return executor_->Open(open);
  }
  absl::StatusOr<internal::v1::ModelReady> Load(const internal::v1::LoadModel& load,
                                                const ProgressFn& progress) override {
    return executor_->Load(load, progress);
  }
  absl::Status Submit(const StepPlan& plan) override {
    for (size_t i = 0; i < hooks_.size(); ++i) {
      if (!IsMeant(i, plan)) continue;
      PAGODA_RETURN_IF_ERROR(Strike(hooks_[i]));
    }
    return executor_->Submit(plan);
  }
  absl::StatusOr<bool> TakeResult(StepResult* result) override {
    return executor_->TakeResult(result);
  }
  absl::StatusOr<bool> DoIdleWork() override { return executor_->DoIdleWork(); }
  absl::Status Reset() override {
    for (std::set<uint32_t>& slots : struck_slots_) slots.clear();
    return executor_->Reset();
  }

 private:
  bool IsMeant(size_t i, const StepPlan& plan) {
    const FaultHook& hook = hooks_[i];
    if (hook.step_id.has_value()) return plan.step_id() == *hook.step_id;
    std::set<uint32_t>& slots = struck_slots_[i];
    for (const uint32_t slot : plan.released_slots()) slots.erase(slot);
    for (const auto& sequence : plan.new_sequences()) {
      const auto& ids = sequence.token_ids();
      if (std::find(ids.begin(), ids.end(), *hook.token) != ids.end())
        slots.insert(sequence.slot());
    }
    return std::any_of(plan.row_slots().begin(), plan.row_slots().end(), [&slots](uint32_t slot) {
      return slots.count(slot) > 0;
    });
  }

  const std::unique_ptr<StepExecutor> executor_;
  const std::vector<FaultHook> hooks_;
  // By hook: slots of sequences with its token.
  std::vector<std::set<uint32_t>> struck_slots_;
};

}  // namespace

absl::StatusOr<std::vector<FaultHook>> ParseFaultHooks(absl::string_view text) {
  std::vector<FaultHook> hooks;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    PAGODA_ASSIGN_OR_RETURN(hooks.emplace_back(), ParseFaultHook(part));
  }
  return hooks;
}

std::unique_ptr<StepExecutor> WithFaultHooks(std::unique_ptr<StepExecutor> executor,
                                             std::vector<FaultHook> hooks,
                                             const internal::v1::OpenWorker& open) {
  const auto is_for_others = [&open](const FaultHook& hook) {
    return hook.rank.value_or(open.tensor_rank()) != open.tensor_rank() ||
           hook.start.value_or(open.start()) != open.start();
  };
  hooks.erase(std::remove_if(hooks.begin(), hooks.end(), is_for_others), hooks.end());
  if (hooks.empty()) return executor;
  return std::make_unique<FaultyExecutor>(std::move(executor), std::move(hooks));
}

}  // namespace pagoda::parallel
