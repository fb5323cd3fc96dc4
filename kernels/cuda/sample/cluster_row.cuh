#pragma once

#include "kernels/cuda/sample/cluster_exchange.cuh"
#include "kernels/cuda/sample/token_list.cuh"

// One row of logits in the shared memory of a cluster of eight blocks, an eighth each, and the
// passes over it.
//
// Every filter but typical_p keeps a prefix of the order (value descending, id ascending), so what
// is in play is described by one cutoff. It is found by counting (or weighing) what lies at and
// above a few pivots, several times, until so few tokens are left between two pivots that one block
// can sort them. Sums are added in one order everywhere and all blocks decide by the same numbers:
// a row's token does not depend on timing.

namespace pagoda::kernels::cuda {

// Tokens that one block sorts at the end of a search; also the most top entries.
inline constexpr int kListCapacity = 512;

__device__ __forceinline__ Cutoff AllTokens() { return {-INFINITY, INT32_MAX}; }
__device__ __forceinline__ Cutoff AllFinite() { return {-FLT_MAX, INT32_MAX}; }

// What a search orders tokens by.
enum class Order {
  kLogit,    // z, highest first
  kTypical,  // distance of the scaled logit from the mean, smallest first
};

struct SelectShared {
  ExchangeShared exchange;
  uint64_t load_barrier;
  uint32_t list_size;  // of block 0; zero but between a gathering and its reader
  uint32_t block_best;
};

// Methods are called by all threads of all blocks, with equal arguments, unless they say otherwise.
class ClusterRow {
 public:
  __device__ ClusterRow(int32_t vocab_size, int32_t chunk, char* shared)
      : vocab_size_(vocab_size),
        chunk_(chunk),
        rank_(static_cast<int>(cluster_.block_rank())),
        first_id_(rank_ * chunk),
        size_(max(0, min(chunk, vocab_size - first_id_))),
        z_(reinterpret_cast<float*>(shared)),
        list_(reinterpret_cast<unsigned long long*>(shared + size_t{4} * chunk)),
        s_(*reinterpret_cast<SelectShared*>(shared + size_t{4} * chunk + ListBytes(chunk))),
        exchange_(s_.exchange) {
    if (threadIdx.x == 0) {
      s_.list_size = 0;
      BarrierInit(&s_.load_barrier, 1);
      BarrierInitFence();
    }
    __syncthreads();
  }

  // The list, also used as a bitmap of a block's tokens.
  static __host__ __device__ size_t ListBytes(int32_t chunk) {
    const size_t bitmap_bytes = (size_t{4} * ((chunk + 31) / 32) + 15) / 16 * 16;
    const size_t list_bytes = size_t{8} * kListCapacity;
    return bitmap_bytes > list_bytes ? bitmap_bytes : list_bytes;
  }
  static __host__ __device__ size_t SharedBytes(int32_t chunk) {
    return size_t{4} * chunk + ListBytes(chunk) + sizeof(SelectShared);
  }

  __device__ bool IsLeader() const { return rank_ == 0; }
  __device__ void Sync() { cluster_.sync(); }

  // Fills z with raw logits. No other block may still read this one's z.
  __device__ void Load(const float* logits) {
    // What ordinary stores wrote to z comes before what the copy engine writes.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const float* source = logits + first_id_;
    const bool aligned = reinterpret_cast<uintptr_t>(source) % 16 == 0;
    const int bulk = aligned ? size_ / 4 * 4 : 0;
    if (threadIdx.x == 0 && bulk > 0) {
      BarrierExpect(&s_.load_barrier, bulk * 4);
      BulkLoad(z_, source, bulk * 4, &s_.load_barrier);
    }
    // The rest, and -inf up to a whole group.
    for (int i = bulk + static_cast<int>(threadIdx.x); i < num_groups() * kGroup;
         i += kSelectThreads) {
      z_[i] = i < size_ ? __ldcg(source + i) : -INFINITY;
    }
    if (bulk > 0) {
      BarrierWait(&s_.load_barrier, load_parity_);
      load_parity_ ^= 1;
    }
    __syncthreads();
  }

