// The pace of running streams while a client sends constraints that are made to take all time and
// memory. Windows with and without bombs take turns, so that what else the machine does meets both.
// The client that sends them is a process of the lowest priority: its own work is not what is
// measured.
//
// usage: bombs_bench [ROUNDS] [SECONDS] [FLAG...]   flags of `pagoda serve`; --device=sim makes a
// token every 50 ms

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sched.h>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "tests/bench/daemon_probe.h"
#include "tests/e2e/calls.h"
#include "tests/e2e/test_daemon.h"

namespace pagoda::bench {
namespace {

constexpr int kStreams = 4;
constexpr int kMaxMessageBytes = 64 << 20;
constexpr double kGoal = 0.01;

std::string Repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

struct Bomb {
  enum class Field { kRegex, kGrammar, kSchema };
  Field field = Field::kRegex;
  std::string text;
};

// As BombTest's of tests/engine/guided/bomb_test.cc: refused, all of them.
std::vector<Bomb> Bombs() {
  std::string choices, references, rules, wide;
  for (int i = 0; i < 40; ++i) {
    absl::StrAppend(&choices,
                    i > 0 ? "," : "",
                    R"({"anyOf":[{"required":["a)",
                    i,
                    R"("]},{"required":["b)",
                    i,
                    R"("]}]})");
  }
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&references,
                    i > 0 ? "," : "",
                    "\"d",
                    i,
                    R"(":{"anyOf":[{"$ref":"#/$defs/d)",
                    i + 1,
                    R"("},{"type":"null"}]})");
  }
  for (int i = 0; i < 8000; ++i) absl::StrAppend(&rules, "r", i, " ::= r", i + 1, " | \"x\"\n");
  for (int i = 0; i < 5000; ++i) absl::StrAppend(&wide, i > 0 ? "," : "", "\"key", i, "\":{}");
  using Field = Bomb::Field;
  return {{Field::kRegex, Repeated("(", 50'000) + "a" + Repeated(")", 50'000)},
          {Field::kRegex, Repeated("[", 50'000)},
          {Field::kRegex, "(a|b)*a" + Repeated("(a|b)", 60)},
          {Field::kRegex, Repeated("a?", 20'000) + Repeated("a", 20'000)},
          {Field::kRegex, Repeated("[^a]", 60'000)},
          {Field::kRegex, std::string(300'000, 'a')},
          {Field::kGrammar, "root ::= r0\n" + rules},
          {Field::kGrammar, "root ::= " + Repeated("(", 50'000)},
          {Field::kGrammar, "root ::= " + Repeated("(\"a\"?){9}", 20'000)},
          {Field::kSchema, Repeated("{\"items\":", 2000) + "true" + Repeated("}", 2000)},
          {Field::kSchema, R"({"$defs":{)" + references + R"(},"$ref":"#/$defs/d0"})"},
          {Field::kSchema, R"({"allOf":[)" + choices + "]}"},
          {Field::kSchema,
           R"({"type":"object","additionalProperties":true,"properties":{)" + wide + "}}"},
          {Field::kSchema, R"({"oneOf":[{"$ref":"#"},{"$ref":"#"}]})"},
          {Field::kSchema, R"({"type":"string","minLength":18446744073709551615})"}};
}

v1::GenerateRequest RequestOf(const Bomb& bomb) {
  v1::GenerateRequest request = e2e::TextRequest("x", 1);
  switch (bomb.field) {
    case Bomb::Field::kRegex:
      request.mutable_sampling()->set_regex(bomb.text);
      break;
    case Bomb::Field::kGrammar:
      request.mutable_sampling()->set_grammar(bomb.text);
      break;
    case Bomb::Field::kSchema:
      request.mutable_sampling()->set_json_schema(bomb.text);
      break;
  }
  return request;
}

// Sends one bomb after another for some seconds; prints how many, the longest in seconds, and how
// many did not end as they should.
int SendBombs(const char* address, double seconds) {
  const sched_param none = {};
  sched_setscheduler(0, SCHED_IDLE, &none);  // of the threads to come too
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  const auto stub = v1::InferenceService::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
  std::vector<v1::GenerateRequest> requests;
  for (const Bomb& bomb : Bombs()) requests.push_back(RequestOf(bomb));
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  int num_sent = 0, num_wrong = 0;
  double longest = 0.0;
  while (absl::Now() < end) {
    const absl::Time start = absl::Now();
    const e2e::CallResult result = e2e::Generate(*stub, requests[num_sent % requests.size()]);
    longest = std::max(longest, absl::ToDoubleSeconds(absl::Now() - start));
    ++num_sent;
    if (result.status.error_code() == grpc::StatusCode::INVALID_ARGUMENT) continue;
    ++num_wrong;
    std::fprintf(stderr, "bomb %d: %s\n", num_sent - 1, result.status.error_message().c_str());
  }
  std::printf("%d %.3f %d\n", num_sent, longest, num_wrong);
  return 0;
}

// A client that reads tokens for ever and notes when they came.
class Reader {
 public:
  Reader(std::unique_ptr<v1::InferenceService::Stub> stub, uint64_t seed)
      : stub_(std::move(stub)), seed_(seed), thread_([this] { Run(); }) {}
  ~Reader() {
    is_over_ = true;
    thread_.join();
  }

  // Tokens a second between the first and the last that came since `begin`.
  double Pace(absl::Time begin) {
    absl::MutexLock lock(&mutex_);
    const auto first = std::lower_bound(times_.begin(), times_.end(), begin);
    if (times_.end() - first < 2) return 0.0;
    return static_cast<double>(times_.end() - first - 1) /
           absl::ToDoubleSeconds(times_.back() - *first);
  }

 private:
  void Run() {
    while (!is_over_) {
      v1::GenerateRequest request = e2e::TextRequest("Once upon a time", 1500);
      request.mutable_stopping()->set_ignore_eos(true);
      request.mutable_sampling()->set_temperature(1.0f);
      request.mutable_sampling()->set_seed(seed_);
      e2e::OpenStream stream(*stub_, request, absl::Hours(1));
      size_t num_before = 0;
      while (!is_over_ && stream.Read()) {
        if (stream.result.sequences.empty()) continue;
        const size_t num_tokens = stream.result.first().token_ids.size();
        absl::MutexLock lock(&mutex_);
        times_.insert(times_.end(), num_tokens - num_before, absl::Now());
        num_before = num_tokens;
      }
      if (is_over_) stream.Cancel();
      stream.Finish();
    }
  }

  const std::unique_ptr<v1::InferenceService::Stub> stub_;
  const uint64_t seed_;
  std::atomic<bool> is_over_{false};
  absl::Mutex mutex_;
  std::vector<absl::Time> times_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

double Pace(const std::vector<std::unique_ptr<Reader>>& readers, absl::Time begin) {
  double sum = 0.0;
  for (const auto& reader : readers) sum += reader->Pace(begin);
  return sum;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// What came of the bombs of all windows.
struct Tally {
  int num_sent = 0;
  int num_wrong = 0;
  double longest = 0.0;
};

bool RunBomber(const std::string& command, Tally* tally) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return false;
  int num_sent = 0, num_wrong = 0;
  double longest = 0.0;
  const bool understood = std::fscanf(pipe, "%d %lf %d", &num_sent, &longest, &num_wrong) == 3;
  pclose(pipe);
  tally->num_sent += num_sent;
  tally->num_wrong += num_wrong;
  tally->longest = std::max(tally->longest, longest);
  return understood;
}

int Run(const char* self, int rounds, double seconds, std::vector<std::string> flags) {
  const bool is_sim = std::find(flags.begin(), flags.end(), "--device=sim") != flags.end();
  if (is_sim) {
    flags.insert(flags.end(),
                 {"--sim-base-us=50000", "--sim-per-token-us=0", "--sim-per-context-token-ns=0"});
  }
  auto started = e2e::TestDaemon::Start({.flags = flags});
  if (!started.ok()) {
    std::fprintf(stderr, "%s\n", started.status().ToString().c_str());
    return 1;
  }
  e2e::TestDaemon& daemon = **started;
  const std::string bomber = absl::StrCat(self, " --bomb ", daemon.grpc_address(), " ", seconds);
  std::vector<std::unique_ptr<Reader>> readers;
  for (uint64_t seed = 1; seed <= kStreams; ++seed)
    readers.push_back(std::make_unique<Reader>(daemon.NewStub(), seed));
  absl::SleepFor(absl::Seconds(2));
  Tally tally;
  std::vector<double> ratios, quiet, loud;
  for (int round = 0; round < rounds; ++round) {
    absl::Time begin = absl::Now();
    absl::SleepFor(absl::Seconds(seconds));
    quiet.push_back(Pace(readers, begin));
    begin = absl::Now();
    if (!RunBomber(bomber, &tally)) return 1;
    loud.push_back(Pace(readers, begin));
    ratios.push_back(loud.back() / quiet.back());
    std::printf("tokens/s without %8.2f with %8.2f\n", quiet.back(), loud.back());
  }
  readers.clear();
  std::printf("%d bombs, the longest took %.2f s, %d ended otherwise than as invalid arguments\n",
              tally.num_sent,
              tally.longest,
              tally.num_wrong);
  const double change = 1.0 - Median(ratios);
  const bool reached = Print({"pace lost while bombs come in", "of 1", kGoal, change});
  return reached && tally.num_sent > 0 && tally.num_wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::bench

int main(int argc, char** argv) {
  if (argc == 4 && std::strcmp(argv[1], "--bomb") == 0)
    return pagoda::bench::SendBombs(argv[2], std::atof(argv[3]));
  std::vector<std::string> flags;
  for (int i = 3; i < argc; ++i) flags.emplace_back(argv[i]);
  return pagoda::bench::Run(argv[0],
                            argc > 1 ? std::atoi(argv[1]) : 10,
                            argc > 2 ? std::atof(argv[2]) : 4.0,
                            std::move(flags));
}
