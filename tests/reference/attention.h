#pragma once

#include <cstdint>
#include <vector>

namespace pagoda::reference {

// Causal attention of one query row, in double precision: keys and values are those the row sees,
// oldest first.
struct AttentionRow {
  std::vector<double> q;                    // [head_dim]
  std::vector<std::vector<double>> keys;    // [context][head_dim]
  std::vector<std::vector<double>> values;  // [context][head_dim]
  double scale = 1.0;
  double soft_cap = 0.0;     // 0: off
  double alibi_slope = 0.0;  // adds slope * (key - p), where the last key is at p
};

std::vector<double> Attend(const AttentionRow& row);

// Rotates pairs (i, i + rotary_dim / 2) of `head` by the angles whose cosines and sines are given.
void Rotate(const double* cos, const double* sin, int64_t rotary_dim, std::vector<double>* head);

}  // namespace pagoda::reference