  // Masks, bias and penalties, in the published order.
  __device__ void Process(const SampleParams& p, const SampleRow& row) {
    if (row.allowed_begin < row.allowed_end) {
      uint32_t* bitmap = reinterpret_cast<uint32_t*>(list_);
      for (int i = threadIdx.x; i < (size_ + 31) / 32; i += kSelectThreads) bitmap[i] = 0;
      __syncthreads();
      ForListed(row.allowed_begin, row.allowed_end, p.allowed_ids, [&](int at, int) {
        atomicOr(bitmap + at / 32, 1u << (at % 32));
      });
      __syncthreads();
      for (int i = threadIdx.x; i < size_; i += kSelectThreads) {
        if ((bitmap[i / 32] >> (i % 32) & 1) == 0) z_[i] = -INFINITY;
      }
      __syncthreads();
    }
    ForListed(
        row.masked_begin, row.masked_end, p.masked_ids, [&](int at, int) { z_[at] = -INFINITY; });
    __syncthreads();
    ForListed(row.bias_begin, row.bias_end, p.bias_ids, [&](int at, int i) {
      atomicAdd(z_ + at, p.bias_values[i]);
    });
    __syncthreads();
    for (int i = row.penalty_begin + static_cast<int>(threadIdx.x); i < row.penalty_end;
         i += kSelectThreads) {
      const PenaltyEntry entry = p.penalties[i];
      const int at = entry.token - first_id_;
      if (entry.token < 0 || at < 0 || at >= size_) continue;
      float v = z_[at];
      v = v > 0.0f ? v / row.repetition_penalty : v * row.repetition_penalty;
      v -= static_cast<float>(entry.output_count) * row.frequency_penalty;
      if (entry.output_count > 0) v -= row.presence_penalty;
      z_[at] = v;
    }
    __syncthreads();
  }

