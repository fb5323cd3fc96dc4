#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <sys/types.h>
#include <utility>

namespace pagoda::bench {

// Resident memory of a process; 0 when it is gone.
uint64_t ResidentBytes(pid_t pid);
// CPU time of a process so far.
double CpuSeconds(pid_t pid);
// The same of its threads, those of one name together.
std::map<std::string, double> CpuSecondsByThread(pid_t pid);

// One line for people and one JSON object: what should be reached, what was, and their ratio (at
// most 1 is good when `lower_is_better`).
struct Figure {
  std::string name;
  std::string unit;
  double goal = 0.0;
  double value = 0.0;
  bool lower_is_better = true;
};
// Returns whether the goal was reached.
bool Print(const Figure& figure);

// Figures of one run, printed as they come, and a JSON file of them.
class Report {
 public:
  // `command`: as it can be given again.
  explicit Report(std::string command) : command_(std::move(command)) {}

  void Add(const Figure& figure);
  // One without a goal.
  void Note(const std::string& name, const std::string& unit, double value);
  // All goals were.
  bool reached() const { return reached_; }
  // False: it could not be written. Null: nowhere.
  bool Write(const char* path) const;

 private:
  void AddLine(const Figure& figure, bool has_goal);

  const std::string command_;
  std::string lines_;
  bool reached_ = true;
};

}  // namespace pagoda::bench
