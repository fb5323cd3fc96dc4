#include "parallel/shm_group.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <linux/futex.h>
#include <new>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/status_macros.h"
#include "parallel/spin_governor.h"

namespace pagoda::parallel {
namespace {

constexpr int kMaxRanks = 8;
constexpr uint32_t kMagic = 0x4d535350;
// Of one piece: in the second-level cache, with the pieces of a few other ranks.
constexpr size_t kPieceBytes = size_t{128} << 10;
constexpr size_t kCacheLineBytes = 64;
// A rank that sleeps looks for an abort this often, should a wake-up be lost with its sender.
constexpr int64_t kMaxSleepNs = 100'000'000;

// How far a rank has come, on a cache line of its own.
struct alignas(kCacheLineBytes) RankState {
  // Number of its last piece that is there for others; wraps around.
  std::atomic<uint32_t> num_pieces{0};
  // Number of its calls of NoteProgress; wraps around.
  std::atomic<uint32_t> num_notes{0};
  // Ranks that sleep until num_pieces grows.
  std::atomic<uint32_t> num_sleepers{0};
};

struct Shared {
  uint32_t magic = kMagic;
  uint32_t num_ranks = 0;
  std::atomic<uint32_t> aborted{0};
  RankState ranks[kMaxRanks];
  // Then two pieces of each rank.
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(Shared) % kCacheLineBytes == 0);

size_t MemoryBytes(int num_ranks) {
  return sizeof(Shared) + 2 * static_cast<size_t>(num_ranks) * kPieceBytes;
}

void FutexWait(std::atomic<uint32_t>* word, uint32_t value) {
  const timespec timeout = {.tv_sec = 0, .tv_nsec = kMaxSleepNs};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, value, &timeout, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

template <typename T>
float ToFloat(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return value.ToFloat();
  }
}

template <typename T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else {
    return T::FromFloat(value);
  }
}

// to[i] = the sum of all pieces' i-th values, in order.
template <typename T>
void Sum(const char* const* pieces, int num_pieces, size_t num_values, void* to) {
  constexpr size_t kBlock = 256;
  float sums[kBlock];
  T* const out = static_cast<T*>(to);
  for (size_t begin = 0; begin < num_values; begin += kBlock) {
    const size_t count = std::min(kBlock, num_values - begin);
    const T* const first = reinterpret_cast<const T*>(pieces[0]) + begin;
    for (size_t i = 0; i < count; ++i) sums[i] = ToFloat(first[i]);
    for (int piece = 1; piece < num_pieces; ++piece) {
      const T* const next = reinterpret_cast<const T*>(pieces[piece]) + begin;
      for (size_t i = 0; i < count; ++i) sums[i] += ToFloat(next[i]);
    }
    for (size_t i = 0; i < count; ++i) out[begin + i] = FromFloat<T>(sums[i]);
  }
}

// The shared memory as one process sees it.
class Mapping {
 public:
  Mapping(Shared* shared, size_t num_bytes) : shared_(shared), num_bytes_(num_bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(shared_, num_bytes_); }
  Shared* shared() const { return shared_; }

 private:
  Shared* const shared_;
  const size_t num_bytes_;
};

class ShmGroup final : public ProcessGroup {
 public:
  ShmGroup(std::shared_ptr<const Mapping> mapping, int rank)
      : mapping_(std::move(mapping)),
        shared_(mapping_->shared()),
        rank_(rank),
        num_ranks_(static_cast<int>(shared_->num_ranks)) {}

  int rank() const override { return rank_; }
  int num_ranks() const override { return num_ranks_; }

  absl::Status AllReduceSum(void* data, DType dtype, int64_t num_elements) override;
  absl::Status AllGather(const void* input, void* output, size_t num_bytes) override;
  absl::Status Broadcast(void* data, size_t num_bytes, int root) override;
  void NoteProgress() override { shared_->ranks[rank_].num_notes.fetch_add(1); }
  void Abort() override;

 private:
  // Where a rank's current piece is.
  char* Piece(int rank) const {
    const size_t turn = num_pieces_ % 2;
    return reinterpret_cast<char*>(shared_ + 1) +
           (2 * static_cast<size_t>(rank) + turn) * kPieceBytes;
  }
  // Copies a piece of this rank to where the others find it (or nothing, where it has none to give)
  // and waits for theirs. What they find stays until the piece after the next.
  absl::Status Exchange(const void* data, size_t num_bytes);
  absl::Status Await(RankState& other, uint32_t num_pieces);
  bool IsAborted() const { return shared_->aborted.load(std::memory_order_acquire) != 0; }