  // SortKey of the first token in order; kNanKey if any logit is NaN, kNoKey if all are -inf.
  // Counts those that are not -inf on the way.
  __device__ unsigned long long Largest() {
    float value = -INFINITY;
    int32_t id = -1;
    bool has_nan = false;
    uint32_t count = 0;
    ForGroups(-INFINITY, [&](const float(&z)[kGroup], int32_t first) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        has_nan |= isnan(z[i]);
        count += z[i] >= -FLT_MAX ? 1 : 0;
        if (z[i] > value) {
          value = z[i];
          id = first + i;
        }
      }
    });
    return exchange_.MaxKey(has_nan ? kNanKey : id < 0 ? kNoKey : SortKey(value, id), count);
  }
  // What Largest counted, until the next exchange of keys.
  __device__ uint32_t num_finite() const { return exchange_.count(); }

  // The next row of SampleRoute::kSelect; p.rows when there is none left. Clusters take rows
  // as they come to them: not all of them are on the device at once where others' blocks wait too.
  __device__ int64_t NextRow(const SampleParams& p, SelectQueue* queue) {
    BlockExchange& mine = exchange_.Next();
    if (IsLeader() && threadIdx.x == 0) {
      uint32_t row = atomicAdd(&queue->next_row, 1u);
      while (row < p.rows &&
             RouteOf(p.row_params[row], row, p.vocab_size) != SampleRoute::kSelect) {
        row = atomicAdd(&queue->next_row, 1u);
      }
      mine.key = row;
    }
    cluster_.sync();
    const auto row = static_cast<int64_t>(exchange_.OfLeader().key);
    return row < p.rows ? row : p.rows;
  }
  // When NextRow gave none: the last cluster leaves the queue as it was.
  __device__ void LeaveQueue(uint32_t num_clusters, SelectQueue* queue) const {
    if (rank_ != 0 || threadIdx.x != 0) return;
    __threadfence();
    if (atomicAdd(&queue->num_done, 1u) != num_clusters - 1) return;
    queue->next_row = 0;
    queue->num_done = 0;
  }

  // ---- What is in play. SetScale comes first: all finite tokens.

  __device__ void SetScale(float largest, float temperature) {
    scale_ = MakeRowScale(largest, temperature);
    in_play_ = AllFinite();
    has_typical_ = false;
  }
  __device__ void SetInPlay(Cutoff cutoff) { in_play_ = cutoff; }

  __device__ const RowScale& scale() const { return scale_; }

  __device__ uint32_t CountInPlay() {
    uint32_t count = 0;
    ForInPlay([&](float, int32_t) { ++count; });
    Tally tally = {};
    tally.count[0] = count;
    exchange_.Sum<1, true, false>(&tally);
    return tally.count[0];
  }

  struct Mass {
    double total;     // of weights
    double weighted;  // of weight * scaled logit
  };
  __device__ Mass MassInPlay() {
    float total = 0.0f, weighted = 0.0f;
    ForInPlay([&](float z, int32_t) {
      const float w = scale_.Weight(z);
      total += w;
      if (w > 0.0f) weighted += w * scale_.Scaled(z);  // 0 * -inf is not a number
    });
    Tally tally = {};
    tally.mass[0] = total;
    tally.mass[1] = weighted;
    exchange_.Sum<2, false, true>(&tally);
    return {tally.mass[0], tally.mass[1]};
  }

  // ---- Searches. Prefixes (by an order, of what is in play) whose measure, a count or a weight,
  // reaches `target` end at scores in [low, high): what is at and above `high` does not reach it,
  // what is at and above `low` does.
  struct Bracket {
    float low;
    float high;
    uint32_t count_low;
    uint32_t count_high;
    double measure_high;
  };

  // Narrows the bracket of `target` until at most kListCapacity tokens are in it, or only ties.
  // `count` tokens are in play. REQUIRES: they reach target.
  template <Order kOrder, bool kMass>
  __device__ Bracket Narrow(uint32_t count, double target) {
    Bracket b = {kOrder == Order::kLogit ? in_play_.value : -INFINITY, INFINITY, count, 0, 0.0};
    bool reached = false;  // by a pivot
    for (int round = 0; b.count_low - b.count_high > kListCapacity; ++round) {
      float pivots[kMaxSums];
      if (!ChoosePivots<kOrder>(round, reached, b.low, b.high, &pivots)) break;
      const Tally tally = TallyPivots<kOrder, kMass>(pivots);
      bool passed = false;
#pragma unroll
      for (int j = 0; j < kMaxSums; ++j) {
        const double measure = kMass ? tally.mass[j] : static_cast<double>(tally.count[j]);
        if (passed || pivots[j] >= b.high) continue;
        // Whatever rounding says, all that is in play reaches target.
        if (measure < target && pivots[j] > b.low) {
          b.high = pivots[j];
          b.count_high = tally.count[j];
          b.measure_high = measure;
        } else {
          passed = true;
          reached = true;
          if (pivots[j] > b.low) {
            b.low = pivots[j];
            b.count_low = tally.count[j];
          }
        }
      }
    }
    return b;
  }

  // The last token of the shortest prefix that reaches target.
  template <Order kOrder, bool kMass>
  __device__ Cutoff CutBracket(const Bracket& b, double target) {
    if (b.count_low - b.count_high > kListCapacity) {
      return CutTies<kOrder, kMass>(b.low, b.count_low - b.count_high, target - b.measure_high);
    }
    const int size = GatherSorted<kOrder>(b.low, b.high);
    BlockExchange& mine = exchange_.Next();
    if (IsLeader() && threadIdx.x < 32) {
      const double rest = target - b.measure_high;
      // Empty only if rounding left a little of target beyond the last token: then all stay.
      Cutoff cutoff = kOrder == Order::kLogit ? in_play_ : AllTokens();
      if (size > 0) {
        const int cut =
            kMass
                ? FirstReaching(scale_, size, rest, [&](int i) { return ValueOf(KeyId(list_[i])); })
                : max(0, min(size, static_cast<int>(rest)) - 1);
        cutoff = {KeyValue(list_[cut]), KeyId(list_[cut])};
      }
      if (threadIdx.x == 0) mine.cutoff = cutoff;
    }
    cluster_.sync();
    return exchange_.OfLeader().cutoff;
  }

  // Keeps the shortest prefix that reaches target.
  __device__ void KeepCount(uint32_t count, uint32_t target) {
    const Bracket b = Narrow<Order::kLogit, false>(count, target);
    in_play_ = CutBracket<Order::kLogit, false>(b, target);
  }
  __device__ void KeepMass(uint32_t count, double target) {
    const Bracket b = Narrow<Order::kLogit, true>(count, target);
    in_play_ = CutBracket<Order::kLogit, true>(b, target);
  }
  __device__ void KeepTypicalMass(uint32_t count, float mean, double target) {
    mean_ = mean;
    typical_ = AllTokens();
    has_typical_ = true;
    const Bracket b = Narrow<Order::kTypical, true>(count, target);
    typical_ = CutBracket<Order::kTypical, true>(b, target);
  }

  // Block 0's list gets the SortKeys of what is in play with low <= score < high, sorted; block 0
  // is told how many, others 0. REQUIRES: at most kListCapacity, and a barrier of the cluster since
  // the last gathering was read.
  template <Order kOrder>
  __device__ int GatherSorted(float low, float high) {
    uint32_t* size = cluster_.map_shared_rank(&s_.list_size, 0);
    unsigned long long* list = cluster_.map_shared_rank(list_, 0);
    const auto add = [&](float score, int32_t id) {
      if (score < low || score >= high) return;
      const uint32_t at = atomicAdd(size, 1u);
      if (at < kListCapacity) list[at] = SortKey(score, id);
    };
    ForInPlay([&](float z, int32_t id) { add(Score<kOrder>(z), id); },
              kOrder == Order::kLogit ? low : -INFINITY);
    cluster_.sync();
    if (!IsLeader()) return 0;
    const int num = static_cast<int>(min(s_.list_size, static_cast<uint32_t>(kListCapacity)));
    __syncthreads();
    if (threadIdx.x == 0) s_.list_size = 0;
    SortList(num);
    return num;
  }
  __device__ const unsigned long long* list() const { return list_; }

  // Key of the token in play with the largest noisy value.
  __device__ unsigned long long DrawNoisy(const SampleRow& row) {
    if (threadIdx.x == 0) s_.block_best = OrderedBits(-INFINITY);
    __syncthreads();
    const NoiseParams noise = {
        row.seed, row.position, scale_.temperature, scale_.largest, scale_.log2};
    NoisyBest best;
    ForGroups(in_play_.value, [&](const float(&z)[kGroup], int32_t first) {
      float kept[kGroup];
#pragma unroll
      for (int i = 0; i < kGroup; ++i) kept[i] = InPlay(z[i], first + i) ? z[i] : -INFINITY;
      const float bound = PruningBound(&s_.block_best);
      MeetGroup(kept, first / kGroup, GroupMax(kept), noise, bound, &s_.block_best, &best);
    });
    return exchange_.MaxKey(best.Key());
  }

  // For DrawFromList in block 0.
  __device__ unsigned long long* key_scratch() { return s_.exchange.key_scratch; }

  // Block 0's value of `key` for every block.
  __device__ unsigned long long FromLeader(unsigned long long key) {
    return exchange_.MaxKey(IsLeader() ? key : kNoKey);
  }

  // ---- Scoring.

  __device__ float ValueOf(int32_t id) {
    const int owner = id / chunk_;
    return cluster_.map_shared_rank(z_, owner)[id - owner * chunk_];
  }

  // Number of tokens before (value, id) in order.
  __device__ uint32_t CountBefore(float value, int32_t id) {
    uint32_t count = 0;
    ForGroups(value, [&](const float(&z)[kGroup], int32_t first) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        // The -inf that fill up the last group have ids beyond all tokens'.
        count += z[i] > value || (z[i] == value && first + i < id) ? 1 : 0;
      }
    });
    Tally tally = {};
    tally.count[0] = count;
    exchange_.Sum<1, true, false>(&tally);
    return tally.count[0];
  }

 private:
  __device__ int num_groups() const { return (size_ + kGroup - 1) / kGroup; }
  __device__ float TypicalScore(float z) const { return -fabsf(scale_.Scaled(z) - mean_); }
  template <Order kOrder>
  __device__ float Score(float z) const {
    return kOrder == Order::kLogit ? z : TypicalScore(z);
  }
  __device__ bool InPlay(float z, int32_t id) const {
    if (!in_play_.Keeps(z, id) || id >= vocab_size_) return false;
    return !has_typical_ || typical_.Keeps(TypicalScore(z), id);
  }

  // Calls fn(z, first id) for this thread's groups of four tokens with a logit at or above `bound`
  // (a NaN among others does not count); all groups if it is -inf. Ids ascend.
  template <typename Fn>
  __device__ void ForGroups(float bound, Fn&& fn) const {
    const float4* groups = reinterpret_cast<const float4*>(z_);
    const bool all = bound == -INFINITY;
    for (int g = threadIdx.x; g < num_groups(); g += kSelectThreads) {
      const float4 v = groups[g];
      if (!all && fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)) < bound) continue;
      const float z[kGroup] = {v.x, v.y, v.z, v.w};
      fn(z, first_id_ + g * kGroup);
    }
  }

  // Calls fn(z, id) for this thread's tokens in play; `bound` is a lower bound of those that
  // matter.
  template <typename Fn>
  __device__ void ForInPlay(Fn&& fn, float bound = -INFINITY) const {
    ForGroups(fmaxf(bound, in_play_.value), [&](const float(&z)[kGroup], int32_t first) {
#pragma unroll
      for (int i = 0; i < kGroup; ++i) {
        if (InPlay(z[i], first + i)) fn(z[i], first + i);
      }
    });
  }

  // Calls fn(position in z, index in the list) for listed ids that this block holds.
  template <typename Fn>
  __device__ void ForListed(int32_t begin, int32_t end, const int32_t* ids, Fn&& fn) const {
    for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kSelectThreads) {
      const int32_t id = ids[i];
      const int at = id - first_id_;
      if (id >= 0 && at >= 0 && at < size_) fn(at, i);
    }
  }

  // Counts, and weights if wanted, of the tokens in play at and above each of the descending
  // pivots. Those of pivots at or below in_play_ are too large.
  template <Order kOrder, bool kMass>
  __device__ Tally TallyPivots(const float (&pivots)[kMaxSums]) {
    uint32_t count[kMaxSums] = {};
    float mass[kMaxSums] = {};
    const auto meet = [&](float z) {
      const float score = Score<kOrder>(z);
      const float weight = kMass ? scale_.Weight(z) : 0.0f;
#pragma unroll
      for (int j = 0; j < kMaxSums; ++j) {
        if (score >= pivots[j]) {
          ++count[j];
          if (kMass) mass[j] += weight;
        }
      }
    };
    if constexpr (kOrder == Order::kLogit) {
      // Above in_play_ all are in play.
      ForGroups(fmaxf(pivots[kMaxSums - 1], in_play_.value), [&](const float(&z)[kGroup], int32_t) {
#pragma unroll
        for (int i = 0; i < kGroup; ++i) meet(z[i]);
      });
    } else {
      ForInPlay([&](float z, int32_t) { meet(z); });
    }
    Tally tally = {};
#pragma unroll
    for (int j = 0; j < kMaxSums; ++j) {
      tally.count[j] = count[j];
      tally.mass[j] = mass[j];
    }
    exchange_.Sum<kMaxSums, true, kMass>(&tally);
    return tally;
  }

  // Descending pivots between low and high. False when no float is left between them.
  template <Order kOrder>
  __device__ bool ChoosePivots(
      int round, bool reached, float low, float high, float (*pivots)[kMaxSums]) const {
    // Rounds that divide values evenly; then the floats there are, which ends after 14, whatever
    // the values.
    constexpr int kLinearRounds = 6;
    constexpr int kMaxRounds = 32;
    const uint32_t low_bits = OrderedBits(low);
    const uint32_t span = OrderedBits(high) - low_bits;
    if (span < 2 || round > kMaxRounds) return false;
    // Scores are logits, or scaled ones: one unit is a factor e of probability.
    const float unit = kOrder == Order::kLogit ? scale_.temperature : 1.0f;
    const float top = kOrder == Order::kLogit ? scale_.largest : 0.0f;
    if (round < 2 && !reached) {
      // Few tokens are near the top, and counting them is cheap; most of the probability is within
      // twenty units.
      const float first = round == 0 ? 0.5f : 6.0f;
      const float ratio = round == 0 ? 2.0f : 1.8f;
      float distance = first * unit;
#pragma unroll
      for (int j = 0; j < kMaxSums; ++j, distance *= ratio) (*pivots)[j] = top - distance;
    } else if (round < kLinearRounds && high - low < 64.0f * unit) {
#pragma unroll
      for (int j = 0; j < kMaxSums; ++j) {
        (*pivots)[j] = low + (high - low) * (static_cast<float>(kMaxSums - j) / (kMaxSums + 1));
      }
    } else {
#pragma unroll
      for (int j = 0; j < kMaxSums; ++j) {
        const auto step = static_cast<uint32_t>(uint64_t{span} * (kMaxSums - j) / (kMaxSums + 1));
        (*pivots)[j] = FromOrderedBits(low_bits + max(step, 1u));
      }
    }
    return true;
  }

  // Of the `num_ties` tokens in play whose score is exactly `score`, keeps by id as many as reach
  // target.
  template <Order kOrder, bool kMass>
  __device__ Cutoff CutTies(float score, uint32_t num_ties, double target) {
    double wanted = target;
    if constexpr (kMass) {
      // All weigh the same; on the two sides of the mean, nearly.
      float mass = 0.0f;
      ForInPlay(
          [&](float z, int32_t) { mass += Score<kOrder>(z) == score ? scale_.Weight(z) : 0.0f; });
      Tally tally = {};
      tally.mass[0] = mass;
      exchange_.Sum<1, false, true>(&tally);
      wanted = tally.mass[0] > 0.0 ? ceil(target / tally.mass[0] * num_ties) : num_ties;
    }
    const auto num_kept =
        static_cast<uint32_t>(fmax(1.0, fmin(wanted, static_cast<double>(num_ties))));
    // Smallest id such that num_kept ties have one at most as large.
    int32_t low = -1, high = vocab_size_ - 1;
    while (high - low > 1) {
      const int32_t middle = low + (high - low) / 2;
      uint32_t count = 0;
      ForInPlay([&](float z, int32_t id) { count += Score<kOrder>(z) == score && id <= middle; });
      Tally tally = {};
      tally.count[0] = count;
      exchange_.Sum<1, true, false>(&tally);
      (tally.count[0] >= num_kept ? high : low) = middle;
    }
    return {score, high};
  }

  // Bitonic, descending, padded with keys below all others. By all threads of block 0.
  __device__ void SortList(int num) {
    int size = 1;
    while (size < num) size *= 2;
    for (int i = num + static_cast<int>(threadIdx.x); i < size; i += kSelectThreads)
      list_[i] = kNoKey;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) {
      for (int step = run / 2; step > 0; step /= 2) {
        for (int i = threadIdx.x; i < size / 2; i += kSelectThreads) {
          const int a = (i & ~(step - 1)) * 2 + (i & (step - 1));
          const int b = a + step;
          const bool descending = (a & run) == 0;
          const unsigned long long x = list_[a], y = list_[b];
          if (descending ? x < y : x > y) {
            list_[a] = y;
            list_[b] = x;
          }
        }
        __syncthreads();
      }
    }
  }

  // ---- Constant.
  cg::cluster_group cluster_ = cg::this_cluster();
  const int32_t vocab_size_;
  const int32_t chunk_;     // tokens of a block, a multiple of 32
  const int rank_;          // of this block
  const int32_t first_id_;  // of this block's tokens
  const int size_;          // how many it has
  float* const z_;
  unsigned long long* const list_;
  SelectShared& s_;
  ClusterExchange exchange_;
  // ---- State, equal in all threads of all blocks.
  uint32_t load_parity_ = 0;
  RowScale scale_;
  float mean_ = 0.0f;
  bool has_typical_ = false;
  Cutoff in_play_ = {0.0f, 0};
  Cutoff typical_ = {0.0f, 0};
};

}  // namespace pagoda::kernels::cuda
