#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/simulation/simulated_client.h"
#include "tests/engine/simulation/simulated_workers.h"
#include "tests/fakes/fake_tokenizer.h"

namespace pagoda::engine::simulation {

// What one run was and did.
struct SimulationReport {
  std::string violation;  // the first; empty: none
  int64_t simulated_ns = 0;
  int64_t busy_ns = 0;  // steps under way
  uint64_t num_steps = 0, num_requests = 0, num_refused = 0, num_tokens = 0;
  uint64_t num_cancelled = 0, num_past_deadline = 0, num_slow_readers = 0;
  uint64_t num_preemptions = 0, num_restarts = 0, num_quarantined = 0, num_hit_tokens = 0;
  uint64_t num_drafts_accepted = 0, num_beams = 0, num_stop_strings = 0;
  int64_t most_wait_steps = 0;
  uint64_t digest = 0;  // of every delta, in order: equal runs have equal ones

  void Add(const SimulationReport& other);
  std::string Text() const;
};

// The real engine, its scheduler, intake and appliers, in simulated time: workers, clients and
// faults come from a seed, in one thread, so that a run can be had again. What must hold is checked
// whenever the engine waits or delivers, and once more when all is over.
class Simulation : private OutputSink {
 public:
  explicit Simulation(uint64_t seed);
  ~Simulation() override;

  // Runs until clients have had their time and every request has ended.
  SimulationReport Run();

 private:
  enum class EventKind { kArrival, kCancel, kFault, kPhase, kWatch, kDrain };
  struct Event {
    int64_t time_ns;
    uint64_t order;  // of events at one time
    EventKind kind;
    uint64_t key;  // kCancel
    bool operator>(const Event& other) const {
      return std::tie(time_ns, order) > std::tie(other.time_ns, other.order);
    }
  };

  int64_t Draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }
  bool OneIn(int64_t n) { return Draw(1, n) == 1; }
  double Uniform() { return std::uniform_real_distribution<double>(0.0, 1.0)(random_); }

  void MakeSystem();
  void At(int64_t time_ns, EventKind kind, uint64_t key = 0);
  // What happens while the engine waits.
  void PassTime(int64_t until_ns);
  void Happen(const Event& event);
  void BeginPhase();
  void Arrive();
  Request NewRequest();
  std::vector<TokenId> NewPrompt();
  void CutShort(SimulatedClient* client);
  void Fault();
  void CancelRequest(SimulatedClient* client);

  void Deliver(std::vector<OutputDelta> deltas) override;
  void End(SimulatedClient* client);
  void Violate(const std::string& what);
  // What holds whenever the engine waits.
  void CheckWaiting();
  void CheckClients();
  void CheckOver();
  bool HoldsAny(const SimulatedClient& client, const std::set<uint32_t>& tokens) const;
  void Digest(uint64_t number) { report_.digest = (report_.digest ^ number) * 1099511628211u; }

  // ---- Constant after MakeSystem.
  std::mt19937_64 random_;
  internal::v1::EngineConfig config_;
  int32_t num_blocks_ = 0, kv_window_ = 0;
  int64_t step_ns_ = 0, token_ns_ = 0;
  int64_t end_ns_ = 0;  // clients come until then
  std::unique_ptr<FakeTokenizer> tokenizer_;
  ReferenceModel model_;
  bool has_faults_ = false, gives_up_ = false;
  // ---- State.
  SimulatedClock clock_;
  std::unique_ptr<SimulatedWorkers> workers_;
  EngineMetrics metrics_;
  std::unique_ptr<Engine> engine_;
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events_;
  uint64_t next_order_ = 0;
  uint64_t next_key_ = 1;
  double arrivals_per_s_ = 1.0;
  std::map<uint64_t, std::unique_ptr<SimulatedClient>> clients_;
  std::set<uint64_t> must_end_;  // cancelled: before the engine waits again
  bool is_draining_ = false;
  // Something was asked of the engine while it delivered: it wakes at once.
  bool is_woken_ = false;
  bool hides_tokens_ = false;                   // some draws are never shown
  std::set<std::vector<TokenId>> condemned_;    // prompts that workers were said to fail at
  std::array<uint64_t, kNumOutcomes> ended_{};  // as clients saw them, but for ranked draws
  uint64_t num_ranked_ended_ = 0;
  CollectingBlockSink block_sink_;
  uint64_t block_watch_ = 0;
  SimulationReport report_;
};

}  // namespace pagoda::engine::simulation
