// Daemon to worker and back: the time from submitting a step to having its result, with an executor
// that does nothing. The floor is one byte sent to a process and back over the same kind of socket,
// both ends busy-waiting. Floor and subject alternate, since machines drift. Goal: median <= 15 us,
// back to back and with another process on the other core.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <signal.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "absl/strings/strip.h"
#include "kernels/base/check.h"
#include "kernels/base/clock.h"
#include "parallel/worker_loop.h"
#include "parallel/worker_pool.h"

namespace pagoda::parallel {
namespace {

using internal::v1::StepPlan;
using internal::v1::StepResult;

constexpr int kRoundTrips = 2'000;  // of one batch
constexpr int kBatches = 5;
constexpr double kGoalUs = 15.0;

// Every row samples one token.
class EmptyExecutor final : public StepExecutor {
 public:
  absl::StatusOr<internal::v1::WorkerHello> Open(const internal::v1::OpenWorker&) override {
    return internal::v1::WorkerHello();
  }
  absl::StatusOr<internal::v1::ModelReady> Load(const internal::v1::LoadModel&,
                                                const ProgressFn&) override {
    return internal::v1::ModelReady();
  }
  absl::Status Submit(const StepPlan& plan) override {
    pending_.push_back(plan);
    return absl::OkStatus();
  }
  absl::StatusOr<bool> TakeResult(StepResult* result) override {
    const StepPlan& plan = pending_.front();
    result->set_step_id(plan.step_id());
    *result->mutable_sampled_slots() = plan.row_slots();
    *result->mutable_token_ids() = plan.row_num_tokens();
    pending_.erase(pending_.begin());
    return true;
  }
  absl::Status Reset() override { return absl::OkStatus(); }

 private:
  std::vector<StepPlan> pending_;
};

int RunWorker(const char* channel_flag) {
  absl::string_view fd = channel_flag;
  absl::ConsumePrefix(&fd, "--channel-fd=");
  return RunWorkerLoop(
             std::atoi(fd.data()),
             [](const internal::v1::OpenWorker&) -> absl::StatusOr<std::unique_ptr<StepExecutor>> {
               return std::make_unique<EmptyExecutor>();
             }).ok()
             ? 0
             : 1;
}

// A process that sends every byte back.
class ByteEcho {
 public:
  // `flags` of recv: MSG_DONTWAIT busy-waits.
  explicit ByteEcho(int flags) : flags_(flags) {
    int fds[2];
    PAGODA_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    pid_ = fork();
    PAGODA_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(fds[0]);
      while (Receive(fds[1])) send(fds[1], "", 1, 0);
      _exit(0);
    }
    close(fds[1]);
    fd_ = fds[0];
  }
  ~ByteEcho() {
    close(fd_);
    waitpid(pid_, nullptr, 0);
  }

  void RoundTrip() {
    PAGODA_CHECK(send(fd_, "", 1, 0) == 1);
    PAGODA_CHECK(Receive(fd_));
  }

 private:
  // False at the end.
  bool Receive(int fd) const {
    char byte;
    ssize_t n;
    do {
      n = recv(fd, &byte, 1, flags_);
    } while (n < 0);
    return n == 1;
  }

  const int flags_;
  int fd_ = -1;
  pid_t pid_ = -1;
};

class Subject {
 public:
  Subject() {
    auto pool = WorkerPool::Start({.config = {}, .worker_command = {"/proc/self/exe", "worker"}});
    PAGODA_CHECK(pool.ok());
    pool_ = *std::move(pool);
    PAGODA_CHECK(pool_->Load({}, nullptr).ok());
  }

  void RoundTrip(int num_rows) {
    plan_.set_step_id(plan_.step_id() + 1);
    while (plan_.row_slots_size() < num_rows) {
      plan_.add_row_slots(static_cast<uint32_t>(plan_.row_slots_size()));
      plan_.add_row_num_tokens(1);
      plan_.add_row_samples(1);
    }
    PAGODA_CHECK(pool_->Submit(plan_).ok());
    while (true) {
      const absl::StatusOr<bool> polled = pool_->Poll(&result_);
      PAGODA_CHECK(polled.ok());
      if (*polled) return;
      pool_->Wait(-1, std::numeric_limits<int64_t>::max());
    }
  }

 private:
  std::unique_ptr<WorkerPool> pool_;
  StepPlan plan_;
  StepResult result_;
};

// One core taken by somebody else.
class BusyCore {
 public:
  BusyCore() {
    pid_ = fork();
    PAGODA_CHECK(pid_ >= 0);
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (std::atomic<unsigned> i = 0;; ++i) {
    }
  }
  ~BusyCore() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

template <typename Fn>
void Measure(Fn round_trip, std::vector<double>* us) {
  const Clock& clock = Clock::Monotonic();
  for (int i = 0; i < kRoundTrips; ++i) {
    const int64_t start_ns = clock.NowNs();
    round_trip();
    us->push_back(static_cast<double>(clock.NowNs() - start_ns) / 1e3);
  }
}

double Percentile(std::vector<double> us, double share) {
  const auto at = static_cast<size_t>(share * static_cast<double>(us.size() - 1));
  std::nth_element(us.begin(), us.begin() + static_cast<ptrdiff_t>(at), us.end());
  return us[at];
}

void Report(const char* load, int num_rows) {
  std::vector<double> spinning_us, sleeping_us, subject_us;
  for (int batch = 0; batch < kBatches; ++batch) {
    {
      ByteEcho echo(MSG_DONTWAIT);
      Measure([&] { echo.RoundTrip(); }, &spinning_us);
    }
    {
      ByteEcho echo(0);
      Measure([&] { echo.RoundTrip(); }, &sleeping_us);
    }
    Subject subject;
    Measure([&] { subject.RoundTrip(num_rows); }, &subject_us);
  }
  const double floor = std::min(Percentile(spinning_us, 0.5), Percentile(sleeping_us, 0.5));
  const double median = Percentile(subject_us, 0.5);
  std::printf("%-22s rows %4d  floor %6.2f us  median %6.2f us (x %.2f, goal %.0f)  p99 %7.2f us\n",
              load,
              num_rows,
              floor,
              median,
              median / floor,
              kGoalUs,
              Percentile(subject_us, 0.99));
}

int Main() {
  for (const int num_rows : {0, 256}) Report("back to back", num_rows);
  const BusyCore busy;
  for (const int num_rows : {0, 256}) Report("with one core busy", num_rows);
  return 0;
}

}  // namespace
}  // namespace pagoda::parallel

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "worker") return pagoda::parallel::RunWorker(argv[2]);
  return pagoda::parallel::Main();
}