  const std::shared_ptr<const Mapping> mapping_;
  Shared* const shared_;
  const int rank_;
  const int num_ranks_;
  uint32_t num_pieces_ = 0;
  SpinGovernor spin_governor_;
};

absl::Status AbortedStatus() { return absl::AbortedError("the process group was aborted"); }

absl::Status ShmGroup::Exchange(const void* data, size_t num_bytes) {
  ++num_pieces_;
  if (num_bytes > 0) std::memcpy(Piece(rank_), data, num_bytes);
  RankState& own = shared_->ranks[rank_];
  // Sequentially consistent with num_sleepers: either this sees the sleeper, or that sees the
  // piece.
  own.num_pieces.store(num_pieces_);
  if (own.num_sleepers.load() > 0) FutexWake(&own.num_pieces);
  for (int i = 1; i < num_ranks_; ++i) {
    PAGODA_RETURN_IF_ERROR(Await(shared_->ranks[(rank_ + i) % num_ranks_], num_pieces_));
  }
  return IsAborted() ? AbortedStatus() : absl::OkStatus();
}

absl::Status ShmGroup::Await(RankState& other, uint32_t num_pieces) {
  // Wraps around: the other is at most one piece ahead.
  const auto is_there = [&](uint32_t n) { return static_cast<int32_t>(n - num_pieces) >= 0; };
  if (is_there(other.num_pieces.load(std::memory_order_acquire))) return absl::OkStatus();
  if (spin_governor_.ShouldSpin()) {
    const Clock& clock = Clock::Monotonic();
    const int64_t end_ns = clock.NowNs() + SpinGovernor::kSpinNs;
    bool succeeded = false;
    do {
      for (int i = 0; i < 64 && !succeeded; ++i) {
        __builtin_ia32_pause();
        succeeded = is_there(other.num_pieces.load(std::memory_order_acquire));
      }
    } while (!succeeded && clock.NowNs() < end_ns);
    spin_governor_.Report(succeeded);
    if (succeeded) return absl::OkStatus();
  }
  other.num_sleepers.fetch_add(1);
  uint32_t seen = other.num_pieces.load();
  while (!is_there(seen) && !IsAborted()) {
    FutexWait(&other.num_pieces, seen);
    seen = other.num_pieces.load();
  }
  other.num_sleepers.fetch_sub(1);
  return is_there(seen) ? absl::OkStatus() : AbortedStatus();
}

absl::Status ShmGroup::AllReduceSum(void* data, DType dtype, int64_t num_elements) {
  if (dtype == DType::kInt32) {
    return absl::InvalidArgumentError("AllReduceSum of int32, expected a floating-point type");
  }
  if (IsAborted()) return AbortedStatus();
  const size_t element = DTypeBytes(dtype);
  const size_t total_bytes = static_cast<size_t>(num_elements) * element;
  const char* pieces[kMaxRanks];
  for (size_t begin = 0; begin < total_bytes; begin += kPieceBytes) {
    const size_t num_bytes = std::min(kPieceBytes, total_bytes - begin);
    char* const own = static_cast<char*>(data) + begin;
    PAGODA_RETURN_IF_ERROR(Exchange(own, num_bytes));
    for (int rank = 0; rank < num_ranks_; ++rank) pieces[rank] = Piece(rank);
    const size_t num_values = num_bytes / element;
    if (dtype == DType::kFloat32) {
      Sum<float>(pieces, num_ranks_, num_values, own);
    } else if (dtype == DType::kBFloat16) {
      Sum<BFloat16>(pieces, num_ranks_, num_values, own);
    } else {
      Sum<Float16>(pieces, num_ranks_, num_values, own);
    }
  }
  return absl::OkStatus();
}

absl::Status ShmGroup::AllGather(const void* input, void* output, size_t num_bytes) {
  if (IsAborted()) return AbortedStatus();
  for (size_t begin = 0; begin < num_bytes; begin += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, num_bytes - begin);
    PAGODA_RETURN_IF_ERROR(Exchange(static_cast<const char*>(input) + begin, count));
    for (int rank = 0; rank < num_ranks_; ++rank) {
      char* const to = static_cast<char*>(output) + static_cast<size_t>(rank) * num_bytes + begin;
      std::memcpy(to, Piece(rank), count);
    }
  }
  return absl::OkStatus();
}

absl::Status ShmGroup::Broadcast(void* data, size_t num_bytes, int root) {
  if (root < 0 || root >= num_ranks_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("Broadcast from rank %d of a group of %d", root, num_ranks_));
  }
  if (IsAborted()) return AbortedStatus();
  for (size_t begin = 0; begin < num_bytes; begin += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, num_bytes - begin);
    char* const own = static_cast<char*>(data) + begin;
    PAGODA_RETURN_IF_ERROR(Exchange(own, rank_ == root ? count : 0));
    if (rank_ != root) std::memcpy(own, Piece(root), count);
  }
  return absl::OkStatus();
}

