// A worker process whose executor is fake: test_worker [--behaviour=NAME] [--at-step=N]
// --channel-fd=N

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "parallel/worker_loop.h"
#include "tests/parallel/fake_executor.h"

int main(int argc, char** argv) {
  using pagoda::parallel::FakeBehaviour;
  using pagoda::parallel::FakeExecutor;
  FakeBehaviour behaviour;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (absl::ConsumePrefix(&arg, "--behaviour=")) behaviour.name = std::string(arg);
    if (absl::ConsumePrefix(&arg, "--at-step="))
      behaviour.at_step = std::strtoull(arg.data(), nullptr, 10);
    if (absl::ConsumePrefix(&arg, "--channel-fd=")) behaviour.channel_fd = std::atoi(arg.data());
  }
  const absl::Status status = pagoda::parallel::RunWorkerLoop(
      behaviour.channel_fd,
      [&](const pagoda::internal::v1::OpenWorker&)
          -> absl::StatusOr<std::unique_ptr<pagoda::parallel::StepExecutor>> {
        return std::make_unique<FakeExecutor>(behaviour);
      });
  return status.ok() ? 0 : 5;
}
