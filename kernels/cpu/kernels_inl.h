// Included once by each per-ISA file: the table of everything compiled there.
#pragma once

#include "kernels/cpu/attention_inl.h"
#include "kernels/cpu/elementwise_inl.h"
#include "kernels/cpu/gemm_inl.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/layers_inl.h"
#include "kernels/cpu/sample_inl.h"

namespace pagoda::kernels::cpu {
namespace {

constexpr KernelTable MakeTable(Isa isa) {
  KernelTable table;
  table.isa = isa;
  table.x_row_bytes = XRowBytes;
  table.prepare_x = PrepareX;
  table.linear_block = LinearBlockKernel;
  table.attention_scratch_bytes = AttentionScratchBytes;
  table.attend = Attend;
  table.merge_partials = MergePartials;
  table.rms_norm_row = RmsNormRow;
  table.silu_mul_row = SiluMulRow;
  table.layer_norm_row = LayerNormRow;
  table.activate_row = ActivateRow;
  table.add_scaled_row = AddScaledRow;
  table.adjust_logits_row = AdjustLogitsRow;
  table.rotate_head = RotateHead;
  table.store_kv = StoreKv;
  table.fill_normal = FillNormal;
  table.sample = {.scan = ScanRow,
                  .sum_exp = SumExp,
                  .mass_by_bin = MassByBin,
                  .collect = CollectRow,
                  .count_before = CountBefore,
                  .race = RaceRow};
  return table;
}

}  // namespace
}  // namespace pagoda::kernels::cpu