void ShmGroup::Abort() {
  shared_->aborted.store(1);
  for (int rank = 0; rank < num_ranks_; ++rank) FutexWake(&shared_->ranks[rank].num_pieces);
}

absl::Status CheckRanks(int num_ranks) {
  if (num_ranks >= 1 && num_ranks <= kMaxRanks) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("a group of %d ranks, expected 1 to %d", num_ranks, kMaxRanks));
}

absl::Status MemoryFailed(absl::string_view call) {
  return absl::ResourceExhaustedError(
      absl::StrFormat("shared memory of ranks: %s failed: %s", call, std::strerror(errno)));
}

absl::StatusOr<std::shared_ptr<const Mapping>> Map(const UniqueFd& memory, size_t num_bytes) {
  void* const data =
      mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, memory.get(), 0);
  if (data == MAP_FAILED) return MemoryFailed("mmap");
  return std::make_shared<const Mapping>(static_cast<Shared*>(data), num_bytes);
}

// INVALID_ARGUMENT when it is not the memory of so many ranks.
absl::StatusOr<std::shared_ptr<const Mapping>> MapRanks(const UniqueFd& memory, int num_ranks) {
  const size_t num_bytes = MemoryBytes(num_ranks);
  struct stat info {};
  if (fstat(memory.get(), &info) != 0 || info.st_size != static_cast<off_t>(num_bytes)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "shared memory of %d ranks has %d bytes, expected %d", num_ranks, info.st_size, num_bytes));
  }
  PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> mapping, Map(memory, num_bytes));
  const Shared& shared = *mapping->shared();
  if (shared.magic != kMagic || shared.num_ranks != static_cast<uint32_t>(num_ranks)) {
    return absl::InvalidArgumentError("what is shared is not the memory of ranks");
  }
  return mapping;
}

}  // namespace

absl::StatusOr<UniqueFd> MakeShmGroupMemory(int num_ranks) {
  PAGODA_RETURN_IF_ERROR(CheckRanks(num_ranks));
  const size_t num_bytes = MemoryBytes(num_ranks);
  UniqueFd memory(memfd_create("pagoda-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory.valid()) return MemoryFailed("memfd_create");
  if (ftruncate(memory.get(), static_cast<off_t>(num_bytes)) != 0) return MemoryFailed("ftruncate");
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<const Mapping> mapping, Map(memory, num_bytes));
  new (mapping->shared()) Shared();
  mapping->shared()->num_ranks = static_cast<uint32_t>(num_ranks);
  return memory;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeShmGroup(const UniqueFd& memory,
                                                           int rank,
                                                           int num_ranks) {
  PAGODA_RETURN_IF_ERROR(CheckRanks(num_ranks));
  if (rank < 0 || rank >= num_ranks) {
    return absl::InvalidArgumentError(absl::StrFormat("rank %d of a group of %d", rank, num_ranks));
  }
  PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> mapping, MapRanks(memory, num_ranks));
  return std::make_unique<ShmGroup>(std::move(mapping), rank);
}

absl::optional<int> FindLastRank(const UniqueFd& memory, int num_ranks) {
  const auto mapping = MapRanks(memory, num_ranks);
  if (!mapping.ok()) return absl::nullopt;
  const RankState* const ranks = (*mapping)->shared()->ranks;
  // Numbers wrap around, and ranks are close to each other.
  const uint32_t first_notes = ranks[0].num_notes.load(), first_pieces = ranks[0].num_pieces.load();
  std::vector<std::pair<int32_t, int32_t>> leads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    leads.emplace_back(static_cast<int32_t>(ranks[rank].num_notes.load() - first_notes),
                       static_cast<int32_t>(ranks[rank].num_pieces.load() - first_pieces));
  }
  const auto last = std::min_element(leads.begin(), leads.end());
  if (std::count(leads.begin(), leads.end(), *last) > 1) return absl::nullopt;
  return static_cast<int>(last - leads.begin());
}

absl::StatusOr<std::vector<std::unique_ptr<ProcessGroup>>> MakeThreadGroups(int num_ranks) {
  PAGODA_ASSIGN_OR_RETURN(const UniqueFd memory, MakeShmGroupMemory(num_ranks));
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<const Mapping> mapping,
                          Map(memory, MemoryBytes(num_ranks)));
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  for (int rank = 0; rank < num_ranks; ++rank) {
    groups.push_back(std::make_unique<ShmGroup>(mapping, rank));
  }
  return groups;
}

}  // namespace pagoda::parallel
